// Unstable: any version may change this header (docs/embedding.md).
//
// The weights of a Hugging Face model folder, in one file or in several.
//
//   REPRISE_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open("models/jargon-llama"));
//   REPRISE_ASSIGN_OR_RETURN(TensorView norm, checkpoint.Find("model.norm.weight"));
//
// Thread safety: as any const object. Views live as long as the checkpoint, also when it is moved.
// Cost: as safetensors.h; the files stay mapped, and bytes that are not accessed are not read.

#ifndef REPRISE_HF_CHECKPOINT_H_
#define REPRISE_HF_CHECKPOINT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/hf/safetensors.h"
#include "reprise/hf/tensor_view.h"

namespace reprise {

class Checkpoint {
 public:
  // Opens the files that <folder>/model.safetensors.index.json names, or <folder>/model.safetensors
  // if there is no index. A folder with both is read by its index if all files that the index names
  // exist, because the other file is then an adapter or left over; otherwise by the lone file. A
  // folder that is read by its index has the tensors of the "weight_map" and their duplicates
  // (ParseSafetensors()), and no other tensor of the files.
  // Errors:
  //   NotFound         there is neither; a file that the index names is missing
  //   InvalidArgument  a file is not a sound safetensors file; the index is not a JSON object whose
  //                    weight_map maps names of tensors to files of this folder ("../x" and "/x"
  //                    are none); a tensor is not in the file that the index says
  //   others           as MappedFile::Open()
  static absl::StatusOr<Checkpoint> Open(const std::string& folder);

  // Errors: NotFound, naming the tensor and the folder.
  absl::StatusOr<TensorView> Find(std::string_view name) const;

  // All tensors by name.
  const TensorViews& tensors() const { return tensors_; }

  // Copies bytes of a tensor, from its byte `begin` on, as MappedFile::Read(). REQUIRES: `tensor`
  // is one of tensors(), and the bytes are its own.
  absl::Status Read(const TensorView& tensor, int64_t begin, absl::Span<char> out) const;

  const std::string& folder() const { return folder_; }

 private:
  Checkpoint(std::string folder, std::vector<SafetensorsFile> files, TensorViews tensors);

  std::string folder_;
  std::vector<SafetensorsFile> files_;
  TensorViews tensors_;  // into files_
};

}  // namespace reprise

#endif  // REPRISE_HF_CHECKPOINT_H_
