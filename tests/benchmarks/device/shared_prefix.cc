// The cost of a shared prefix, flat and apart: the measurements for attention/merge/cascade_rule.h.
//
//   shared_prefix           32 q heads over 8 kv heads of 128, bfloat16, blocks of 16
//   shared_prefix --rows=8,64 --prefixes=1024,4096 --suffix=1024 --nothree_launches
//
// For rows of one query each, with `prefix` keys in the same blocks and 128 of their own:
//
//   flat     one call: every row reads the prefix
//   once     one call, through a tile schedule planned for a shared prefix
//   prefix   all rows' queries over the prefix, read once: one row of that many queries
//   suffix   each row's own keys
//   merge    of the two, by MergeStates()
//
// prefix + suffix + merge is cascade attention in three launches. The table also shows what the
// rules choose for the one call and for the three launches.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "reprise/attention/device_profile.h"
#include "reprise/attention/merge/cascade_rule.h"
#include "reprise/attention/merge/merge_states.h"
#include "reprise/attention/tile_schedule/tile_schedule_plan.h"
#include "reprise/base/status_macros.h"
#include "tests/benchmarks/device/attention_case.h"
#include "tests/benchmarks/device/replay_timer.h"

ABSL_FLAG(std::vector<std::string>, rows,
          (std::vector<std::string>{"2", "8", "32", "64", "128", "256"}), "rows of a call");
ABSL_FLAG(std::vector<std::string>, prefixes,
          (std::vector<std::string>{"256", "1024", "4096", "16384"}), "keys that all rows share");
ABSL_FLAG(int, suffix, 128, "keys of each row's own");
ABSL_FLAG(bool, large_tiles, false, "of the one call: as many queries together as a tile holds");
ABSL_FLAG(bool, three_launches, true, "measure the prefix, the rest and the merge apart, too");

namespace reprise {
namespace {

constexpr int kHeads = 32;
constexpr int kKvHeads = 8;
constexpr int kDim = 128;
constexpr int kTileQueries = 4;  // 16 rows of q, 4 heads a group

absl::StatusOr<AttentionResult> MeasureCall(int num_rows, int prefix, int suffix,
                                            SharedPrefix shared_prefix) {
  AttentionCase call;
  call.lens.assign(num_rows, prefix + suffix);
  call.query_lens.assign(num_rows, 1);
  call.shared_len = prefix;
  call.shared_prefix = shared_prefix;
  call.shared_tiles = absl::GetFlag(FLAGS_large_tiles) ? SharedTiles::kLarge : SharedTiles::kSmall;
  return MeasureAttention(call);
}

absl::StatusOr<double> PrefixUs(int num_rows, int prefix) {
  AttentionCase once;
  once.lens = {prefix};
  once.query_lens = {num_rows};
  once.causal = false;
  REPRISE_ASSIGN_OR_RETURN(const AttentionResult result, MeasureAttention(once));
  return result.call.median_us;
}

absl::StatusOr<double> SuffixUs(int num_rows, int suffix) {
  AttentionCase own;
  own.lens.assign(num_rows, suffix);
  own.query_lens.assign(num_rows, 1);
  REPRISE_ASSIGN_OR_RETURN(const AttentionResult result, MeasureAttention(own));
  return result.call.median_us;
}

absl::StatusOr<double> MergeUs(int num_rows) {
  const at::TensorOptions floats = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  const at::Tensor parts = at::empty({3, num_rows, kHeads, kDim}, floats).zero_();
  const at::Tensor lses = at::empty({2, num_rows, kHeads}, floats.dtype(at::kFloat)).zero_();
  MergeStatesArgs args;
  for (int part = 0; part < 2; ++part) {
    args.part_out[part] = parts[part].data_ptr();
    args.part_lse[part] = lses[part].data_ptr<float>();
  }
  args.num_parts = 2;
  args.part = {.dtype = DType::kBFloat16, .token_stride = kHeads * kDim, .head_stride = kDim};
  args.part_lse_view = TokensByHeads(nullptr, kHeads);
  args.out = args.part;
  args.out.data = parts[2].data_ptr();
  args.num_tokens = num_rows;
  args.num_heads = kHeads;
  args.head_dim = kDim;
  const auto launches = [&](int count) {
    return TimeReplays(
        [&]() -> absl::Status {
          for (int i = 0; i < count; ++i) {
            REPRISE_RETURN_IF_ERROR(LaunchMergeStates(args, c10::cuda::getCurrentCUDAStream()));
          }
          return absl::OkStatus();
        },
        {.replays_per_sample = 10});
  };
  REPRISE_ASSIGN_OR_RETURN(const Timing one, launches(1));
  REPRISE_ASSIGN_OR_RETURN(const Timing many, launches(33));
  return (many.median_us - one.median_us) / 32;
}

CascadeDecision Rule(int num_rows, int prefix, int suffix, int tile_queries,
                     const CascadeCosts& costs) {
  return ChooseCascade({.num_rows = num_rows,
                        .num_tokens = num_rows,
                        .common_prefix_len = prefix,
                        .num_suffix_keys = int64_t{num_rows} * suffix,
                        .max_seq_len = prefix + suffix,
                        .num_q_heads = kHeads,
                        .num_kv_heads = kKvHeads,
                        .head_dim_qk = kDim,
                        .head_dim_v = kDim,
                        .tile_queries = tile_queries},
                       costs);
}

absl::StatusOr<std::vector<int>> Numbers(const std::vector<std::string>& words) {
  std::vector<int> numbers;
  for (const std::string& word : words) {
    if (!absl::SimpleAtoi(word, &numbers.emplace_back()) || numbers.back() < 1) {
      return absl::InvalidArgumentError(absl::StrCat("expected a positive number, got ", word));
    }
  }
  return numbers;
}

absl::Status Run() {
  REPRISE_ASSIGN_OR_RETURN(const std::vector<int> rows, Numbers(absl::GetFlag(FLAGS_rows)));
  REPRISE_ASSIGN_OR_RETURN(const std::vector<int> prefixes, Numbers(absl::GetFlag(FLAGS_prefixes)));
  const int suffix = absl::GetFlag(FLAGS_suffix);
  const bool three_launches = absl::GetFlag(FLAGS_three_launches);
  std::printf("%5s %7s %7s %8s %8s %6s", "rows", "prefix", "suffix", "flat", "once", "map");
  if (three_launches) std::printf(" %8s %8s %6s %8s", "prefix", "suffix", "merge", "three");
  std::printf("  the rule\n");
  for (const int num_rows : rows) {
    double suffix_us = 0;
    double merge_us = 0;
    if (three_launches) {
      REPRISE_ASSIGN_OR_RETURN(suffix_us, SuffixUs(num_rows, suffix));
      REPRISE_ASSIGN_OR_RETURN(merge_us, MergeUs(num_rows));
    }
    for (const int prefix : prefixes) {
      REPRISE_ASSIGN_OR_RETURN(const AttentionResult flat,
                               MeasureCall(num_rows, prefix, suffix, SharedPrefix::kIgnored));
      REPRISE_ASSIGN_OR_RETURN(const AttentionResult once,
                               MeasureCall(num_rows, prefix, suffix, SharedPrefix::kTaken));
      std::printf("%5d %7d %7d %8.1f %8.1f %6.1f", num_rows, prefix, suffix, flat.call.median_us,
                  once.call.median_us, once.tile_schedule.median_us);
      if (three_launches) {
        REPRISE_ASSIGN_OR_RETURN(const double prefix_us, PrefixUs(num_rows, prefix));
        std::printf(" %8.1f %8.1f %6.1f %8.1f", prefix_us, suffix_us, merge_us,
                    prefix_us + suffix_us + merge_us);
      }
      std::printf("  %s", ToString(Rule(num_rows, prefix, suffix, kTileQueries,
                                        H200Profile().cascade_costs))
                              .c_str());
      if (three_launches) {
        std::printf("; %s", ToString(Rule(num_rows, prefix, suffix, /*tile_queries=*/0,
                                          H200Profile().cascade_launches))
                                .c_str());
      }
      std::printf("  %s\n", once.kernel.c_str());
      std::fflush(stdout);
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace reprise

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  int num_devices = 0;
  if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
    std::fprintf(stderr, "shared_prefix: no GPU on this machine\n");
    return 1;
  }
  if (const absl::Status status = reprise::Run(); !status.ok()) {
    std::fprintf(stderr, "shared_prefix: %s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
