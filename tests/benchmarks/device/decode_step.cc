// Times decode steps of a Llama with random weights on a GPU, and reports the time of each part.
//
//   decode_step --preset llama-3.1-8b --batch 1,8,64 --context 1024,4096
//   decode_step --preset llama-3.1-8b --batch 1,8,32 --drafts 0,4
//   decode_step --preset llama-3.1-8b --batch 1,8,32 --drafts 0,4 --acceptance 0.6,0.8
//   decode_step --preset llama-3.1-8b --batch 1,32 --weights fp8
//   decode_step --preset llama-3.1-8b --batch 64 --context 4352 --shared 4096 --cascade both
//
//   decode_step --preset llama-3.1-70b --ranks 2
//   decode_step --preset llama-3.1-70b --ranks 2 --collectives off
//   decode_step --preset llama-3.1-8b --ranks 2 --fused_sums off
//
// --ranks divides the model over processes, each with a GPU; the numbers are those of rank 0. With
// --collectives off one process measures the part of rank 0 alone, and what it would get from the
// others is left out.
//
// Prints a JSON line a point, then a table: the step's time, its ratio to the two floors, the
// host's time, launches, gaps, and kernel time by class. Then, for each point, its kernels: their
// share of the step, and the time in which the card reads the bytes that they need at least.

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <c10/cuda/CUDAGuard.h>

#include <cmath>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"
#include "reprise/distributed/collectives.h"
#include "reprise/distributed/launch.h"
#include "reprise/distributed/process_group.h"
#include "reprise/distributed/share.h"
#include "reprise/models/decoder/decoder_weights.h"
#include "reprise/models/decoder/public_configs.h"
#include "reprise/runner/ops/fp8/quantise_weight.h"
#include "reprise/runner/ops/linear.h"
#include "tests/benchmarks/device/decode_case.h"

ABSL_FLAG(std::string, preset, "llama-3.1-8b",
          "llama-3.1-8b, llama-3.1-70b, llama-3.2-1b or jargon");
ABSL_FLAG(std::vector<std::string>, batch, std::vector<std::string>({"1", "8", "64"}),
          "numbers of rows");
ABSL_FLAG(std::vector<std::string>, context, std::vector<std::string>({"1024"}),
          "keys of each row at the middle of the timed steps");
ABSL_FLAG(int, shared, 0, "of those keys, so many that all rows share");
ABSL_FLAG(std::string, cascade, "off", "off, auto or both: whether shared keys are read once");
ABSL_FLAG(std::string, graphs, "on", "on, off or both");
ABSL_FLAG(std::string, dtype, "bfloat16", "bfloat16, float16 or float32");
ABSL_FLAG(std::string, weights, "plain",
          "of the layers' products: plain, fp8 (a scale for each row), or fp8_blocks (one for each "
          "128 x 128)");
ABSL_FLAG(int, block_size, 16, "tokens of a KV block");
ABSL_FLAG(int, steps, 60, "timed steps a sample");
ABSL_FLAG(std::vector<std::string>, drafts, std::vector<std::string>({"0"}),
          "drafts of each row, which the steps verify; 0: plain decodes");
ABSL_FLAG(
    std::string, linear_choices, "",
    "a file that keeps the choices of matrix products, so that other runs make the same ones");
ABSL_FLAG(
    std::vector<std::string>, acceptance, std::vector<std::string>({"0"}),
    "with what probability a draft is right, 0 to 1; above 0 with a head of zeros, so that it is "
    "known which is; 0: nearly all are wrong");
ABSL_FLAG(int, ranks, 1, "processes that the model is divided over, each with a GPU");
ABSL_FLAG(std::string, collectives, "on", "on, or off: rank 0's part of the model alone");
ABSL_FLAG(std::string, fused_sums, "on",
          "on, or off: with several ranks, whether the norm that follows a sum does the sum, too");
ABSL_FLAG(bool, sample_shards, false,
          "with several ranks: tokens are chosen from shares of the vocabulary");

namespace reprise {
namespace {

// Rank 0 without the others: its collectives do nothing.
class LoneRank final : public Collectives {
 public:
  using Collectives::Collectives;
  std::string Fingerprint() const override { return "one of several ranks, alone"; }

 protected:
  absl::Status DoAllReduce(at::Tensor&) override { return absl::OkStatus(); }
  // What ranks agree on, on the host, is what this one says.
  absl::Status DoAllGather(const at::Tensor& in, at::Tensor& out) override {
    if (in.is_cpu()) out.copy_(in.clone().unsqueeze(0).expand_as(out));
    return absl::OkStatus();
  }
  absl::Status DoReduceScatter(const at::Tensor&, at::Tensor&) override { return absl::OkStatus(); }
  absl::Status DoBroadcast(at::Tensor&, int) override { return absl::OkStatus(); }
  absl::Status DoBarrier() override { return absl::OkStatus(); }
};

absl::StatusOr<std::vector<int>> Numbers(const char* flag, const std::vector<std::string>& texts,
                                         int least = 1) {
  std::vector<int> numbers;
  for (const std::string& text : texts) {
    int number = 0;
    if (!absl::SimpleAtoi(text, &number) || number < least) {
      return absl::InvalidArgumentError(absl::StrCat("--", flag, " must be numbers of at least ",
                                                     least, " separated by commas: got ", text));
    }
    numbers.push_back(number);
  }
  return numbers;
}

absl::StatusOr<std::vector<double>> Acceptances() {
  std::vector<double> numbers;
  for (const std::string& text : absl::GetFlag(FLAGS_acceptance)) {
    double number = 0;
    if (!absl::SimpleAtod(text, &number) || !(number >= 0 && number <= 1)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--acceptance must be numbers in [0, 1] separated by commas: got ", text));
    }
    numbers.push_back(number);
  }
  return numbers;
}

// The layers' products with weights of 8 bits, as checkpoints have them: embedding and head stay.
// Prints how far off the products of the first layer are.
absl::Status Quantise(ScaledBy scaled_by, DecoderWeights& weights) {
  double error = 0, size = 0;
  for (DecoderLayerWeights& layer : weights.layers) {
    for (Linear* product : {&layer.qkv, &layer.o, &*layer.gate_up, &*layer.down}) {
      REPRISE_ASSIGN_OR_RETURN(QuantisedWeight small, QuantiseWeight(product->weight(), scaled_by));
      REPRISE_ASSIGN_OR_RETURN(
          Linear quantised,
          Linear::CreateScaled(std::move(small.values), std::move(small.scales), product->bias()));
      if (&layer == &weights.layers[0]) {
        const at::Tensor x =
            at::randn({64, product->in_features()}, product->weight().options()).to(at::kDouble);
        const at::Tensor exact = at::linear(x, product->weight().to(at::kDouble));
        const at::Tensor rounded = at::linear(x, quantised.Dequantised(at::kDouble));
        error += (rounded - exact).square().sum().item<double>();
        size += exact.square().sum().item<double>();
      }
      *product = std::move(quantised);
    }
  }
  std::cout << absl::StrFormat(
      "fp8 weights: products of the first layer are off by %.4f (RMS, relative)\n",
      std::sqrt(error / size));
  return absl::OkStatus();
}

// The time in which the card reads what a kernel needs at least.
double FloorUs(const DecodeResult& r, const StepKernel& kernel, const MemoryRates& limits) {
  const auto bytes = r.part_bytes.find(kernel.part);
  return bytes == r.part_bytes.end() ? 0 : bytes->second / (limits.read_tb_per_s * 1e6);
}

double TokensPerSecond(const DecodeCase& c, const DecodeResult& r) {
  return c.batch * r.tokens_per_row / r.step_us * 1e6;
}

nlohmann::json ToJson(const DecodeCase& c, const DecodeResult& r, const MemoryRates& limits) {
  nlohmann::json json = {{"preset", absl::GetFlag(FLAGS_preset)},
                         {"ranks", absl::GetFlag(FLAGS_ranks)},
                         {"collectives", absl::GetFlag(FLAGS_collectives)},
                         {"fused_sums", absl::GetFlag(FLAGS_fused_sums)},
                         {"sample_shards", absl::GetFlag(FLAGS_sample_shards)},
                         {"dtype", absl::GetFlag(FLAGS_dtype)},
                         {"weights", absl::GetFlag(FLAGS_weights)},
                         {"batch", c.batch},
                         {"context", c.context},
                         {"shared", c.shared_len},
                         {"drafts", c.num_drafts},
                         {"acceptance", c.acceptance},
                         {"tokens_per_row", r.tokens_per_row},
                         {"tokens_per_s", TokensPerSecond(c, r)},
                         {"cascade", r.is_cascade},
                         {"block_size", c.block_size},
                         {"graphs", c.graphs != GraphSetOptions::Mode::kOff},
                         {"read_tb_per_s", limits.read_tb_per_s},
                         {"copy_tb_per_s", limits.copy_tb_per_s},
                         {"step_us", r.step_us},
                         {"step_min_us", r.step_min_us},
                         {"step_max_us", r.step_max_us},
                         {"launch_us", r.launch_us},
                         {"products_us", r.products_us},
                         {"bytes_floor_us", r.bytes_floor_us},
                         {"products_floor_us", r.products_floor_us},
                         {"gap_between_us", r.parts.gap_between_us},
                         {"gap_within_us", r.parts.gap_within_us},
                         {"kernels", r.parts.kernels},
                         {"copies", r.parts.copies},
                         {"graph_bytes", r.graph_bytes},
                         {"capture_ms", r.capture_ms},
                         {"calls", r.parts.calls},
                         {"calls_us", r.parts.calls_us},
                         {"other_us", r.parts.other_us}};
  for (int i = 0; i < kNumKernelClasses; ++i) {
    const std::string name(KernelClassName(static_cast<KernelClass>(i)));
    json["parts_us"][name] = r.parts.class_us[i];
  }
  for (const StepKernel& kernel : r.parts.by_kernel) {
    json["by_kernel"].push_back({{"part", kernel.part},
                                 {"kernel", kernel.name},
                                 {"count", kernel.count},
                                 {"us", kernel.us},
                                 {"floor_us", FloorUs(r, kernel, limits)}});
  }
  return json;
}

// A step's time by kernel. The lines add up to the step of the trace, which CUPTI makes longer.
std::string KernelTable(const DecodeCase& c, const DecodeResult& r, const MemoryRates& limits) {
  std::string table = absl::StrFormat(
      "\nbatch %d, context %d, drafts %d: us a step by kernel\n%-14s %7s %9s %7s %9s %7s  %s\n",
      c.batch, c.context, c.num_drafts, "part", "kernels", "us", "share", "floor", "/floor",
      "kernel");
  const auto line = [&](const std::string& part, double count, double us, double floor_us,
                        const std::string& name) {
    absl::StrAppendFormat(&table, "%-14s %7.0f %9.1f %5.1f %% ", part, count, us,
                          100 * us / r.parts.step_us);
    if (floor_us > 0) {
      absl::StrAppendFormat(&table, "%9.1f %7.2f", floor_us, us / floor_us);
    } else {
      absl::StrAppendFormat(&table, "%9s %7s", "-", "-");
    }
    absl::StrAppend(&table, "  ", name, "\n");
  };
  double floor_us = 0;
  for (const StepKernel& kernel : r.parts.by_kernel) {
    line(kernel.part, kernel.count, kernel.us, FloorUs(r, kernel, limits), kernel.name);
    floor_us += FloorUs(r, kernel, limits);
  }
  line("nothing", 0, r.parts.gap_within_us + r.parts.gap_between_us, 0, "gaps between kernels");
  line("all", r.parts.kernels, r.parts.step_us, floor_us, "");
  return table;
}

std::string Row(const DecodeCase& c, const DecodeResult& r) {
  std::string row = absl::StrFormat(
      "%5d %7d %6d %6.2f %8.0f %7s %6s %8.3f %6.2f %6.2f %7.1f %8.1f %8.1f %7.0f", c.batch,
      c.context, c.num_drafts, r.tokens_per_row, TokensPerSecond(c, r), r.is_cascade ? "yes" : "no",
      c.graphs == GraphSetOptions::Mode::kOff ? "off" : "on", r.step_us / 1e3,
      r.step_us / r.bytes_floor_us, r.step_us / r.products_floor_us, r.launch_us,
      r.parts.gap_between_us, r.parts.gap_within_us, r.parts.kernels);
  for (const double us : r.parts.class_us) absl::StrAppendFormat(&row, " %8.0f", us);
  return row;
}

std::string Heading() {
  std::string heading =
      absl::StrFormat("%5s %7s %6s %6s %8s %7s %6s %8s %6s %6s %7s %8s %8s %7s", "batch", "context",
                      "drafts", "a row", "token/s", "cascade", "graphs", "ms", "/bytes", "/prods",
                      "host us", "between", "within", "kernels");
  for (int i = 0; i < kNumKernelClasses; ++i) {
    const std::string name(KernelClassName(static_cast<KernelClass>(i)).substr(0, 8));
    absl::StrAppendFormat(&heading, " %8s", name);
  }
  return heading;
}

// As one of `collectives`' ranks; null: the only one.
absl::Status RunAll(Collectives* collectives, int device_index) {
  REPRISE_ASSIGN_OR_RETURN(const std::vector<int> batches,
                           Numbers("batch", absl::GetFlag(FLAGS_batch)));
  REPRISE_ASSIGN_OR_RETURN(const std::vector<int> contexts,
                           Numbers("context", absl::GetFlag(FLAGS_context)));
  const std::optional<DType> dtype = ParseDType(absl::GetFlag(FLAGS_dtype));
  if (!dtype) return absl::InvalidArgumentError("--dtype: no such type");
  REPRISE_ASSIGN_OR_RETURN(const std::vector<int> drafts,
                           Numbers("drafts", absl::GetFlag(FLAGS_drafts), /*least=*/0));
  REPRISE_ASSIGN_OR_RETURN(const std::vector<double> acceptances, Acceptances());
  std::vector<GraphSetOptions::Mode> modes;
  const std::string graphs = absl::GetFlag(FLAGS_graphs);
  if (graphs == "on" || graphs == "both") modes.push_back(GraphSetOptions::Mode::kEager);
  if (graphs == "off" || graphs == "both") modes.push_back(GraphSetOptions::Mode::kOff);
  if (modes.empty()) return absl::InvalidArgumentError("--graphs must be on, off or both");

  std::vector<CascadeMode> cascades;
  const std::string asked = absl::GetFlag(FLAGS_cascade);
  if (asked == "off" || asked == "both") cascades.push_back(CascadeMode::kOff);
  if (asked == "auto" || asked == "both") cascades.push_back(CascadeMode::kAuto);
  if (cascades.empty()) return absl::InvalidArgumentError("--cascade must be off, auto or both");

  REPRISE_ASSIGN_OR_RETURN(const MemoryRates limits, MeasureMemoryRates());
  REPRISE_ASSIGN_OR_RETURN(DecoderConfig config, LlamaPreset(absl::GetFlag(FLAGS_preset)));
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(device_index));
  REPRISE_ASSIGN_OR_RETURN(
      DecoderWeights weights,
      MakeRandomWeights(config,
                        {.device = device, .dtype = *dtype, .ranks = RanksOf(collectives)}));
  const std::string kind = absl::GetFlag(FLAGS_weights);
  if (kind == "fp8" || kind == "fp8_blocks") {
    REPRISE_RETURN_IF_ERROR(CatchTorch(
        [&] { return Quantise(kind == "fp8" ? ScaledBy::kRow : ScaledBy::kBlock, weights); }));
  } else if (kind != "plain") {
    return absl::InvalidArgumentError("--weights must be plain, fp8 or fp8_blocks");
  }
  if (absl::c_any_of(acceptances, [](double probability) { return probability > 0; })) {
    at::Tensor(weights.lm_head.weight()).zero_();  // every logit is 0: the first token is chosen
  }
  REPRISE_ASSIGN_OR_RETURN(
      const std::unique_ptr<DecoderModel> model,
      DecoderModel::Create(config, std::move(weights), {.collectives = collectives}));
  std::vector<std::string> rows;
  std::string tables;  // of kernels
  std::vector<DecodeCase> cases;
  for (const int context : contexts) {
    for (const int batch : batches) {
      for (const CascadeMode cascade : cascades) {
        for (const GraphSetOptions::Mode mode : modes) {
          for (const int num_drafts : drafts) {
            for (const double acceptance : acceptances) {
              cases.push_back({.batch = batch,
                               .context = context,
                               .shared_len = absl::GetFlag(FLAGS_shared),
                               .cascade = cascade,
                               .block_size = absl::GetFlag(FLAGS_block_size),
                               .graphs = mode,
                               .num_drafts = num_drafts,
                               .acceptance = num_drafts > 0 ? acceptance : 0,
                               .num_timed_steps = absl::GetFlag(FLAGS_steps),
                               .collectives = collectives,
                               .sample_shards = absl::GetFlag(FLAGS_sample_shards),
                               .linear_choices_file = absl::GetFlag(FLAGS_linear_choices)});
              if (num_drafts == 0) break;  // plain decodes are the same for all of them
            }
          }
        }
      }
    }
  }
  const bool prints = RanksOf(collectives).rank == 0;
  for (const DecodeCase& c : cases) {
    const absl::StatusOr<DecodeResult> result = MeasureDecode(*model, c, limits);
    if (!result.ok()) {
      rows.push_back(absl::StrFormat("%5d %7d        %s", c.batch, c.context,
                                     std::string(result.status().message()).substr(0, 160)));
      continue;
    }
    if (prints) std::cout << ToJson(c, *result, limits).dump() << std::endl;
    rows.push_back(Row(c, *result));
    tables += KernelTable(c, *result, limits);
  }
  if (!prints) return absl::OkStatus();
  std::cout << absl::StrFormat(
                   "\n%s %s over %d ranks: read %.2f TB/s, copy %.2f TB/s; parts in us a step\n",
                   absl::GetFlag(FLAGS_preset), absl::GetFlag(FLAGS_dtype),
                   RanksOf(collectives).world, limits.read_tb_per_s, limits.copy_tb_per_s)
            << Heading() << "\n";
  for (const std::string& row : rows) std::cout << row << "\n";
  std::cout << tables;
  return absl::OkStatus();
}

absl::Status Run() {
  const int world = absl::GetFlag(FLAGS_ranks);
  const std::string collectives = absl::GetFlag(FLAGS_collectives);
  if (world < 1) return absl::InvalidArgumentError("--ranks must be at least 1");
  ConnectOptions options;
  const std::string fused = absl::GetFlag(FLAGS_fused_sums);
  if (fused == "off") {
    options.limits.max_fused_bytes = 0;
  } else if (fused != "on") {
    return absl::InvalidArgumentError("--fused_sums must be on or off");
  }
  if (collectives == "off") {
    LoneRank lone({.rank = 0, .world = world});
    return RunAll(&lone, 0);
  }
  if (collectives != "on") return absl::InvalidArgumentError("--collectives must be on or off");
  if (world == 1) return RunAll(nullptr, 0);
  return RunRanks(world, [&](const RankPlace& place) -> absl::Status {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(place.local_rank));
    REPRISE_ASSIGN_OR_RETURN(
        const auto ranks, ConnectRanks(place, c10::Device(c10::kCUDA, place.local_rank), options));
    return RunAll(ranks.get(), place.local_rank);
  });
}

}  // namespace
}  // namespace reprise

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Times decode steps of a Llama with random weights on a GPU.");
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = reprise::Run();
  if (status.ok()) return 0;
  std::cerr << "decode_step: " << status.message() << "\n";
  return 1;
}
