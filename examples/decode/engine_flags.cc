#include "examples/decode/engine_flags.h"

#include <array>
#include <limits>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "reprise/base/dtype.h"
#include "reprise/base/status_macros.h"
#include "reprise/hf/paths.h"
#include "reprise/hf/strict_json.h"

namespace reprise {
namespace {

using Kind = EngineFlag::Kind;
using Arguments = DecodeArguments;
using Mode = GraphSetOptions::Mode;

constexpr int kMaxSequences = 1 << 16;

ModelRunnerOptions& RunnerOf(Arguments& arguments) { return arguments.engine.runner; }
CacheOptions& CacheOf(Arguments& arguments) { return arguments.engine.runner.cache; }
SchedulerPolicy& PolicyOf(Arguments& arguments) { return arguments.engine.scheduler; }

// A number of at least `least`.
template <typename Out>
absl::Status Count(const char* name, const std::string& value, int least, Out& out) {
  int number = 0;
  if (!absl::SimpleAtoi(value, &number)) {
    return absl::InvalidArgumentError(absl::StrCat("--", name, ": expected an integer in [", least,
                                                   ", ", std::numeric_limits<int>::max(), "], got ",
                                                   DescribeJson(value)));
  }
  if (number < least) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", name, ": expected at least ", least, ", got ", number));
  }
  out = number;
  return absl::OkStatus();
}

// A number of gigabytes.
absl::StatusOr<int64_t> Bytes(const char* name, const std::string& value) {
  constexpr double kMaxGb = 1e6;
  double gb = 0;
  const bool is_number = absl::SimpleAtod(value, &gb);
  if (is_number && gb > 0 && gb <= kMaxGb) return static_cast<int64_t>(gb * 1e9);
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, ": expected a number in (0, ", kMaxGb, "], got ",
                   is_number ? absl::StrCat(gb) : DescribeJson(value)));
}

// The value with this name.
template <typename T, size_t kCount, typename Out>
absl::Status Choose(const char* name, const std::string& value,
                    const std::pair<const char*, T> (&choices)[kCount], Out& out) {
  std::vector<std::string> names;
  for (const auto& [choice, chosen] : choices) {
    if (value == choice) {
      out = chosen;
      return absl::OkStatus();
    }
    names.push_back(choice);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--", name, ": expected ", absl::StrJoin(names, ", "), ", got ", DescribeJson(value)));
}

// "auto" leaves the choice to the device.
template <typename T>
absl::Status ChooseOrAuto(const char* name, const std::string& value, T on, T off,
                          std::optional<T>& out) {
  const std::pair<const char*, std::optional<T>> choices[] = {
      {"auto", std::nullopt}, {"on", on}, {"off", off}};
  return Choose(name, value, choices, out);
}

absl::Status SetDType(const char* name, const std::string& value, Arguments& arguments) {
  const std::pair<const char*, std::optional<DType>> choices[] = {{"auto", std::nullopt},
                                                                  {"float32", DType::kFloat32},
                                                                  {"bfloat16", DType::kBFloat16},
                                                                  {"float16", DType::kFloat16}};
  return Choose(name, value, choices, arguments.dtype);
}

absl::Status SetDevice(const char* name, const std::string& value, Arguments& arguments) {
  const std::pair<const char*, DeviceChoice> choices[] = {
      {"auto", DeviceChoice::kAuto}, {"cpu", DeviceChoice::kCpu}, {"cuda", DeviceChoice::kCuda}};
  return Choose(name, value, choices, arguments.device);
}

absl::Status SetContextRanks(const char* name, const std::string& value, Arguments& arguments) {
  int& context_ranks = RunnerOf(arguments).ranks.context_ranks;
  int number = 0;
  REPRISE_RETURN_IF_ERROR(Count(name, value, 1, number));
  if (context_ranks != RankOptions::kAllRanks) {
    return absl::InvalidArgumentError("--context_ranks: expected --parallel=context with it");
  }
  context_ranks = number;
  return absl::OkStatus();
}

absl::Status SetNumBlocks(const char* name, const std::string& value, Arguments& arguments) {
  int number = 0;
  REPRISE_RETURN_IF_ERROR(Count(name, value, 2, number));  // the null block, and one to use
  CacheOf(arguments).size = NumBlocks{number};
  return absl::OkStatus();
}

absl::Status SetKvMemory(const char* name, const std::string& value, Arguments& arguments) {
  REPRISE_ASSIGN_OR_RETURN(const int64_t bytes, Bytes(name, value));
  if (!std::holds_alternative<std::monostate>(CacheOf(arguments).size)) {
    return absl::InvalidArgumentError("--kv_memory_gb and --num_blocks exclude each other");
  }
  CacheOf(arguments).size = NumBytes{bytes};
  return absl::OkStatus();
}

absl::Status SetKvDType(const char*, const std::string& value, Arguments& arguments) {
  CacheOf(arguments).dtype = ParseDType(value);
  if (CacheOf(arguments).dtype.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--kv_dtype: expected float32, bfloat16, float16, fp8_e4m3, fp8_e5m2, got ",
                   DescribeJson(value)));
}

absl::Status SetKvForm(const char* name, const std::string& value, Arguments& arguments) {
  const std::pair<const char*, KvForm> choices[] = {{"pair", KvForm::kPair},
                                                    {"packed", KvForm::kPacked},
                                                    {"diff_kv", KvForm::kDiffKv},
                                                    {"k_packed", KvForm::kKPacked}};
  return Choose(name, value, choices, CacheOf(arguments).form);
}

absl::Status SetKvScales(const char* name, const std::string& value, Arguments& arguments) {
  CacheOptions& cache = CacheOf(arguments);
  const std::pair<const char*, KvScaleShape> choices[] = {{"per_layer", KvScaleShape::kPerLayer},
                                                          {"per_head", KvScaleShape::kPerHead}};
  REPRISE_RETURN_IF_ERROR(Choose(name, value, choices, cache.scale_shape));
  if (cache.scale_shape == KvScaleShape::kPerLayer) return absl::OkStatus();
  if (cache.dtype.has_value() && IsFp8(*cache.dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--kv_scales: per_head requires an fp8 cache: expected --kv_dtype fp8_e4m3 or fp8_e5m2, got ",
      cache.dtype.has_value() ? std::string(DTypeName(*cache.dtype)) : "none"));
}

absl::Status SetNumSwapBlocks(const char* name, const std::string& value, Arguments& arguments) {
  int number = 0;
  REPRISE_RETURN_IF_ERROR(Count(name, value, 0, number));
  CacheOf(arguments).swap = NumBlocks{number};
  return absl::OkStatus();
}

absl::Status SetPartialHits(const char* name, const std::string& value, Arguments& arguments) {
  SchedulerPolicy& policy = PolicyOf(arguments);
  const std::pair<const char*, PartialHits> choices[] = {{"none", PartialHits::kNone},
                                                         {"copied", PartialHits::kCopied}};
  REPRISE_RETURN_IF_ERROR(Choose(name, value, choices, policy.partial_hits));
  if (policy.partial_hits == PartialHits::kNone || policy.prefix_reuse == PrefixReuse::kOn) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("--partial_hits: expected --prefix_reuse=on with copied");
}

absl::Status SetLinearChoices(const char*, const std::string& value, Arguments& arguments) {
  if (value.empty()) {
    return absl::InvalidArgumentError("--linear_choices: expected a file, got an empty name");
  }
  RunnerOf(arguments).device.linear_choices_file = value;
  return absl::OkStatus();
}

const EngineFlag kEngineFlags[] = {
    {"dtype", Kind::kText, "auto",
     "of weights, activations and cache: auto (the checkpoint's), float32, bfloat16, "
     "float16",
     SetDType},
    {"device", Kind::kText, "auto", "auto (a GPU if there is one), cpu, cuda", SetDevice},
    {"ranks", Kind::kNumber, "",
     "divide the model over so many processes, with a GPU each or all on the CPU; without "
     "it, over those that torchrun, Slurm or MPI has started (docs/distributed.md)",
     [](const char* name, const std::string& value, Arguments& arguments) {
       return Count(name, value, 1, arguments.ranks);
     }},
    {"parallel", Kind::kText, "tensor",
     "what ranks divide: tensor (weights and heads), context (the keys of each sequence: "
     "longer contexts, all weights on each)",
     [](const char* name, const std::string& value, Arguments& arguments) {
       const std::pair<const char*, int> choices[] = {{"tensor", 1},
                                                      {"context", RankOptions::kAllRanks}};
       return Choose(name, value, choices, RunnerOf(arguments).ranks.context_ranks);
     }},
    {"context_ranks", Kind::kNumber, "",
     "with --parallel=context: how many ranks divide the keys, a divisor of --ranks; the "
     "others of a grid divide the weights. Without it, all divide the keys",
     SetContextRanks},
    {"rank_timeout", Kind::kNumber, "60",
     "seconds until a rank that does not come has failed. More where ranks load at "
     "different speeds",
     [](const char* name, const std::string& value, Arguments& arguments) {
       return Count(name, value, 1, arguments.rank_timeout);
     }},
    {"graphs", Kind::kText, "on", "on: decode steps are captured once and replayed; off",
     [](const char* name, const std::string& value, Arguments& arguments) {
       const std::pair<const char*, std::optional<Mode>> choices[] = {{"on", std::nullopt},
                                                                      {"off", Mode::kOff}};
       return Choose(name, value, choices, RunnerOf(arguments).graphs.mode);
     }},
    {"block_size", Kind::kNumber, "16", "tokens a block of the KV cache",
     [](const char* name, const std::string& value, Arguments& arguments) {
       return Count(name, value, 1, CacheOf(arguments).block_size);
     }},
    {"num_blocks", Kind::kNumber, "",
     "blocks of the KV cache, the null block included; without it, as many as the prompts "
     "can use",
     SetNumBlocks},
    {"prefill_chunk", Kind::kNumber, "",
     "prompt tokens computed in a step at most, a sequence; without it or 0, up to 512",
     [](const char* name, const std::string& value, Arguments& arguments) {
       return Count(name, value, 0, PolicyOf(arguments).prefill_chunk);
     }},
    {"max_num_tokens", Kind::kNumber, "",
     "tokens of a step at most; without it, 512, or more where a step needs them",
     [](const char* name, const std::string& value, Arguments& arguments) {
       return Count(name, value, 1, RunnerOf(arguments).max_num_tokens);
     }},
    {"max_prefill_tokens_while_decoding", Kind::kNumber, "0",
     "prompt tokens of a step that has decodes at most: fewer make the time between tokens "
     "more even; 0: what --max_num_tokens leaves",
     [](const char* name, const std::string& value, Arguments& arguments) {
       return Count(name, value, 0, PolicyOf(arguments).max_prefill_tokens_while_decoding);
     }},
    {"kv_dtype", Kind::kText, "",
     "of the KV cache: float32, bfloat16, float16, fp8_e4m3, fp8_e5m2; without it, dtype",
     SetKvDType},
    {"kv_memory_gb", Kind::kNumber, "", "size of the KV cache, in place of --num_blocks",
     SetKvMemory},
    {"kv_order", Kind::kText, "nhd", "of a block of the KV cache: nhd (tokens, then heads), hnd",
     [](const char* name, const std::string& value, Arguments& arguments) {
       const std::pair<const char*, KvOrder> choices[] = {{"nhd", KvOrder::kNHD},
                                                          {"hnd", KvOrder::kHND}};
       return Choose(name, value, choices, CacheOf(arguments).order);
     }},
    {"kv_form", Kind::kText, "pair",
     "how keys and values of a block are stored: pair, packed, diff_kv, k_packed", SetKvForm},
    {"kv_scales", Kind::kText, "per_layer",
     "of an fp8 KV cache: per_layer or per_head; from the checkpoint, else 1", SetKvScales},
    {"kv_calibration", Kind::kSwitch, "",
     "of an fp8 KV cache: scales are taken from the first step",
     [](const char*, const std::string&, Arguments& arguments) {
       CacheOf(arguments).calibration = KvCalibration::kFirstStep;
       return absl::OkStatus();
     }},
    {"num_swap_blocks", Kind::kNumber, "0",
     "blocks of host memory for sequences that made way for others; 0: they are computed "
     "again",
     SetNumSwapBlocks},
    {"graph_sizes", Kind::kText, "",
     "numbers of rows to capture graphs for: a list; without it, powers of two and steps of "
     "8",
     [](const char* name, const std::string& value, Arguments& arguments) -> absl::Status {
       REPRISE_ASSIGN_OR_RETURN(RunnerOf(arguments).graphs.sizes,
                                CountsOf(name, value, kMaxSequences));
       return absl::OkStatus();
     }},
    {"graph_memory_gb", Kind::kNumber, "",
     "memory of graphs at most: what does not fit is not captured; without it, any",
     [](const char* name, const std::string& value, Arguments& arguments) -> absl::Status {
       REPRISE_ASSIGN_OR_RETURN(RunnerOf(arguments).graphs.memory_budget_bytes, Bytes(name, value));
       return absl::OkStatus();
     }},
    {"mixed_graphs", Kind::kText, "auto",
     "graphs of steps that have prompts and decodes: auto (on a GPU), on, off",
     [](const char* name, const std::string& value, Arguments& arguments) {
       return ChooseOrAuto(name, value, MixedGraphs::kOn, MixedGraphs::kOff,
                           RunnerOf(arguments).graphs.mixed);
     }},
    {"cascade", Kind::kText, "auto",
     "read a prefix that rows share once for all of them, where that is faster: auto (on a "
     "GPU, for 16-bit models), on, off",
     [](const char* name, const std::string& value, Arguments& arguments) {
       return ChooseOrAuto(name, value, CascadeMode::kAuto, CascadeMode::kOff,
                           RunnerOf(arguments).device.cascade);
     }},
    {"steps_in_flight", Kind::kNumber, "",
     "steps launched before the oldest is awaited; without it, 1 on the CPU, 2 on a GPU",
     [](const char* name, const std::string& value, Arguments& arguments) {
       return Count(name, value, 1, RunnerOf(arguments).max_steps_in_flight);
     }},
    {"prefix_reuse", Kind::kText, "on", "on: a prompt begins after what the cache has of it; off",
     [](const char* name, const std::string& value, Arguments& arguments) {
       const std::pair<const char*, PrefixReuse> choices[] = {{"on", PrefixReuse::kOn},
                                                              {"off", PrefixReuse::kOff}};
       return Choose(name, value, choices, PolicyOf(arguments).prefix_reuse);
     }},
    {"partial_hits", Kind::kText, "none",
     "none: what a prompt finds in the cache ends with a block; copied: it may end within a "
     "block, which is copied",
     SetPartialHits},
    {"batch_invariant", Kind::kSwitch, "",
     "the same bits for a sequence whatever runs beside it; slower",
     [](const char*, const std::string&, Arguments& arguments) {
       RunnerOf(arguments).device.batch_invariance = BatchInvariance::kOn;
       return absl::OkStatus();
     }},
    {"attention_outside_graphs", Kind::kSwitch, "",
     "launch attention between captured pieces of a step, to compare; slower",
     [](const char*, const std::string&, Arguments& arguments) {
       RunnerOf(arguments).debug.attention = AttentionLaunch::kBetweenGraphs;
       return absl::OkStatus();
     }},
    {"check_replays", Kind::kSwitch, "",
     "run each replayed step again without its graph, and fail if a tensor differs",
     [](const char*, const std::string&, Arguments& arguments) {
       RunnerOf(arguments).debug.replay_check = ReplayCheck::kEveryReplay;
       return absl::OkStatus();
     }},
    {"linear_choices", Kind::kPath, "",
     "file that keeps which kernels a GPU's matrix products take: another run with it takes "
     "the same ones, and computes the same bits. Made if there is none",
     SetLinearChoices},
};

absl::Status SetMaxNumSeqs(const char* name, const std::string& value, Arguments& arguments) {
  int number = 0;
  const bool is_number = absl::SimpleAtoi(value, &number);
  if (!is_number || number < 1 || number > kMaxSequences) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", name, ": expected 1 to ", kMaxSequences, ", got ",
                     is_number ? absl::StrCat(number) : DescribeJson(value)));
  }
  RunnerOf(arguments).max_num_seqs = number;
  return absl::OkStatus();
}

}  // namespace

absl::Span<const EngineFlag> EngineFlags() { return kEngineFlags; }

const EngineFlag& MaxSeqLenFlag() {
  static const EngineFlag flag = {
      "max_seq_len", Kind::kNumber, "",
      "tokens of a sequence at most, its prompt included; without it, as the model has, up "
      "to 8192",
      [](const char* name, const std::string& value, Arguments& arguments) {
        return Count(name, value, 2, RunnerOf(arguments).max_seq_len);
      }};
  return flag;
}

const EngineFlag& MaxNumSeqsFlag() {
  static const EngineFlag flag = {"max_num_seqs", Kind::kNumber, "",
                                  "sequences that run at the same time at most; without it, 16",
                                  SetMaxNumSeqs};
  return flag;
}

const EngineFlag& MaxWaitingFlag() {
  static const EngineFlag flag = {
      "max_waiting", Kind::kNumber, "0",
      "requests that wait at most: others are refused; 0: any number",
      [](const char* name, const std::string& value, Arguments& arguments) {
        return Count(name, value, 0, PolicyOf(arguments).max_waiting);
      }};
  return flag;
}

absl::StatusOr<std::vector<int>> CountsOf(const char* flag, const std::string& text, int most) {
  std::vector<int> counts;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    int count = 0;
    if (!absl::SimpleAtoi(part, &count) || count < 1 || count > most) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag, ": expected a list of numbers in [1, ", most,
                       "], such as 1,8,32, got ", DescribeJson(text)));
    }
    counts.push_back(count);
  }
  return counts;
}

}  // namespace reprise
