#include "reprise/attention/attention_kind.h"

#include <glog/logging.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace reprise {
namespace {

constexpr AttentionKind kKinds[] = {AttentionKind::kDecoder, AttentionKind::kEncoder,
                                    AttentionKind::kEncoderOnly, AttentionKind::kEncoderDecoder};

}  // namespace

std::string_view AttentionKindName(AttentionKind kind) {
  switch (kind) {
    case AttentionKind::kDecoder:
      return "decoder";
    case AttentionKind::kEncoder:
      return "encoder";
    case AttentionKind::kEncoderOnly:
      return "encoder-only";
    case AttentionKind::kEncoderDecoder:
      return "encoder-decoder";
  }
  LOG(FATAL) << "unknown AttentionKind: " << static_cast<int>(kind);
}

absl::StatusOr<AttentionKind> ParseAttentionKind(std::string_view name) {
  for (AttentionKind kind : kKinds) {
    if (AttentionKindName(kind) == name) return kind;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "kind of attention: expected decoder, encoder, encoder-only or encoder-decoder, got \"",
      std::string(name), "\""));
}

}  // namespace reprise
