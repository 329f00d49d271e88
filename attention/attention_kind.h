// Converts AttentionKind to and from its common names.
//
//   absl::StatusOr<AttentionKind> kind = ParseAttentionKind("encoder-decoder");
//   AttentionKindName(*kind) == "encoder-decoder"
//
// Pure functions.

#ifndef REPRISE_ATTENTION_ATTENTION_KIND_H_
#define REPRISE_ATTENTION_ATTENTION_KIND_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "reprise/attention/layer_spec.h"

namespace reprise {

// "decoder", "encoder", "encoder-only" or "encoder-decoder". REQUIRES: `kind` is an enumerator.
std::string_view AttentionKindName(AttentionKind kind);

// Errors: InvalidArgument for any other name; the message lists the four names.
absl::StatusOr<AttentionKind> ParseAttentionKind(std::string_view name);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_ATTENTION_KIND_H_
