// Attention through the builders of speculative and context-parallel batches and over a shared
// prefix, against a dense float64 computation over the keys that the definition lets each query see: one suite for
// the CPU and for a GPU.
//
//   DraftAttentionDevice device = {.torch = at::kCPU, .chain = ..., .attend = ...};
//   EXPECT_EQ(AttendThroughTree(device, seed), "");
//
// Each function draws a case from its seed, runs the builder over the device's memory, writes keys
// and values where the definition puts them (NaN everywhere else), attends, and returns the
// difference, or "". float32 throughout.

#ifndef ATTENTION_TESTING_DRAFT_ATTENTION_H_
#define ATTENTION_TESTING_DRAFT_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "attention/attention_params.h"
#include "attention/merge/common_prefix_args.h"
#include "attention/merge/merge_states_args.h"
#include "attention/metadata/chain_batch_args.h"
#include "attention/paged_batch.h"
#include "attention/speculation/draft_steps_args.h"
#include "attention/speculation/tree_batch_args.h"
#include "cache/storage/kv_layer.h"

namespace reprise {

// What runs where: host forms over host memory, or launches on LibTorch's current stream.
struct DraftAttentionDevice {
  at::Device torch = at::kCPU;
  std::function<void(const ChainBatchArgs&)> chain;
  std::function<void(const TreeBatchArgs&)> tree;
  std::function<void(const DraftLevelArgs&)> draft_level;
  std::function<void(const CommonPrefixArgs&)> common_prefix;
  std::function<void(const MergeStatesArgs&)> merge;
  // Takes the prefix of a batch that has common_prefix_len, where it uses a work map.
  std::function<absl::Status(const AttentionParams&, const PagedBatch&, const at::Tensor& q,
                             const KvLayer&, at::Tensor& out, at::Tensor& lse)>
      attend;
};

std::string AttendThroughChain(const DraftAttentionDevice& device, uint64_t seed);
std::string AttendThroughTree(const DraftAttentionDevice& device, uint64_t seed);
std::string AttendThroughDraftLevels(const DraftAttentionDevice& device, uint64_t seed);
// 2..4 simulated ranks, merged; sinks once.
std::string AttendThroughRanks(const DraftAttentionDevice& device, uint64_t seed);
// Rows that share their first blocks, with common_prefix_len found by the builder; with and without
// sinks and a softcap.
std::string AttendThroughSharedPrefix(const DraftAttentionDevice& device, uint64_t seed);

}  // namespace reprise

#endif  // ATTENTION_TESTING_DRAFT_ATTENTION_H_
