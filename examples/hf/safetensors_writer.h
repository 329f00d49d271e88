// Unstable: any version may change this header (docs/embedding.md).
//
// Writes a safetensors file: the other half of safetensors.h, for results that another program
// reads.
//
//   std::vector<TensorToWrite> tensors = {{"logits_0", {StoredType::kFloat32, {40, 256}, bytes}}};
//   REPRISE_RETURN_IF_ERROR(WriteSafetensors("logits.safetensors", tensors));

#ifndef REPRISE_HF_SAFETENSORS_WRITER_H_
#define REPRISE_HF_SAFETENSORS_WRITER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "reprise/hf/tensor_view.h"

namespace reprise {

struct TensorToWrite {
  std::string name;
  // In the machine's byte order, which is little-endian on all supported machines.
  TensorView tensor;
};

// Makes or replaces the file `path` atomically: on failure it is unchanged. The bytes go to a new
// file in the same folder, which is then renamed, so a reader of the old file keeps the old
// content. Tensors are laid out widest element first, then by name, so that each is aligned to its
// elements (the header is padded to 8 bytes).
// Errors:
//   InvalidArgument  a name occurs twice, is "__metadata__" or is not UTF-8; a tensor's bytes are
//                    not those of its type and shape; `path` exists and is not a file
//   Internal         the system could not write, in its words
absl::Status WriteSafetensors(const std::string& path, absl::Span<const TensorToWrite> tensors);

}  // namespace reprise

#endif  // REPRISE_HF_SAFETENSORS_WRITER_H_
