// Unstable: any version may change this header (docs/embedding.md).
//
// Names of tensors in wrapped checkpoints, whose decoder is a part of a larger model: a vision
// tower, a projector, and a language model described by "text_config" (text_config.h).
//
//   REPRISE_ASSIGN_OR_RETURN(TensorNaming naming,
//                            TensorNaming::Of(TensorNames::kWrapped, checkpoint.tensors()));
//   naming.Published("model.norm.weight");       // "language_model.model.norm.weight"
//   naming.Plain("vision_tower.ln_pre.weight");  // nullopt
//
// A plain decoder has the names "model.*" and "lm_head.*". A wrapped one has them in one of these
// forms, several of which occur for one class:
//
//   of "model."              of "lm_head."              in files
//   language_model.model.    language_model.lm_head.    of transformers before 4.52: Gemma 3
//   model.language_model.    lm_head.                   of later ones: Qwen3-VL, Gemma 4
//   language_model.          lm_head.                   of a class without a head: Gemma3Model
//   model.                   lm_head.                   of Qwen2-VL
//
// The two columns are independent.
//
// Other tensors, as "mtp.*", have the same name in both. Source: conversion_mapping.py of
// transformers 5. Thread safety: as any const object.

#ifndef REPRISE_HF_TENSOR_NAMES_H_
#define REPRISE_HF_TENSOR_NAMES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "reprise/hf/safetensors.h"

namespace reprise {

enum class TensorNames : int8_t {
  kPlain,    // the names of a plain decoder
  kWrapped,  // one of the forms above; tensors of other modalities are skipped
};

// Maps the names of a plain decoder to the names of one checkpoint, and back. The default is the
// identity.
class TensorNaming {
 public:
  TensorNaming() = default;

  // The naming of a checkpoint with these tensors. A wrapped one without any layer or embedding is
  // taken for the first form. Errors: InvalidArgument if it has the layers or the embedding in two
  // forms.
  static absl::StatusOr<TensorNaming> Of(TensorNames names, const TensorViews& tensors);

  // Returns the checkpoint's name of a plain decoder's tensor or prefix ("model.layers.0.").
  std::string Published(std::string_view plain) const;

  // Returns the name that a plain decoder would have for a tensor of the checkpoint; nullopt if the
  // tensor belongs to another modality. Not always the inverse of Published(): if the checkpoint
  // has "model.language_model.x", a stray "model.x" has the same plain name.
  std::optional<std::string> Plain(std::string_view published) const;

 private:
  bool is_wrapped_ = false;
  // The checkpoint's prefixes for "model." and "lm_head.".
  std::string_view model_ = "model.";
  std::string_view head_ = "lm_head.";
};

}  // namespace reprise

#endif  // REPRISE_HF_TENSOR_NAMES_H_
