// The constants of a captured step, the shape of a live step, and the reasons for an eager step.
//
//   const GraphKey key{.padded_num_seqs = 8, .padded_num_tokens = 40, .max_query_len = 5};
//   LOG(INFO) << key;                           // 8 seqs x 5, tokens
//   const GraphKey mixed{.padded_num_seqs = 8, .padded_num_tokens = 64, .max_query_len = 64};
//   LOG(INFO) << mixed;                         // 8 seqs x 64 (64 tokens), tokens
//   LOG(INFO) << EagerReason::kQueryTooLong;    // query too long
//
// Plain values: freely copyable, compared and hashed field by field. Functions here do not fail.

#ifndef REPRISE_GRAPHS_GRAPH_KEY_H_
#define REPRISE_GRAPHS_GRAPH_KEY_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

namespace reprise {

enum class StepInput : int8_t { kTokens, kEmbeddings };

// Identifies a captured step. Everything else is data in the step buffers.
struct GraphKey {
  int padded_num_seqs = 0;
  // padded_num_seqs * max_query_len. For a mixed step equal to max_query_len, so that one key
  // serves any split of the tokens into rows.
  int padded_num_tokens = 0;
  int max_query_len = 1;  // a row has 1..max_query_len tokens, packed; trailing tokens are inert
  StepInput input = StepInput::kTokens;
  bool cascade = false;  // whether a common prefix of the batch is read once
  // Padded number of logits for tokens that are not the last of their row. The step has
  // padded_num_seqs + num_earlier_logits rows of logits. Keys of a GraphSet have 0, or with drafts
  // enough for all drafts.
  int num_earlier_logits = 0;
  // Maximum number of drafts that the step proposes and verifies for each row: such a row has up to
  // 1 + num_drafts tokens. A mixed step with drafts also has rows whose tokens come from the host.
  int num_drafts = 0;

  friend bool operator==(const GraphKey&, const GraphKey&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const GraphKey& key) {
    return H::combine(std::move(state), key.padded_num_seqs, key.padded_num_tokens,
                      key.max_query_len, static_cast<int>(key.input), key.cascade,
                      key.num_earlier_logits, key.num_drafts);
  }
};

// "16 seqs x 1, tokens", "8 seqs x 5, embeddings, cascade", "2 seqs x 9 (12 tokens), tokens, 10
// earlier logits", "4 seqs x 5, tokens, 4 drafts".
std::string ToString(const GraphKey& key);
std::ostream& operator<<(std::ostream& out, const GraphKey& key);

// The shape of a live step, before padding.
struct StepShape {
  int num_seqs = 0;
  int num_tokens = 0;     // total over all rows; at most num_seqs * max_query_len
  int max_query_len = 1;  // tokens in the longest row
  int max_seq_len = 0;    // keys of the longest row, including this step's tokens
  StepInput input = StepInput::kTokens;
  bool cascade = false;           // a common prefix may be read once; see GraphDecision::key
  int num_earlier_logits = 0;     // logits for tokens that are not the last of their row
  int num_drafts = 0;             // maximum over all rows
  bool has_given_tokens = false;  // the host supplies tokens: prompt chunks or forced tokens
};

// The reason why a step runs eagerly. GraphReport counts steps per reason.
enum class EagerReason : int8_t {
  kNone,               // not eager: a graph is replayed
  kDisabled,           // graphs are switched off
  kIdle,               // the step has no sequence
  kTooManySeqs,        // more sequences than the largest captured size
  kQueryTooLong,       // a prefill row, or more draft tokens than any captured size
  kSequenceTooLong,    // a sequence beyond max_seq_len, a capture constant
  kNotCaptured,        // no graph for this input, or the key has not been captured yet
  kOverBudget,         // capturing this key would exceed the memory budget
  kCalibrates,         // the step calibrates the scales of a quantised cache, once
  kEarlierLogits,      // no graph computes logits for tokens that are not the last of their row
  kDraftsAmongTokens,  // no mixed graph holds these rows with drafts and with given tokens
};
inline constexpr int kNumEagerReasons = 11;

// Names as printed in reports and statistics: "none", "graphs disabled", "too many sequences", ...
std::string_view EagerReasonName(EagerReason reason);
std::ostream& operator<<(std::ostream& out, EagerReason reason);

// The result of GraphSet::Decide() and GraphSet::Replay().
struct GraphDecision {
  enum class Kind : int8_t { kReplay, kEager };
  Kind kind = Kind::kEager;
  EagerReason reason = EagerReason::kDisabled;  // kNone if kind == kReplay
  // The shape to pad the step to, and whether a common prefix is read once (key.cascade).
  // - kReplay: the key of the graph. A step whose prefix may be read once uses a flat graph if no
  //   cascade graph holds it.
  // - kEager: the live counts, with three exceptions. The first two keep results bitwise identical.
  //   If the reason is kDisabled: the key that would be replayed, if any. If the step has
  //   embeddings and no graph serves them: the key of the same step with tokens. If Replay()
  //   returns kOverBudget: the key that Replay() was given.
  GraphKey key;

  friend bool operator==(const GraphDecision&, const GraphDecision&) = default;
};

// "replay 16 seqs x 1, tokens", "eager 17 seqs x 1, tokens: too many sequences".
std::string ToString(const GraphDecision& decision);
std::ostream& operator<<(std::ostream& out, const GraphDecision& decision);

}  // namespace reprise

#endif  // REPRISE_GRAPHS_GRAPH_KEY_H_
