// Attention through the builders of gathered, speculative, chunked, cross and context-parallel
// batches, and over a shared prefix. Compares with a dense float64 computation over the keys that
// each query sees by definition. One suite for the CPU and GPUs.
//
//   DraftAttentionDevice device = {.torch = at::kCPU, .chain = ..., .plan = ..., .capture = ...};
//   EXPECT_EQ(AttendThroughTree(device, {.q = DType::kBFloat16, .kv = DType::kFp8E4M3}, seed), "");
//
// Each function draws a shape and a layer from its seed. A step runs the builders, the tile
// schedule and the attention, over memory that stays in place. The step first runs eagerly. It is
// then captured as one graph and replayed over other contents: lengths, tables, trees, masks, keys
// and values. Keys are stored at the slots given by the definition; all other slots hold NaN.
// Returns the first difference, or an empty string.

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

// Attention over tensors and arrays that stay in place.
struct AttendPlan {
  std::function<absl::Status()>
      run;                       // builds the tile schedule, if any, and computes the attention
  std::function<void()> poison;  // poisons the tile schedule; may be empty
};

// The functions of a device: host forms over host memory, or launches on LibTorch's current stream.
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
  // If it uses a tile schedule, reads the common prefix of a batch with common_prefix_len once. The
  // tensors outlive the plan.
  std::function<AttendPlan(const AttentionParams&, const PagedBatch&, const at::Tensor& q,
                           const KvLayer&, at::Tensor& out, at::Tensor& lse)>
      plan;
  std::function<AttendPlan(const AttentionParams&, const RaggedBatch&, const at::Tensor& q,
                           const at::Tensor& k, const at::Tensor& v, at::Tensor& out,
                           at::Tensor& lse)>
      plan_ragged;
  // Records a step that has run before. Returns a function that runs the step again and waits: the
  // replay of a captured graph, or on the CPU the same call.
  std::function<absl::StatusOr<std::function<void()>>(const std::function<absl::Status()>& step)>
      capture;
};

std::string AttendThroughChain(const DraftAttentionDevice& device, const DraftAttentionTypes& types,
                               uint64_t seed);
// Virtual rows of chunks, cut from chains: decodes, draft verification and prompt chunks.
std::string AttendThroughChunks(const DraftAttentionDevice& device,
                                const DraftAttentionTypes& types, uint64_t seed);
// Chains whose rows attend to the keys of separate encoders.
std::string AttendThroughCross(const DraftAttentionDevice& device, const DraftAttentionTypes& types,
                               uint64_t seed);
std::string AttendThroughTree(const DraftAttentionDevice& device, const DraftAttentionTypes& types,
                              uint64_t seed);
// Trees of up to 200 nodes. Most exceed the 64 nodes of a tail mask and use packed custom masks.
std::string AttendThroughLargeTree(const DraftAttentionDevice& device,
                                   const DraftAttentionTypes& types, uint64_t seed);
// All passes of a draft model's tree in one graph, each with its attention.
std::string AttendThroughDraftLevels(const DraftAttentionDevice& device,
                                     const DraftAttentionTypes& types, uint64_t seed);
// 2 to 4 simulated ranks with merged results; sinks are counted once.
std::string AttendThroughRanks(const DraftAttentionDevice& device, const DraftAttentionTypes& types,
                               uint64_t seed);
// Like AttendThroughRanks(), but the step's new keys are a separate part that is not in the caches.
std::string AttendThroughContextsOfRanks(const DraftAttentionDevice& device,
                                         const DraftAttentionTypes& types, uint64_t seed);
// Rows that share their first blocks, with common_prefix_len found by the builder. With and without
// sinks and softcap.
std::string AttendThroughSharedPrefix(const DraftAttentionDevice& device,
                                      const DraftAttentionTypes& types, uint64_t seed);
// Like AttendThroughSharedPrefix(), in three launches: all queries over the prefix, rows over their
// other keys, and the merge, which counts the sinks.
std::string AttendThroughPrefixApart(const DraftAttentionDevice& device,
                                     const DraftAttentionTypes& types, uint64_t seed);
// Rows gathered from arrays on the device, in every form of their lengths, with prompts, decodes
// and empty rows. Uses the rows' table, or a table that the step converts from a token table.
// Entries after a row's blocks are garbage.
std::string AttendThroughGather(const DraftAttentionDevice& device,
                                const DraftAttentionTypes& types, uint64_t seed);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_DRAFT_ATTENTION_H_
