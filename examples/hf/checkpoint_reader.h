// Unstable: any version may change this header (docs/embedding.md).
//
// Tensors of a checkpoint as tensors of a device: request all with Add(), then read all at once
// with Run().
//
//   CheckpointReader reader(checkpoint, c10::kCUDA, DType::kBFloat16);
//   REPRISE_ASSIGN_OR_RETURN(at::Tensor norm, reader.Add({{"model.norm.weight"}}));
//   REPRISE_ASSIGN_OR_RETURN(at::Tensor qkv, reader.Add({{q_name}, {k_name}, {v_name}}));
//   REPRISE_RETURN_IF_ERROR(reader.Run({}));  // now they have values
//
// Thread safety: none.

#ifndef REPRISE_HF_CHECKPOINT_READER_H_
#define REPRISE_HF_CHECKPOINT_READER_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/base/dtype.h"
#include "reprise/distributed/share.h"
#include "reprise/hf/checkpoint.h"
#include "reprise/hf/tensor_copies.h"

namespace reprise {

// A tensor of the checkpoint that becomes rows of another.
struct TensorPart {
  std::string name;
  // As in TensorCopy.
  std::optional<int> unzipped_head = {};
  int kept_rows = 0;
  // The shape of the part, [num_rows, ...]. Empty: the tensor's own shape. If the part has fewer
  // elements than the tensor, it is rows [first_row, first_row + num_rows) of the tensor, and the
  // other members apply to these rows. REQUIRES: a transposed part is the whole tensor.
  std::vector<int64_t> shape = {};
  int64_t first_row = 0;
  // As in TensorCopy. REQUIRES: at least two dimensions in the checkpoint.
  bool is_transposed = false;
  // A part of the rows: of each `period` rows (0: of all), those of `rows`. A transposed tensor's
  // period divides its last dimension. unzipped_head counts the rows that are left.
  std::optional<Share> rows = {};
  int64_t period = 0;
  // A part of each row, for rows of one dimension: nothing else is read. nullopt: all of it.
  std::optional<Share> columns = {};
};

class CheckpointReader {
 public:
  // dtype: float32, float16 or bfloat16.
  CheckpointReader(std::shared_ptr<const Checkpoint> checkpoint, c10::Device device, DType dtype);

  // Concatenates the parts along dimension 0 in one tensor of `dtype` (nullopt: the reader's
  // dtype). Run() sets its values. On the CPU, a single part that has this dtype and its rows in
  // order stays in the mapped file, which lives as long as the tensor. REQUIRES: parts are not
  // empty, and alike but for their first dimension. Errors: NotFound, naming the tensor;
  // InvalidArgument if the tensor is not of 16, 32 or 64 bit floats, or has fewer rows than a part
  // takes. Throws LibTorch's exceptions.
  absl::StatusOr<at::Tensor> Add(const std::vector<TensorPart>& parts,
                                 std::optional<DType> dtype = std::nullopt);

  // The same of parts of fp8 values (e4m3), which stay as they are. Errors: NotFound;
  // InvalidArgument if a part has another type or is transposed, or takes absent rows.
  absl::StatusOr<at::Tensor> AddFp8(const std::vector<TensorPart>& parts);

  // Reads everything that was added. Errors: those of RunTensorCopies().
  absl::Status Run(const TensorCopyOptions& options);

 private:
  struct Source {
    TensorView view;
    std::optional<Share> columns = {};  // as in TensorCopy
    std::vector<int64_t> shape;         // of its rows of the target
  };

  // What is to be copied of the tensor `view`, one after the other.
  static std::vector<Source> SourcesOf(const TensorPart& part, const TensorView& view);
  // Errors: as Add(), without the check of types.
  absl::StatusOr<at::Tensor> AddAs(const std::vector<TensorPart>& parts,
                                   const at::TensorOptions& options);
  // A tensor over the file's memory, if that is possible.
  std::optional<at::Tensor> Mapped(const TensorView& view, const at::TensorOptions& wanted) const;

  std::shared_ptr<const Checkpoint> checkpoint_;
  at::TensorOptions options_;
  std::deque<TensorView> views_;  // what copies_ point to
  std::vector<TensorCopy> copies_;
};

// The dtype to read the weights into: `wanted`, or else the type of `tensor`, where float64 becomes
// float32. Errors: NotFound if the tensor does not exist; InvalidArgument for a dtype that is not
// float32, float16 or bfloat16.
absl::StatusOr<DType> ChooseDType(const Checkpoint& checkpoint, std::string_view tensor,
                                  std::optional<DType> wanted);

}  // namespace reprise

#endif  // REPRISE_HF_CHECKPOINT_READER_H_
