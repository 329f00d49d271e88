// Copies the inputs of an attention plan, from the host or the device, to fixed addresses that
// captured graphs read. Used by PlannedAttention (attention/planned_attention.h).
//
//   PlanInputSpace space({.max_rows = 8, .max_tokens = 8, .max_seq_len = 4096, .block_size = 16});
//   at::Tensor memory = at::empty({space.num_bytes()}, bytes_on_the_device);
//   REPRISE_ASSIGN_OR_RETURN(PlanShape shape, space.Check(inputs, memory.device()));
//   REPRISE_RETURN_IF_ERROR(space.Copy(inputs, shape, memory, stream));
//   PagedBatch batch = space.BatchOf(shape, memory);
//
// Thread safety: const data except for the memory. Does not synchronise.

#ifndef REPRISE_ATTENTION_PLAN_INPUTS_H_
#define REPRISE_ATTENTION_PLAN_INPUTS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/cache/tables/block_table_view.h"
#include "reprise/cache/tables/convert_tables_args.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Inputs of a plan: int32 unless stated otherwise, each on the host or on the device, with any
// strides. The table is either padded or packed (cache/tables/block_table_view.h).
struct PlanInputs {
  std::optional<at::Tensor> seq_lens = {};     // [num_rows]; required with block_table
  std::optional<at::Tensor> block_table = {};  // [num_rows, columns]

  std::optional<at::Tensor> block_indptr = {};    // [num_rows + 1]
  std::optional<at::Tensor> block_indices = {};   // [any]
  std::optional<at::Tensor> last_block_len = {};  // [num_rows]

  std::optional<at::Tensor> query_start_loc = {};  // [num_rows + 1]; absent: one query per row
  // The keys that each query sees, as packed bits (attention/paged_batch.h): [any] uint8. The
  // offset, [num_rows] int64, is the byte at which a row's bits begin, or -1 for a row without a
  // mask (causal if PlannedAttentionOptions::causal). Give both or neither. Requires
  // max_custom_mask_bytes > 0.
  std::optional<at::Tensor> custom_mask = {};
  std::optional<at::Tensor> custom_mask_offset = {};

  // Rows of q; the batch may use fewer. Absent: num_rows if query_start_loc is absent too;
  // otherwise the last element of query_start_loc if that is on the host, and max_tokens if it is
  // on the device.
  std::optional<int> num_tokens = {};
};

struct PlanCapacities {
  int max_rows = 0;
  int max_tokens = 0;
  int max_query_len = 1;
  int max_seq_len = 0;
  int block_size = 1;
  // for packed tables; absent: enough for max_rows full rows
  std::optional<int64_t> max_block_indices = {};
  int64_t max_custom_mask_bytes = 0;  // 0: batches have no custom masks
};

struct PlanShape {
  int num_rows = 0;
  int num_tokens = 0;
  friend bool operator==(const PlanShape&, const PlanShape&) = default;
};

class PlanInputSpace {
 public:
  // REQUIRES: capacities are not negative; block_size >= 1.
  explicit PlanInputSpace(const PlanCapacities& capacities);

  int64_t num_bytes() const { return 4 * size_; }

  // Checks that the inputs are complete, fit the capacities, and are on the host or on `device`,
  // and that query_start_loc, mask offsets, and the lengths of padded tables are in range if they
  // are on the host. Errors: InvalidArgument naming the array.
  absl::StatusOr<PlanShape> Check(const PlanInputs& inputs, at::Device device) const;

  // Copies checked inputs into `memory`, [>= num_bytes] uint8 on the device. Host inputs are copied
  // to a GPU through LibTorch's pinned memory, which LibTorch keeps until the copy has run. Device
  // inputs are copied in the order of the current stream, which must be `stream`. May be captured
  // if no input is on the host. Errors: InvalidArgument for an invalid packed table on the host;
  // then nothing is copied. If any array of a packed table is on the device, an invalid row becomes
  // an empty row instead.
  absl::Status Copy(const PlanInputs& inputs, const PlanShape& shape, const at::Tensor& memory,
                    CUstream_st* stream) const;

  // The batch over the copied inputs.
  PagedBatch BatchOf(const PlanShape& shape, const at::Tensor& memory) const;

 private:
  absl::Status CheckTable(const PlanInputs& inputs, int64_t num_rows) const;
  absl::Status CheckMask(const PlanInputs& inputs, int64_t num_rows) const;
  void CopyMask(const PlanInputs& inputs, const PlanShape& shape, const at::Tensor& arrays) const;
  absl::Status CheckLengthsOnHost(const PlanInputs& inputs, int64_t num_rows) const;
  // Arguments that convert a packed table to a padded table of max_blocks_ columns.
  ConvertTablesArgs Unpacking(const PackedBlockTable& packed, int32_t* entries,
                              int32_t* seq_lens) const;
  absl::Status CopyPackedFromHost(const PlanInputs& inputs, const PlanShape& shape,
                                  const at::Tensor& arrays) const;
  absl::Status Unpack(const PlanInputs& inputs, const PlanShape& shape, const at::Tensor& arrays,
                      CUstream_st* stream) const;

  const PlanCapacities capacities_;
  const int max_blocks_;  // per row
  const int64_t max_block_indices_;
  // Offsets of the arrays, in 4-byte elements.
  int64_t query_start_loc_ = 0;  // [max_rows + 1]
  int64_t seq_lens_ = 0;         // [max_rows]
  int64_t block_table_ = 0;      // [max_rows, max_blocks]
  int64_t block_indptr_ = 0;     // [max_rows + 1]
  int64_t last_block_len_ = 0;   // [max_rows]
  int64_t block_indices_ = 0;    // [max_block_indices]
  int64_t mask_offset_ = 0;      // [max_rows] int64
  int64_t mask_ = 0;             // [max_custom_mask_bytes] uint8
  int64_t size_ = 0;
};

// The name of the first input on the host; null if all inputs are on the device.
const char* FirstInputOnHost(const PlanInputs& inputs);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_PLAN_INPUTS_H_
