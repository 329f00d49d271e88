// What a shared prefix costs, flat and apart: the measurements behind attention/cascade_rule.h.
//
//   shared_prefix           32 q heads over 8 kv heads of 128, bfloat16, blocks of 16
//
// For rows of one query each, with `prefix` keys in the same blocks and 128 of their own:
//
//   flat     one call: every row reads the prefix
//   prefix   all rows' queries over the prefix, read once: one row of that many queries
//   suffix   each row's own keys
//   merge    of the two, by MergeStates()
//
// prefix + suffix + merge is cascade attention in three launches; the rule's model stands beside.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/cascade_rule.h"
#include "attention/lse_format.h"
#include "attention/merge_states_kernel.h"
#include "attention/merge_states_params.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "tests/benchmarks/device/attention_case.h"
#include "tests/benchmarks/device/replay_timer.h"

namespace reprise {
namespace {

constexpr int kSuffix = 128;
constexpr int kHeads = 32;
constexpr int kDim = 128;

absl::StatusOr<double> FlatUs(int num_rows, int prefix) {
  AttentionCase flat;
  flat.lens.assign(num_rows, prefix + kSuffix);
  flat.query_lens.assign(num_rows, 1);
  flat.shared_len = prefix;
  REPRISE_ASSIGN_OR_RETURN(const AttentionResult result, MeasureAttention(flat));
  return result.call.median_us;
}

absl::StatusOr<double> PrefixUs(int num_rows, int prefix) {
  AttentionCase once;
  once.lens = {prefix};
  once.query_lens = {num_rows};
  once.causal = false;
  REPRISE_ASSIGN_OR_RETURN(const AttentionResult result, MeasureAttention(once));
  return result.call.median_us;
}

absl::StatusOr<double> SuffixUs(int num_rows) {
  AttentionCase suffix;
  suffix.lens.assign(num_rows, kSuffix);
  suffix.query_lens.assign(num_rows, 1);
  REPRISE_ASSIGN_OR_RETURN(const AttentionResult result, MeasureAttention(suffix));
  return result.call.median_us;
}

absl::StatusOr<double> MergeUs(int num_rows) {
  const at::TensorOptions floats = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  const at::Tensor parts = at::empty({3, num_rows, kHeads, kDim}, floats).zero_();
  const at::Tensor lses = at::empty({2, num_rows, kHeads}, floats.dtype(at::kFloat)).zero_();
  MergeStatesParams params;
  for (int part = 0; part < 2; ++part) {
    params.part_out[part] = parts[part].data_ptr();
    params.part_lse[part] = lses[part].data_ptr<float>();
  }
  params.num_parts = 2;
  params.part = {.dtype = DType::kBFloat16, .token_stride = kHeads * kDim, .head_stride = kDim};
  params.part_lse_view = TokensByHeads(nullptr, kHeads);
  params.out = params.part;
  params.out.data = parts[2].data_ptr();
  params.num_tokens = num_rows;
  params.num_heads = kHeads;
  params.head_dim = kDim;
  const auto launches = [&](int count) {
    return TimeReplays(
        [&]() -> absl::Status {
          for (int i = 0; i < count; ++i) {
            REPRISE_RETURN_IF_ERROR(CudaStatus(
                LaunchMergeStates(params, c10::cuda::getCurrentCUDAStream()), "merge_states"));
          }
          return absl::OkStatus();
        },
        {.replays_per_sample = 10});
  };
  REPRISE_ASSIGN_OR_RETURN(const Timing one, launches(1));
  REPRISE_ASSIGN_OR_RETURN(const Timing many, launches(33));
  return (many.median_us - one.median_us) / 32;
}

absl::Status Run() {
  std::printf("%5s %7s %8s %8s %8s %8s %9s  %s\n", "rows", "prefix", "flat", "prefix", "suffix",
              "merge", "cascade", "the rule");
  for (const int num_rows : {2, 8, 32, 64, 128, 256}) {
    REPRISE_ASSIGN_OR_RETURN(const double suffix_us, SuffixUs(num_rows));
    REPRISE_ASSIGN_OR_RETURN(const double merge_us, MergeUs(num_rows));
    for (const int prefix : {256, 1024, 4096, 16384}) {
      REPRISE_ASSIGN_OR_RETURN(const double flat_us, FlatUs(num_rows, prefix));
      REPRISE_ASSIGN_OR_RETURN(const double prefix_us, PrefixUs(num_rows, prefix));
      const CascadeDecision decision = ChooseCascade({.num_rows = num_rows,
                                                      .num_tokens = num_rows,
                                                      .common_prefix_len = prefix,
                                                      .num_suffix_keys = num_rows * kSuffix,
                                                      .max_seq_len = prefix + kSuffix,
                                                      .num_q_heads = kHeads,
                                                      .num_kv_heads = 8,
                                                      .head_dim_qk = kDim,
                                                      .head_dim_v = kDim},
                                                     H200CascadeCosts());
      std::printf("%5d %7d %8.1f %8.1f %8.1f %8.1f %9.1f  %s\n", num_rows, prefix, flat_us,
                  prefix_us, suffix_us, merge_us, prefix_us + suffix_us + merge_us,
                  ToString(decision).c_str());
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace reprise

int main() {
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
