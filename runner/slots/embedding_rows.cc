#include "reprise/runner/slots/embedding_rows.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace reprise {
namespace {

std::string PlaceName(int gpu) {
  return gpu == kHostMemory ? "the host" : absl::StrCat("GPU ", gpu);
}

}  // namespace

absl::Status CheckEmbeddingRows(std::string_view argument, const EmbeddingRows& rows,
                                const EmbeddingFormat& format) {
  const auto refuse = [&](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(argument), ": ", parts...));
  };
  if (format.dim == 0) {
    return refuse("the model takes token ids only: expected none, got ", rows.num_rows, " rows");
  }
  if (rows.num_rows < 1) return refuse("expected at least 1 row, got ", rows.num_rows);
  if (rows.dim != format.dim) return refuse("dim must be ", format.dim, ": got ", rows.dim);
  if (rows.dtype != format.dtype) {
    return refuse("dtype must be ", std::string(DTypeName(format.dtype)), ": got ",
                  std::string(DTypeName(rows.dtype)));
  }
  if (rows.gpu != kHostMemory && rows.gpu != format.gpu) {
    return refuse("rows must be in memory of ",
                  format.gpu == kHostMemory ? "" : PlaceName(format.gpu) + " or ", "the host: got ",
                  PlaceName(rows.gpu));
  }
  if (rows.row_stride < rows.dim) {
    return refuse("row_stride must be at least dim: expected at least ", rows.dim, ", got ",
                  rows.row_stride);
  }
  if (rows.data == nullptr) return refuse("data must not be null");
  return absl::OkStatus();
}

}  // namespace reprise
