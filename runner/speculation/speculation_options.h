// Speculative decoding: which drafts a runner proposes, and how many (docs/speculation.md).

#ifndef REPRISE_RUNNER_SPECULATION_SPECULATION_OPTIONS_H_
#define REPRISE_RUNNER_SPECULATION_SPECULATION_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <variant>
#include <vector>

namespace reprise {

class DraftHeads;
class Drafter;
class Model;

// The most drafts of a row that is a chain, and the longest path of drafts of a proposed tree.
inline constexpr int kMaxDrafts = 16;
// The most drafts of a row that may be a tree: 64 nodes with the slot's last token.
inline constexpr int kMaxTreeDrafts = 63;

// What the drafts of a row may be.
enum class DraftShape : int8_t {
  kChain,  // each follows the one before it
  kTree,   // several may follow one; the path that the sequence would have chosen is accepted
};

// When a draft is accepted.
enum class DraftAcceptance : int8_t {
  // If it is the token that the sequence would have chosen itself: the text is plain decoding's.
  kSameText,
  // With probability min(1, p / q), where the sequence chooses it with p and the drafter with q; what
  // follows a rejected one is drawn from max(0, p - q) (Leviathan et al., 2023; Chen et al., 2023).
  // Tokens have the distribution of plain decoding's, but the text depends on the drafts: it is the
  // same for the same seed and the same drafts. Accepts no less where drafts are drawn without
  // the sequence's numbers. The q of given drafts, n-grams and those of a Drafter is 1. Greedy rows
  // are as with kSameText. Chains only.
  kRejection,
};

// Proposers. The object that a proposer refers to must outlive the runner.

// The caller gives the drafts (ScheduledRow::drafts).
struct NoProposer {};

// Drafts from the sequence's own tokens: the tokens that followed the newest earlier occurrence of its
// last n tokens, for the largest n in [min_ngram, max_ngram] that occurs before. (Saxena, "Prompt
// lookup decoding", 2023.)
struct NgramProposer {
  int min_ngram = 1;  // at least 1
  int max_ngram = 4;  // at least min_ngram, at most 16
};

// A smaller decoder on the model's device, with its vocabulary and dtype, and without embeddings as
// inputs. Its layers follow the layers of the model and share its block tables and blocks, so that
// prefixes, forks and swaps keep the keys of both. They may have windows or chunks, but keep the keys
// of whole sequences, because the draft model may have tokens to catch up with.
struct ModelProposer {
  std::reference_wrapper<Model> model;
};

// A drafter that the caller implements.
struct CustomProposer {
  std::reference_wrapper<Drafter> drafter;
};

// Heads that read the model's hidden states. Heads with decoder layers propose chains.
struct HeadsProposer {
  std::reference_wrapper<DraftHeads> heads;
};

using DraftProposer =
    std::variant<NoProposer, NgramProposer, ModelProposer, CustomProposer, HeadsProposer>;

struct SpeculationOptions {
  // Maximum number of drafts per row: 1 to kMaxDrafts, or to kMaxTreeDrafts for trees. 0: no
  // speculation.
  int max_drafts = 0;
  // kTree: steps with drafts attend by a mask of 64 bits per token, also if their rows are chains. For
  // models of full attention or windows, without chunks, `within` or an encoder.
  DraftShape shape = DraftShape::kChain;
  // The tree of proposed drafts: entry i is the node that draft i follows. Node 0 is the slot's last
  // token, and node i is draft i - 1. Has max_drafts entries in order of their levels, so that the first
  // n drafts are a tree for every n. Empty: a chain. Only for kTree, and not for NgramProposer.
  std::vector<int> tree = {};
  DraftProposer proposer = NoProposer{};
  DraftAcceptance acceptance = DraftAcceptance::kSameText;
  // Captured numbers of drafts, strictly ascending, the last equal to max_drafts. A step uses the graph
  // of the smallest number that holds its rows, so a step with fewer drafts verifies fewer tokens and
  // runs fewer passes of a draft model. Empty: 1, 2, 4, ... max_drafts; for proposed trees the numbers
  // of their first 1, 2, 4, ... levels; for given trees max_drafts alone.
  std::vector<int> graph_num_drafts = {};

  bool has_proposer() const { return !std::holds_alternative<NoProposer>(proposer); }
  const NgramProposer* ngram() const { return std::get_if<NgramProposer>(&proposer); }
  // Null for any other proposer.
  Model* draft_model() const {
    const auto* const given = std::get_if<ModelProposer>(&proposer);
    return given == nullptr ? nullptr : &given->model.get();
  }
  Drafter* drafter() const {
    const auto* const given = std::get_if<CustomProposer>(&proposer);
    return given == nullptr ? nullptr : &given->drafter.get();
  }
  DraftHeads* heads() const {
    const auto* const given = std::get_if<HeadsProposer>(&proposer);
    return given == nullptr ? nullptr : &given->heads.get();
  }
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_SPECULATION_OPTIONS_H_
