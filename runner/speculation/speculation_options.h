// Speculative decoding: which drafts a runner proposes, and how many (docs/speculation.md).

#ifndef RUNNER_SPECULATION_SPECULATION_OPTIONS_H_
#define RUNNER_SPECULATION_SPECULATION_OPTIONS_H_

#include <cstdint>
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

// Drafts from the sequence's own tokens: those that followed the newest earlier occurrence of its
// last n tokens, for the largest n in [min_ngram, max_ngram] that occurs before. (Saxena, "Prompt
// lookup decoding", 2023.)
struct NgramOptions {
  int min_ngram = 1;  // at least 1
  int max_ngram = 4;  // at most 16
};

struct SpeculationOptions {
  enum class Proposer : int8_t {
    kNone,    // the caller gives drafts (ScheduledRow::drafts)
    kNgram,   // from the sequence's own tokens
    kModel,   // a smaller model with the same vocabulary, draft_model
    kCustom,  // a drafter of the caller's, `drafter`
    kHeads,   // heads that read the model's hidden states, `heads`; with layers of their own chains
  };

  // The most drafts of a row, 1 to kMaxDrafts, or to kMaxTreeDrafts with trees; 0: no speculation.
  int max_drafts = 0;
  // kTree: steps with drafts attend by a mask of 64 bits a token, also if their rows are chains.
  // Models of full attention or windows; not of chunks, `within`, or an encoder.
  DraftShape shape = DraftShape::kChain;
  // The tree of the drafts that a drafter proposes, one entry for each of max_drafts: the node that
  // a draft follows. Node 0 is the slot's last token, node i draft i - 1. Level by level, so that
  // the first n drafts of it, for any n, are a tree, too. Empty: a chain. Only with kTree, and not
  // with kNgram.
  std::vector<int> tree = {};
  Proposer proposer = Proposer::kNone;
  NgramOptions ngram = {};
  // Its layers follow those of the model: they share block tables and blocks with them, so
  // prefixes, forks and swaps keep both. Decoder only, of the model's device, vocabulary and dtype,
  // without embeddings as inputs. Its layers may have windows or chunks, but keep the keys of whole
  // sequences: it may have tokens to catch up with. Must outlive the runner.
  Model* draft_model = nullptr;
  Drafter* drafter = nullptr;   // must outlive the runner
  DraftHeads* heads = nullptr;  // must outlive the runner
  DraftAcceptance acceptance = DraftAcceptance::kSameText;
  // Captured numbers of drafts, ascending, the last max_drafts: a step has the graph of the smallest
  // that holds its rows, so one with fewer drafts verifies fewer tokens and makes fewer passes of a
  // draft model. Empty: 1, 2, 4, ... up to max_drafts, of a tree that is proposed those of its
  // levels 1, 2, 4, ..., of other trees max_drafts alone.
  std::vector<int> graph_num_drafts = {};
};

}  // namespace reprise

#endif  // RUNNER_SPECULATION_SPECULATION_OPTIONS_H_
