// Converts the four kinds of attention to and from their common names.
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

// "decoder", "encoder", "encoder-only" or "encoder-decoder". REQUIRES: one of the four.
std::string_view AttentionKindName(AttentionKind kind);

// Errors: InvalidArgument, naming the four, for any other name.
absl::StatusOr<AttentionKind> ParseAttentionKind(std::string_view name);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_ATTENTION_KIND_H_
