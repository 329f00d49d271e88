// Attention through the builders of gathered, speculative, chunked, cross and context-parallel
// batches and over a shared prefix, against a dense float64 computation over the keys that the
// definition lets each query see: one suite for the CPU and for a GPU.
//
//   DraftAttentionDevice device = {.torch = at::kCPU, .chain = ..., .plan = ..., .capture = ...};
//   EXPECT_EQ(AttendThroughTree(device, {.q = DType::kBFloat16, .kv = DType::kFp8E4M3}, seed), "");
//
// Each function draws a shape and a layer from its seed. A step is the builders, the work map and
// attention, over memory that stays where it is. The step runs eagerly once. Then it is captured as
// one graph and replayed over other contents: lengths, tables, trees, masks, keys and values. Keys
// are where the definition puts them, NaN everywhere else. Returns the first difference, or "".

#ifndef REPRISE_ATTENTION_TESTING_DRAFT_ATTENTION_H_
#define REPRISE_ATTENTION_TESTING_DRAFT_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/attention/attention_params.h"
#include "reprise/attention/merge/common_prefix_args.h"
#include "reprise/attention/merge/merge_states_args.h"
#include "reprise/attention/metadata/batch_gather_args.h"
#include "reprise/attention/metadata/cross_batch.h"
#include "reprise/attention/metadata/local_virtual_batch_args.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/ragged_batch.h"
#include "reprise/attention/speculation/draft_rows_args.h"
#include "reprise/attention/speculation/tree_batch_args.h"
#include "reprise/base/dtype.h"
#include "reprise/cache/storage/kv_layer.h"
#include "reprise/cache/tables/convert_tables_args.h"

namespace reprise {

struct DraftAttentionTypes {
  DType q = DType::kFloat32;
  DType kv = DType::kFloat32;
};

// Attention over tensors and arrays that stay where they are.
struct AttendPlan {
  std::function<absl::Status()> run;  // builds the work map, where there is one, and attends
  std::function<void()> poison;       // the work map; or absent
};

// What runs where: host forms over host memory, or launches on LibTorch's current stream.
struct DraftAttentionDevice {
  at::Device torch = at::kCPU;
  std::function<void(const TreeBatchArgs&)> tree;
  std::function<void(const DraftRowsArgs&)> draft_rows;
  std::function<void(const LocalVirtualBatchArgs&)> local;
  std::function<void(const CrossBatchArgs&)> cross;
  std::function<void(const BatchGatherArgs&)> gather;
  std::function<void(const ConvertTablesArgs&)> convert;
  std::function<void(const CommonPrefixArgs&)> common_prefix;
  std::function<void(const MergeStatesArgs&)> merge;
  // Takes the prefix of a batch that has common_prefix_len, where it uses a work map. The tensors
  // outlive the plan.
  std::function<AttendPlan(const AttentionParams&, const PagedBatch&, const at::Tensor& q,
                           const KvLayer&, at::Tensor& out, at::Tensor& lse)>
      plan;
  std::function<AttendPlan(const AttentionParams&, const RaggedBatch&, const at::Tensor& q,
                           const at::Tensor& k, const at::Tensor& v, at::Tensor& out,
                           at::Tensor& lse)>
      plan_ragged;
  // Records a step, which has run before, and returns what runs it again and waits: the replay of a
  // captured graph, or on the CPU the same call.
  std::function<absl::StatusOr<std::function<void()>>(const std::function<absl::Status()>& step)>
      capture;
};

std::string AttendThroughChain(const DraftAttentionDevice& device, const DraftAttentionTypes& types,
                               uint64_t seed);
// Virtual rows of chunks, cut from chains: decodes, verified drafts and prompts' chunks.
std::string AttendThroughChunks(const DraftAttentionDevice& device,
                                const DraftAttentionTypes& types, uint64_t seed);
// Chains over the keys of encoders of their own.
std::string AttendThroughCross(const DraftAttentionDevice& device, const DraftAttentionTypes& types,
                               uint64_t seed);
std::string AttendThroughTree(const DraftAttentionDevice& device, const DraftAttentionTypes& types,
                              uint64_t seed);
// Trees of up to 200 nodes, most beyond the 64 of a tail mask, by packed custom masks.
std::string AttendThroughLargeTree(const DraftAttentionDevice& device,
                                   const DraftAttentionTypes& types, uint64_t seed);
// All passes of a draft model's tree in one graph, each with its attention.
std::string AttendThroughDraftLevels(const DraftAttentionDevice& device,
                                     const DraftAttentionTypes& types, uint64_t seed);
// 2..4 simulated ranks, merged; sinks once.
std::string AttendThroughRanks(const DraftAttentionDevice& device, const DraftAttentionTypes& types,
                               uint64_t seed);
// The same, with the step's own keys as a part that is not in the caches.
std::string AttendThroughContextsOfRanks(const DraftAttentionDevice& device,
                                         const DraftAttentionTypes& types, uint64_t seed);
// Rows that share their first blocks, with common_prefix_len found by the builder; with and without
// sinks and a softcap.
std::string AttendThroughSharedPrefix(const DraftAttentionDevice& device,
                                      const DraftAttentionTypes& types, uint64_t seed);
// The same as three launches: all queries over the prefix, rows over the rest of their keys, and
// the merge, at which the sinks are counted.
std::string AttendThroughPrefixApart(const DraftAttentionDevice& device,
                                     const DraftAttentionTypes& types, uint64_t seed);
// Rows gathered from arrays on the device, in every form of their lengths, with prompts, decodes
// and empty rows; over their table, or over one that is made in the step from a table of tokens.
// Entries behind a row's blocks are garbage.
std::string AttendThroughGather(const DraftAttentionDevice& device,
                                const DraftAttentionTypes& types, uint64_t seed);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_DRAFT_ATTENTION_H_
