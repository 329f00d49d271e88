// Builds batches over contiguous keys from lengths on the GPU, like BuildRaggedBatch()
// (attention/metadata/ragged_builder.h). Torch-free.
//
//   RaggedGather gather{.lens = lens, .kind = RaggedKind::kEncoder, .num_rows = 8,
//                       .num_tokens = 4096, .max_len = 1500, ...};
//   const RaggedBatch batch = BatchOver(gather);   // once per shape
//   LaunchRaggedGather(gather, stream);            // each step, may be captured

#ifndef ATTENTION_METADATA_RAGGED_BUILDER_KERNEL_H_
#define ATTENTION_METADATA_RAGGED_BUILDER_KERNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "attention/metadata/ragged_builder.h"
#include "attention/ragged_batch.h"

namespace reprise {

struct RaggedGather {
  const int32_t* lens = nullptr;  // [num_rows]
  RaggedKind kind = RaggedKind::kEncoder;
  int num_rows = 0;  // constant under capture, like the next two
  int num_tokens = 0;
  int max_len = 0;
  int32_t* query_start_loc = nullptr;  // [num_rows + 1]
  int32_t* key_start_loc = nullptr;    // [num_rows + 1]
  int32_t* positions = nullptr;        // [num_tokens]
  int64_t* slot_mapping = nullptr;     // [num_tokens] or absent
  int32_t* num_faults = nullptr;       // [1]
};

// The batch over the buffers.
inline RaggedBatch BatchOver(const RaggedGather& gather) {
  return {.query_start_loc = gather.query_start_loc,
          .key_start_loc = gather.key_start_loc,
          .causal = gather.kind != RaggedKind::kEncoder,
          .num_rows = gather.num_rows,
          .num_tokens = gather.num_tokens,
          .num_keys = gather.num_tokens,
          .max_query_len = gather.max_len,
          .max_seq_len = gather.kind == RaggedKind::kProfileZeros ? 0 : gather.max_len};
}

// A row whose length is outside 0 .. max_len, or whose tokens exceed num_tokens after those of the
// good rows before it (then all later rows too), becomes an empty row and is counted in
// num_faults. Outputs overlap no input. No synchronisation. Errors: cudaErrorInvalidValue for an
// absent array or a negative size.
cudaError_t LaunchRaggedGather(const RaggedGather& gather, cudaStream_t stream);

}  // namespace reprise

#endif  // ATTENTION_METADATA_RAGGED_BUILDER_KERNEL_H_
