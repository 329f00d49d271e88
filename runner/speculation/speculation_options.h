// Options of speculative decoding: the drafter, the number of drafts and the acceptance rule
// (docs/speculation.md).

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

// Maximum number of drafts per row with DraftShape::kChain, and maximum depth of a proposed tree.
inline constexpr int kMaxDrafts = 16;
// Maximum number of drafts per row with DraftShape::kTree: 64 nodes including the slot's last
// token.
inline constexpr int kMaxTreeDrafts = 63;

// The possible shapes of a row's drafts.
enum class DraftShape : int8_t {
  kChain,  // each draft follows the previous draft
  // a node may have several children; the path that the sequence would have sampled is accepted
  kTree,
};

// The rule by which a draft is accepted.
enum class DraftAcceptance : int8_t {
  // Accepts a draft if it is the token that the sequence would have sampled without it. The output
  // equals the output of plain decoding, except for rounding (docs/speculation.md).
  kSameText,
  // Accepts a draft with probability min(1, p / q), where p and q are its probabilities in the
  // sequence's and the drafter's distribution. A rejected draft is replaced by a sample from max(0,
  // p - q) (Leviathan et al., 2023; Chen et al., 2023). Tokens have the distribution of plain
  // decoding, but the output depends on the drafts: the same seed and the same drafts give the same
  // output. If drafts do not depend on the sequence's random numbers, this rule on average accepts
  // at least as many drafts as kSameText. q is 1 for drafts that the caller, n-grams or a Drafter
  // supply. Greedy rows behave as with kSameText. Chains only.
  kRejection,
};

// Proposers. The object that a proposer refers to must outlive the runner.

// The caller supplies the drafts (ScheduledRow::drafts).
struct NoProposer {};

// Proposes tokens of the sequence itself: the tokens that followed the most recent earlier
// occurrence of its last n tokens, for the largest n in [min_ngram, max_ngram] that has one
// (Saxena, "Prompt lookup decoding", 2023).
struct NgramProposer {
  int min_ngram = 1;  // at least 1
  int max_ngram = 4;  // at least min_ngram, at most 16
};

// A smaller decoder on the model's device, with the same vocabulary and dtype, and without
// embedding inputs. Its KV layers follow the model's layers and share the model's block tables and
// blocks, so that prefix hits, forks and swaps include the keys of both. Its layers may use windows
// or chunks, but the keys of whole sequences are kept, because the draft model may have tokens to
// catch up on.
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
  // Maximum number of drafts per row, at most kMaxDrafts, or kMaxTreeDrafts for trees. 0: no
  // speculation.
  int max_drafts = 0;
  // kTree: attention of steps with drafts uses a 64-bit mask per token, even if the rows are
  // chains. Supported for models with full attention or windows, but not with chunks, `within` or
  // an encoder.
  DraftShape shape = DraftShape::kChain;
  // The tree of proposed drafts: entry i is the parent node of draft i. Node 0 is the slot's last
  // token, and node i is draft i - 1. Has max_drafts entries in order of their levels, so that the
  // first n drafts form a tree for every n. Empty: a chain. Requires kTree. Not supported with
  // NgramProposer.
  std::vector<int> tree = {};
  DraftProposer proposer = NoProposer{};
  DraftAcceptance acceptance = DraftAcceptance::kSameText;
  // Draft counts that get captured graphs, strictly ascending, the last equal to max_drafts. A step
  // uses the graph of the smallest count that is sufficient for its rows, so a step with fewer
  // drafts verifies fewer tokens and runs fewer passes of a draft model. Empty: 1, 2, 4, ...
  // max_drafts; for proposed trees, the numbers of drafts in their first 1, 2, 4, ... levels; for
  // trees that the caller supplies, only max_drafts.
  std::vector<int> graph_num_drafts = {};

  bool has_proposer() const { return !std::holds_alternative<NoProposer>(proposer); }
  const NgramProposer* ngram() const { return std::get_if<NgramProposer>(&proposer); }
  // The following return null for any other proposer.
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
