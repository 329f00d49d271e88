// A single sequence over contiguous keys and values (attention/contiguous_decode.h). Its contents
// change in place, for tests of a call that runs repeatedly, like a captured graph.
//
//   ContiguousCase decode({.device = at::kCUDA, .kv_dtype = DType::kFp8E4M3, .is_hnd = true});
//   ... capture: LaunchTileSchedule(decode.batch(), ...), decode.Run(work) ...
//   decode.Write(300, 4);   // 300 keys, 4 queries; other keys and scales
//   ... replay ...
//   EXPECT_LT(decode.Error(), 1e-5);
//
// If keys are fp8, each KV head has separate scales, in memory.
//
// Thread safety: not thread-safe; one owner.

#ifndef REPRISE_ATTENTION_TESTING_CONTIGUOUS_CASE_H_
#define REPRISE_ATTENTION_TESTING_CONTIGUOUS_CASE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/attention/attention_extras.h"
#include "reprise/attention/attention_params.h"
#include "reprise/attention/ragged_batch.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/attention/tile_schedule/tile_schedule_plan.h"
#include "reprise/base/dtype.h"

namespace reprise {

struct ContiguousCaseOptions {
  at::Device device = at::kCPU;
  DType q_dtype = DType::kFloat32;  // dtype of q and out
  DType kv_dtype = DType::kFloat32;
  bool is_hnd = false;
  int capacity = 40;
  int max_query_len = 1;
  int num_kv_heads = 2;
  int group_size = 3;
  int head_dim = 64;
};

class ContiguousCase {
 public:
  explicit ContiguousCase(const ContiguousCaseOptions& options);

  // Writes new queries, keys, values and, for fp8 keys, scales in place. Fills out and the keys and
  // values after num_keys with NaN. REQUIRES: 1 <= num_queries <= max_query_len; num_queries <=
  // num_keys <= capacity.
  void Write(int num_keys, int num_queries);

  // Runs the call, with the same arguments each time.
  absl::Status Run(const BatchSchedule& work);

  // Returns the largest error of out against the float64 definition. Covers the queries of the last
  // Write() and the later tokens, whose out must be 0. Infinite if out has a NaN. Waits.
  double Error() const;

  const RaggedBatch& batch() const { return batch_; }
  const AttentionParams& layer() const { return layer_; }
  TileScheduleOptions tile_schedule_options() const;

 private:
  bool is_quantised() const { return IsFp8(options_.kv_dtype); }
  // Fills `memory`, [capacity, kv heads, head_dim], with `num_keys` random keys that are multiples
  // of `scales`. Returns the values of the keys in float64.
  at::Tensor WriteKeys(at::Tensor& memory, at::Tensor& scales, int num_keys);

  ContiguousCaseOptions options_;
  AttentionParams layer_;
  at::Tensor q_;         // [max_query_len, q heads, head_dim]
  at::Tensor k_memory_;  // [capacity, kv heads, head_dim], HND: [kv heads, capacity, head_dim]
  at::Tensor v_memory_;
  at::Tensor k_scales_;  // [kv heads] float32
  at::Tensor v_scales_;
  at::Tensor out_;
  at::Tensor bounds_;  // [4] int32
  RaggedBatch batch_;
  // State of the last Write().
  int num_queries_ = 0;
  at::Tensor keys_;    // [num_keys, kv heads, head_dim] float64
  at::Tensor values_;  // [num_keys, kv heads, head_dim] float64
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_CONTIGUOUS_CASE_H_
