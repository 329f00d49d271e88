#include "reprise/hf/tensor_names.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace reprise {
namespace {

constexpr std::string_view kModel = "model.";
constexpr std::string_view kHead = "lm_head.";
constexpr std::string_view kInnerHead = "language_model.lm_head.";

// Prefixes that stand for "model.", the most frequent one first.
constexpr std::string_view kModelForms[] = {"language_model.model.", "model.language_model.",
                                            "language_model.", "model."};

// Prefixes of modules that are no part of the language model, with or without "model." before them:
// of Gemma 3 to 4, Mistral 3, Llama 4, Qwen-VL, Qwen 3.5, Fuyu and LLaVA-NeXT.
constexpr std::string_view kOtherModalities[] = {
    "vision_tower.", "vision_model.", "visual.",       "multi_modal_projector.", "audio_tower.",
    "embed_vision.", "embed_audio.",  "image_newline", "vision_embed_tokens."};

std::string Joined(std::string_view a, std::string_view b) { return std::string(a).append(b); }

bool HasPrefix(const TensorViews& tensors, std::string_view prefix) {
  const auto first = tensors.lower_bound(prefix);
  return first != tensors.end() && first->first.starts_with(prefix);
}

bool IsOfOtherModality(std::string_view name) {
  if (name.starts_with(kModel)) name.remove_prefix(kModel.size());
  return std::any_of(std::begin(kOtherModalities), std::end(kOtherModalities),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

// Replaces the prefix `from` of `name` by `to`.
std::string Exchanged(std::string_view name, std::string_view from, std::string_view to) {
  return Joined(to, name.substr(from.size()));
}

}  // namespace

absl::StatusOr<TensorNaming> TensorNaming::Of(TensorNames names, const TensorViews& tensors) {
  TensorNaming naming;
  if (names == TensorNames::kPlain) return naming;
  naming.is_wrapped_ = true;
  std::optional<std::string_view> found;
  for (const std::string_view form : kModelForms) {
    if (!HasPrefix(tensors, Joined(form, "layers.")) &&
        !HasPrefix(tensors, Joined(form, "embed_tokens."))) {
      continue;
    }
    if (found.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the tensors of the language model must have one prefix: expected \"",
                       std::string(*found), "\" or \"", std::string(form), "\", got both"));
    }
    found = form;
  }
  naming.model_ = found.value_or(kModelForms[0]);
  const bool expects_inner_head = naming.model_ == kModelForms[0] && !HasPrefix(tensors, kHead);
  if (expects_inner_head || HasPrefix(tensors, kInnerHead)) naming.head_ = kInnerHead;
  return naming;
}

std::string TensorNaming::Published(std::string_view plain) const {
  if (plain.starts_with(kModel)) return Exchanged(plain, kModel, model_);
  if (plain.starts_with(kHead)) return Exchanged(plain, kHead, head_);
  return std::string(plain);
}

std::optional<std::string> TensorNaming::Plain(std::string_view published) const {
  if (!is_wrapped_) return std::string(published);
  if (IsOfOtherModality(published)) return std::nullopt;
  if (published.starts_with(kInnerHead)) return Exchanged(published, kInnerHead, kHead);
  if (published.starts_with(model_)) return Exchanged(published, model_, kModel);
  return std::string(published);
}

}  // namespace reprise
