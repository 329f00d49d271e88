#include "examples/hf/checkpoint_reader.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/torch_dtype.h"

namespace reprise {
namespace {

// Requests huge pages for the tensor's memory where the system supports them: the first write to
// each page is the largest cost of filling fresh memory, and products read weights with fewer
// misses of the TLB. A hint; nothing depends on it.
void PreferHugePages(const at::Tensor& tensor) {
  static const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  const uintptr_t first = (begin + page - 1) / page * page;
  const uintptr_t last = (begin + tensor.nbytes()) / page * page;
  if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

}  // namespace

CheckpointReader::CheckpointReader(std::shared_ptr<const Checkpoint> checkpoint, c10::Device device,
                                   DType dtype)
    : checkpoint_(std::move(checkpoint)),
      options_(at::TensorOptions(device).dtype(ToScalarType(dtype))) {}

absl::StatusOr<at::Tensor> CheckpointReader::Add(const std::vector<TensorPart>& parts) {
  std::vector<const TensorView*> views;
  std::vector<std::vector<int64_t>> shapes;
  int64_t num_rows = 0;
  for (const TensorPart& part : parts) {
    REPRISE_ASSIGN_OR_RETURN(TensorView view, checkpoint_->Find(part.name));
    const std::optional<DType> dtype = ToDType(view.type);
    if (!dtype.has_value() || IsFp8(*dtype) || view.shape.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(part.name, " must be of 16, 32 or 64 bit floats, got ",
                       std::string(StoredTypeName(view.type)), " ", ShapeString(view.shape)));
    }
    shapes.push_back(part.shape.empty() ? view.shape : part.shape);
    num_rows += shapes.back()[0];
    // Rows to unzip are rows of the target.
    if (!part.is_transposed) view.shape = shapes.back();
    views_.push_back(std::move(view));
    views.push_back(&views_.back());
  }
  if (parts.size() == 1 && !parts[0].unzipped_head.has_value() && !parts[0].is_transposed) {
    if (std::optional<at::Tensor> mapped = Mapped(*views[0])) return *std::move(mapped);
  }
  std::vector<int64_t> shape = shapes[0];
  shape[0] = num_rows;
  const at::Tensor tensor = at::empty(shape, options_);
  if (options_.device().is_cpu()) PreferHugePages(tensor);
  int64_t row = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    copies_.push_back({.source = views[i],
                       .target = tensor.narrow(0, row, shapes[i][0]),
                       .is_transposed = parts[i].is_transposed,
                       .unzipped_head = parts[i].unzipped_head,
                       .kept_rows = parts[i].kept_rows});
    row += shapes[i][0];
  }
  return tensor;
}

std::optional<at::Tensor> CheckpointReader::Mapped(const TensorView& view) const {
  const auto options = at::TensorOptions().dtype(ToScalarType(*ToDType(view.type)));
  if (!options_.device().is_cpu() || options.dtype() != options_.dtype() || !view.IsAligned()) {
    return std::nullopt;
  }
  // LibTorch has no tensors of constant memory; weights are never written.
  void* const data = const_cast<char*>(view.bytes.data());
  return at::from_blob(
      data, view.shape, [kept = checkpoint_](void*) {}, options);
}

absl::Status CheckpointReader::Run(const TensorCopyOptions& options) {
  const absl::Status status = RunTensorCopies(*checkpoint_, copies_, options);
  copies_.clear();
  views_.clear();
  return status;
}

absl::StatusOr<DType> ChooseDType(const Checkpoint& checkpoint, std::string_view tensor,
                                  std::optional<DType> wanted) {
  if (!wanted.has_value()) {
    REPRISE_ASSIGN_OR_RETURN(const TensorView view, checkpoint.Find(tensor));
    wanted = ToDType(view.type);
    if (wanted == DType::kFloat64) wanted = DType::kFloat32;
  }
  if (wanted == DType::kFloat32 || wanted == DType::kFloat16 || wanted == DType::kBFloat16) {
    return *wanted;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("dtype must be float32, float16 or bfloat16: got ",
                   wanted.has_value() ? std::string(DTypeName(*wanted)) : "integers"));
}

}  // namespace reprise
