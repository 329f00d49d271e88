#include "reprise/hf/tokenizer/byte_pair_encoder.h"

#include <limits>
#include <optional>
#include <queue>
#include <tuple>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

// The tokens of a piece while they merge: a doubly linked list over the positions of its
// first symbols. A token is at the position of its first symbol; if a token was merged into the one
// on its left, is_live stays false.
struct Symbol {
  int32_t token = 0;
  std::optional<int> left;
  std::optional<int> right;
  bool is_live = true;
};

// A merge that was possible when it was put in the queue. `token` shows whether it still is: tokens
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
                                                        WholePieces whole_pieces,
                                                        const SymbolOptions& symbols) {
  REPRISE_ASSIGN_OR_RETURN(FirstSymbols first_symbols, FirstSymbols::Create(vocabulary, symbols));
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
    const std::optional<int32_t> left_token = FindToken(vocabulary, left);
    const std::optional<int32_t> right_token = FindToken(vocabulary, right);
    const std::optional<int32_t> token = FindToken(vocabulary, left + right);
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
  return BytePairEncoder(std::move(vocabulary), std::move(first_symbols), std::move(targets),
                         whole_pieces);
}

BytePairEncoder::BytePairEncoder(ByteVocabulary vocabulary, FirstSymbols symbols, Targets targets,
                                 WholePieces whole_pieces)
    : vocabulary_(std::move(vocabulary)),
      symbols_(std::move(symbols)),
      targets_(std::move(targets)),
      whole_pieces_(whole_pieces) {}

absl::StatusOr<std::vector<int32_t>> BytePairEncoder::Encode(std::string_view piece) const {
  if (whole_pieces_ == WholePieces::kLookUp) {
    if (const std::optional<int32_t> token = FindToken(vocabulary_, piece))
      return std::vector{*token};
  }
  if (piece.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError(
        absl::StrCat("text: expected pieces of less than 2^31 bytes, got ", piece.size()));
  }
  REPRISE_ASSIGN_OR_RETURN(const std::vector<int32_t> first, symbols_.Of(piece));
  if (first.size() == 1) return first;
  const int num_symbols = static_cast<int>(first.size());
  std::vector<Symbol> symbols(num_symbols);
  for (int i = 0; i < num_symbols; ++i) {
    symbols[i].token = first[i];
    if (i > 0) symbols[i].left = i - 1;
    if (i + 1 < num_symbols) symbols[i].right = i + 1;
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
  for (int i = 0; i < num_symbols; ++i) consider(i);
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
