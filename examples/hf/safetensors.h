// Unstable: any version may change this header (docs/embedding.md).
//
// One safetensors file, read in place. The format: 8 bytes that hold the length of a header
// (little-endian), the header in JSON, and the tensors' bytes; see
// https://huggingface.co/docs/safetensors.
//
//   REPRISE_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open("model.safetensors"));
//   REPRISE_ASSIGN_OR_RETURN(TensorView weight, file.Find("model.norm.weight"));
//
// The whole header is checked when the file is opened, so that a view never reaches outside the
// file and no two tensors of the header share bytes; checkpoint.h reads a model whose weights are
// spread over several files.
// Thread safety: as any const object. Views live as long as the file object, also when it is moved.
// Cost: opening reads the header only; weights are read from the disk when they are accessed.

#ifndef REPRISE_HF_SAFETENSORS_H_
#define REPRISE_HF_SAFETENSORS_H_

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/hf/mapped_file.h"
#include "reprise/hf/tensor_view.h"

namespace reprise {

using TensorViews = std::map<std::string, TensorView, std::less<>>;

// The tensors of a file whose content is `bytes`; the views point into it. Writers store tensors
// that share memory once, and name the duplicates in the metadata: {"lm_head.weight":
// "model.embed_tokens.weight"}. A duplicate is a tensor here, too, with the bytes of the stored
// one. Other metadata is checked and dropped.
//
// Errors: InvalidArgument, with the tensor's name where possible, unless
//   1. the header's length is at most 100 MB (the format's limit) and within the file;
//   2. the header is a JSON object, beginning with '{', no name twice, followed at most by white
//      space;
//   3. "__metadata__", if there, maps strings to strings; every other member is exactly
//      {"dtype", "shape", "data_offsets"} with a dtype of ParseStoredType() and at most 64
//      dimensions;
//   4. data_offsets span exactly the bytes that dtype and shape require;
//   5. the tensors together cover the bytes after the header: no overlap, no gap, nothing left
//      over.
absl::StatusOr<TensorViews> ParseSafetensors(absl::Span<const char> bytes);

class SafetensorsFile {
 public:
  // Errors: those of MappedFile::Open() and ParseSafetensors(), naming `path`.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  // Errors: NotFound, naming the tensor and the file.
  absl::StatusOr<TensorView> Find(std::string_view name) const;

  // All tensors by name.
  const TensorViews& tensors() const { return tensors_; }

  // The file itself, into which the views point.
  const MappedFile& file() const { return file_; }

  const std::string& path() const { return file_.path(); }

 private:
  SafetensorsFile(MappedFile file, TensorViews tensors);

  MappedFile file_;
  TensorViews tensors_;
};

}  // namespace reprise

#endif  // REPRISE_HF_SAFETENSORS_H_
