#include "reprise/hf/checkpoint_reader.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"

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

// The stored rows of the part, which are contiguous in the file, as a tensor of their own. Errors:
// InvalidArgument if the tensor lacks some of them.
absl::StatusOr<TensorView> StoredRows(const TensorPart& part, TensorView view) {
  if (part.shape.empty()) return view;
  const int64_t size = NumElements(part.shape).value_or(-1);
  const int64_t stored = view.num_elements();
  if (part.first_row == 0 && size == stored) return view;
  const int64_t row_size = NumElements(absl::MakeConstSpan(part.shape).subspan(1)).value_or(-1);
  const int64_t begin = part.first_row * row_size;
  if (part.is_transposed || size < 0 || row_size < 0 || begin < 0 || begin > stored - size) {
    return absl::InvalidArgumentError(absl::StrCat(
        part.name, " must have ", ShapeString(part.shape), " from row ", part.first_row, " on",
        part.is_transposed ? " if it is transposed" : "", ": got ", ShapeString(view.shape)));
  }
  const int64_t element_bytes = SizeOf(view.type);
  return TensorView{.type = view.type,
                    .shape = part.shape,
                    .bytes = view.bytes.subspan(static_cast<size_t>(begin * element_bytes),
                                                static_cast<size_t>(size * element_bytes))};
}

}  // namespace

CheckpointReader::CheckpointReader(std::shared_ptr<const Checkpoint> checkpoint, c10::Device device,
                                   DType dtype)
    : checkpoint_(std::move(checkpoint)),
      options_(at::TensorOptions(device).dtype(ToScalarType(dtype))) {}

absl::StatusOr<at::Tensor> CheckpointReader::Add(const std::vector<TensorPart>& parts,
                                                 std::optional<DType> dtype) {
  for (const TensorPart& part : parts) {
    REPRISE_ASSIGN_OR_RETURN(const TensorView view, checkpoint_->Find(part.name));
    const std::optional<DType> stored = ToDType(view.type);
    if (!stored.has_value() || IsFp8(*stored) || view.shape.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(part.name, " must be of 16, 32 or 64 bit floats, got ",
                       std::string(StoredTypeName(view.type)), " ", ShapeString(view.shape)));
    }
  }
  return AddAs(parts, dtype.has_value() ? options_.dtype(ToScalarType(*dtype)) : options_);
}

absl::StatusOr<at::Tensor> CheckpointReader::AddFp8(const std::vector<TensorPart>& parts) {
  for (const TensorPart& part : parts) {
    REPRISE_ASSIGN_OR_RETURN(const TensorView view, checkpoint_->Find(part.name));
    if (view.type != StoredType::kFp8E4M3 || part.is_transposed) {
      return absl::InvalidArgumentError(absl::StrCat(
          part.name, " must be of fp8 (e4m3) like the weights beside it, and not transposed: got ",
          std::string(StoredTypeName(view.type)), " ", ShapeString(view.shape),
          part.is_transposed ? ", transposed" : ""));
    }
  }
  return AddAs(parts, options_.dtype(at::ScalarType::Float8_e4m3fn));
}

absl::StatusOr<at::Tensor> CheckpointReader::AddAs(const std::vector<TensorPart>& parts,
                                                   const at::TensorOptions& options) {
  std::vector<Source> sources;
  std::vector<const TensorPart*> part_of;
  int64_t num_rows = 0;
  for (const TensorPart& part : parts) {
    REPRISE_ASSIGN_OR_RETURN(TensorView stored, checkpoint_->Find(part.name));
    REPRISE_ASSIGN_OR_RETURN(const TensorView view, StoredRows(part, std::move(stored)));
    for (Source& source : SourcesOf(part, view)) {
      num_rows += source.shape[0];
      sources.push_back(std::move(source));
      part_of.push_back(&part);
    }
  }
  if (sources.size() == 1 && !parts[0].unzipped_head.has_value() && !parts[0].is_transposed &&
      !sources[0].columns.has_value()) {
    if (std::optional<at::Tensor> mapped = Mapped(sources[0].view, options)) {
      return *std::move(mapped);
    }
  }
  std::vector<int64_t> shape = sources[0].shape;
  shape[0] = num_rows;
  const at::Tensor tensor = at::empty(shape, options);
  if (options.device().is_cpu()) PreferHugePages(tensor);
  int64_t row = 0;
  for (size_t i = 0; i < sources.size(); ++i) {
    views_.push_back(std::move(sources[i].view));
    copies_.push_back({.source = &views_.back(),
                       .target = tensor.narrow(0, row, sources[i].shape[0]),
                       .is_transposed = part_of[i]->is_transposed,
                       .unzipped_head = part_of[i]->unzipped_head,
                       .kept_rows = part_of[i]->kept_rows,
                       .columns = sources[i].columns});
    row += sources[i].shape[0];
  }
  return tensor;
}

std::vector<CheckpointReader::Source> CheckpointReader::SourcesOf(const TensorPart& part,
                                                                  const TensorView& view) {
  const std::vector<int64_t>& shape = part.shape.empty() ? view.shape : part.shape;
  const auto whole = [](const std::optional<Share>& share, int64_t size) {
    return !share.has_value() || *share == Share{0, size};
  };
  const int64_t period = part.period > 0 ? part.period : shape[0];
  if (whole(part.rows, period) && (shape.size() < 2 || whole(part.columns, shape[1]))) {
    Source all = {.view = view, .shape = shape};
    // Rows to unzip are rows of the target.
    if (!part.is_transposed) all.view.shape = shape;
    return {std::move(all)};
  }
  // Rows of the file follow each other: a part of them is a shorter tensor.
  const auto lines_of = [&](int64_t begin, std::vector<int64_t> lines) {
    const int64_t line_bytes =
        NumElements(lines).value_or(0) / std::max<int64_t>(1, lines[0]) * SizeOf(view.type);
    return TensorView{.type = view.type,
                      .shape = lines,
                      .bytes = view.bytes.subspan(static_cast<size_t>(begin * line_bytes),
                                                  static_cast<size_t>(lines[0] * line_bytes))};
  };
  const Share rows = part.rows.value_or(Share{0, period});
  std::vector<Source> sources;
  for (int64_t first = 0; first < shape[0]; first += period) {
    Source source = {.view = {}, .shape = shape};
    source.shape[0] = rows.size;
    if (part.is_transposed) {
      // The file's lines are columns here, and its columns are rows.
      const Share lines = part.columns.value_or(Share{0, shape[1]});
      const int64_t stored = view.shape.back();
      const Share own = {first % stored + rows.begin, rows.size};
      source.view = lines_of(first / stored * shape[1] + lines.begin, {lines.size, stored});
      if (!whole(own, stored)) source.columns = own;
      source.shape[1] = lines.size;
    } else {
      std::vector<int64_t> lines = shape;
      lines[0] = rows.size;
      source.view = lines_of(first + rows.begin, std::move(lines));
      if (part.columns.has_value() && !whole(part.columns, shape[1])) {
        source.columns = part.columns;
        source.shape[1] = part.columns->size;
      }
    }
    sources.push_back(std::move(source));
  }
  return sources;
}

std::optional<at::Tensor> CheckpointReader::Mapped(const TensorView& view,
                                                   const at::TensorOptions& wanted) const {
  const auto options = at::TensorOptions().dtype(ToScalarType(*ToDType(view.type)));
  if (!wanted.device().is_cpu() || options.dtype() != wanted.dtype() || !view.IsAligned()) {
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
