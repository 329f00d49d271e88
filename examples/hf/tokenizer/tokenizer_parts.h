// Unstable: any version may change this header (docs/embedding.md).
//
// The parts of a tokenizer.json: objects with a "type", alone or in a Sequence.
//
//   // {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Prepend", "prepend": "_"}]}
//   REPRISE_ASSIGN_OR_RETURN(std::vector<JsonFields> parts,
//                            Parts(root, "normalizer", "normalizers"));
//
// Errors are InvalidArgument, naming the file, the member, what was expected and what was got.
// Thread safety: pure functions.

#ifndef REPRISE_HF_TOKENIZER_TOKENIZER_PARTS_H_
#define REPRISE_HF_TOKENIZER_TOKENIZER_PARTS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/hf/json_fields.h"

namespace reprise {

// The parts of the member `name`, whose Sequences hold their parts as `members`; empty if it is
// absent or null. At most 64.
absl::StatusOr<std::vector<JsonFields>> Parts(const JsonFields& root, std::string_view name,
                                              std::string_view members);

// The objects of an array, each named "<where>: <name>[i]" in messages.
absl::StatusOr<std::vector<JsonFields>> Objects(const JsonFields& fields, std::string_view name);

// Members whose absence or emptiness means that a feature is not used.
absl::Status ExpectUnused(const JsonFields& fields, std::string_view name);

absl::Status ExpectString(const JsonFields& fields, std::string_view name,
                          std::string_view expected);

// A string of at least one character.
absl::StatusOr<std::string> NonEmptyString(const JsonFields& fields, std::string_view name);

// A string of exactly one.
absl::StatusOr<std::string> OneCharacter(const JsonFields& fields, std::string_view name);

// A boolean, or `otherwise` if it is absent.
absl::StatusOr<bool> BoolOr(const JsonFields& fields, std::string_view name, bool otherwise);

// Ids are at most this: four million, so that tables by id stay small.
inline constexpr int32_t kMaxTokenId = (1 << 22) - 1;

inline constexpr IntRange kTokenIdRange = {.min = 0, .max = kMaxTokenId};

}  // namespace reprise

#endif  // REPRISE_HF_TOKENIZER_TOKENIZER_PARTS_H_
