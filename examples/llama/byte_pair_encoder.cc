#include "examples/llama/byte_pair_encoder.h"

#include <limits>
#include <queue>
#include <tuple>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace reprise {
namespace {

std::optional<int32_t> Find(const ByteVocabulary& vocabulary, std::string_view bytes) {
  const auto it = vocabulary.find(absl::string_view(bytes.data(), bytes.size()));
  if (it == vocabulary.end()) return std::nullopt;
  return it->second;
}

// The tokens of a piece while they merge: a doubly linked list over the positions of the piece's
// bytes. A token stands at the position of its first byte; where a token was swallowed by the one
// on its left, is_live is false for good.
struct Symbol {
  int32_t token = 0;
  std::optional<int> left;
  std::optional<int> right;
  bool is_live = true;
};

// A merge that was possible when it was put in the queue. `token` says whether it still is: tokens
// only grow, so the pair at `position` makes that token only while neither side has changed.
struct Candidate {
  int32_t rank = 0;
  int position = 0;
  int32_t token = 0;

  // For the queue, whose top is the greatest: the lowest rank, then the leftmost.
  friend bool operator<(const Candidate& a, const Candidate& b) {
    return std::tie(a.rank, a.position) > std::tie(b.rank, b.position);
  }
};

}  // namespace

absl::StatusOr<BytePairEncoder> BytePairEncoder::Create(ByteVocabulary vocabulary,
                                                        const std::vector<Merge>& merges,
                                                        WholePieces whole_pieces) {
  absl::flat_hash_set<int32_t> ids;
  for (const auto& [bytes, id] : vocabulary) {
    if (!ids.insert(id).second) {
      return absl::InvalidArgumentError(absl::StrCat("vocabulary: two tokens have the id ", id));
    }
  }
  Targets targets;
  targets.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const auto& [left, right] = merges[i];
    const std::optional<int32_t> left_token = Find(vocabulary, left);
    const std::optional<int32_t> right_token = Find(vocabulary, right);
    const std::optional<int32_t> token = Find(vocabulary, left + right);
    if (!left_token || !right_token || !token) {
      return absl::InvalidArgumentError(absl::StrCat(
          "merges: number ", i, ": ",
          !left_token ? "its left side" : (!right_token ? "its right side" : "its result"),
          " is not in the vocabulary"));
    }
    const Target target = {.rank = static_cast<int32_t>(i), .token = *token};
    if (!targets.emplace(std::pair(*left_token, *right_token), target).second) {
      return absl::InvalidArgumentError(absl::StrCat("merges: number ", i, " occurs twice"));
    }
  }
  return BytePairEncoder(std::move(vocabulary), std::move(targets), whole_pieces);
}

BytePairEncoder::BytePairEncoder(ByteVocabulary vocabulary, Targets targets,
                                 WholePieces whole_pieces)
    : vocabulary_(std::move(vocabulary)),
      targets_(std::move(targets)),
      whole_pieces_(whole_pieces) {
  for (int byte = 0; byte < 256; ++byte) {
    byte_tokens_[byte] = Find(vocabulary_, std::string(1, static_cast<char>(byte)));
  }
}

absl::StatusOr<std::vector<int32_t>> BytePairEncoder::Encode(std::string_view piece) const {
  if (whole_pieces_ == WholePieces::kLookUp) {
    if (const std::optional<int32_t> token = Find(vocabulary_, piece)) return std::vector{*token};
  }
  if (piece.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError(
        absl::StrCat("text: expected pieces of less than 2^31 bytes, got ", piece.size()));
  }
  const int num_bytes = static_cast<int>(piece.size());
  std::vector<Symbol> symbols(num_bytes);
  for (int i = 0; i < num_bytes; ++i) {
    const uint8_t byte = static_cast<uint8_t>(piece[i]);
    if (!byte_tokens_[byte]) {
      return absl::InvalidArgumentError(
          absl::StrCat("text: the vocabulary has no token for the byte 0x", absl::Hex(byte)));
    }
    symbols[i].token = *byte_tokens_[byte];
    if (i > 0) symbols[i].left = i - 1;
    if (i + 1 < num_bytes) symbols[i].right = i + 1;
  }

  std::priority_queue<Candidate> queue;
  const auto target_at = [&](int position) -> std::optional<Target> {
    const Symbol& symbol = symbols[position];
    if (!symbol.is_live || !symbol.right) return std::nullopt;
    const auto it = targets_.find({symbol.token, symbols[*symbol.right].token});
    if (it == targets_.end()) return std::nullopt;
    return it->second;
  };
  const auto consider = [&](int position) {
    if (const std::optional<Target> target = target_at(position)) {
      queue.push({.rank = target->rank, .position = position, .token = target->token});
    }
  };
  for (int i = 0; i < num_bytes; ++i) consider(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    const std::optional<Target> target = target_at(best.position);
    if (!target || target->token != best.token) continue;  // one side has changed since
    Symbol& left = symbols[best.position];
    Symbol& right = symbols[*left.right];
    left.token = best.token;
    left.right = right.right;
    right.is_live = false;
    if (left.right) symbols[*left.right].left = best.position;
    consider(best.position);
    if (left.left) consider(*left.left);
  }

  std::vector<int32_t> tokens;
  for (const Symbol& symbol : symbols) {
    if (symbol.is_live) tokens.push_back(symbol.token);
  }
  return tokens;
}

}  // namespace reprise
