// Unstable: any version may change this header (docs/embedding.md).
//
// Byte-pair encoding: starts with the tokens of a text's bytes or characters, and repeatedly merges
// the best-ranked neighbours.
//
//   vocabulary {"a": 0, "b": 1, "ab": 2}, merges {("a", "b")}:
//   Encode("abab") == {2, 2}, Encode("ba") == {1, 0}
//
// Thread safety: as any const object.

#ifndef REPRISE_HF_TOKENIZER_BYTE_PAIR_ENCODER_H_
#define REPRISE_HF_TOKENIZER_BYTE_PAIR_ENCODER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "reprise/hf/tokenizer/first_symbols.h"

namespace reprise {

// Two neighbours that become one token, as bytes. The first merge of a list has the best rank.
using Merge = std::pair<std::string, std::string>;

enum class WholePieces {
  kMerge,   // build every piece up from its bytes
  kLookUp,  // a piece that is a token is that token, regardless of the merges ("ignore_merges")
};

class BytePairEncoder {
 public:
  // Errors: InvalidArgument, with the index of the merge, if its left side, its right side or the
  // two together are not a token, or if it occurs twice; if two tokens have the same id; those of
  // FirstSymbols::Create().
  static absl::StatusOr<BytePairEncoder> Create(ByteVocabulary vocabulary,
                                                const std::vector<Merge>& merges,
                                                WholePieces whole_pieces,
                                                const SymbolOptions& symbols = {});

  // The tokens of `piece`. Among equally ranked neighbours, the leftmost are merged first.
  // Errors: those of FirstSymbols::Of(); InvalidArgument if it has 2^31 bytes or more.
  // Cost: O(n log n) in the length of the piece.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view piece) const;

 private:
  struct Target {
    int32_t rank = 0;
    int32_t token = 0;
  };
  using Targets = absl::flat_hash_map<std::pair<int32_t, int32_t>, Target>;

  BytePairEncoder(ByteVocabulary vocabulary, FirstSymbols symbols, Targets targets,
                  WholePieces whole_pieces);

  ByteVocabulary vocabulary_;
  FirstSymbols symbols_;
  Targets targets_;  // of each pair of tokens that merges
  WholePieces whole_pieces_;
};

}  // namespace reprise

#endif  // REPRISE_HF_TOKENIZER_BYTE_PAIR_ENCODER_H_
