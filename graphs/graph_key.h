// The constants of a captured step, the shape of a step to be served, and the reasons why a step
// runs without a graph.
//
//   const GraphKey key{.padded_num_seqs = 8, .padded_num_tokens = 40, .max_query_len = 5};
//   LOG(INFO) << key;                           // 8 seqs x 5, tokens
//   const GraphKey mixed{.padded_num_seqs = 8, .padded_num_tokens = 64, .max_query_len = 64};
//   LOG(INFO) << mixed;                         // 8 seqs x 64 (64 tokens), tokens
//   LOG(INFO) << EagerReason::kQueryTooLong;    // query too long
//
// Plain values: copied freely, compared and hashed field by field. No function here fails.

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
  // padded_num_seqs * max_query_len; of a mixed step max_query_len, so that any split of the tokens
  // into rows is the same step.
  int padded_num_tokens = 0;
  int max_query_len = 1;  // rows hold 1..max_query_len tokens, packed; trailing tokens are inert
  StepInput input = StepInput::kTokens;
  bool cascade = false;  // the batch has a common prefix that is read once
  // Logits of tokens before the last of their rows, padded: the step has padded_num_seqs +
  // num_earlier_logits rows of logits. In keys of a GraphSet 0, or with drafts those of all tokens.
  int num_earlier_logits = 0;
  // The step proposes up to so many drafts for each row, and verifies them: rows of up to
  // 1 + num_drafts tokens; of a mixed step, beside rows that bring tokens.
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

// The shape of a step: live counts, before padding.
struct StepShape {
  int num_seqs = 0;
  int num_tokens = 0;     // of all rows; at most num_seqs * max_query_len
  int max_query_len = 1;  // of the longest row
  int max_seq_len = 0;    // of the longest row, this step's tokens included
  StepInput input = StepInput::kTokens;
  bool cascade = false;           // a common prefix may be read once; see GraphDecision::key
  int num_earlier_logits = 0;     // of tokens before the last of their rows
  int num_drafts = 0;             // of the row that has the most
  bool has_given_tokens = false;  // of the host: chunks of prompts, or forced tokens
};

// Why a step runs eagerly; counted per reason in GraphReport.
enum class EagerReason : int8_t {
  kNone,               // a graph is replayed
  kDisabled,           // graphs are switched off
  kIdle,               // no sequence
  kTooManySeqs,        // more sequences than the largest captured size
  kQueryTooLong,       // a prefill row, or more draft tokens than captured
  kSequenceTooLong,    // a sequence beyond max_seq_len, a capture constant
  kNotCaptured,        // no graph for this input, or the key was not captured yet
  kOverBudget,         // capturing this key would pass the memory budget
  kCalibrates,         // the step sets scales of a quantised cache, once
  kEarlierLogits,      // logits of tokens before the last of their rows, which no graph computes
  kDraftsAmongTokens,  // rows with drafts beside rows that bring tokens, beyond all mixed graphs
};
inline constexpr int kNumEagerReasons = 11;

// "none", "graphs disabled", "too many sequences", ...: as printed in reports and statistics.
std::string_view EagerReasonName(EagerReason reason);
std::ostream& operator<<(std::ostream& out, EagerReason reason);

// The answer of GraphSet::Decide().
struct GraphDecision {
  enum class Kind : int8_t { kReplay, kEager };
  Kind kind = Kind::kEager;
  EagerReason reason = EagerReason::kDisabled;  // kNone if kind == kReplay
  // The shape to pad the step to. kReplay: the graph's key. kEager: the live counts; for kDisabled
  // the key that would have been replayed, if any, so that a run without graphs computes the same
  // bits; for embeddings without a graph that of tokens, for the same reason. key.cascade: whether a common prefix is read once. A step whose prefix may be read once
  // is replayed flat if it has a flat graph only.
  GraphKey key;

  friend bool operator==(const GraphDecision&, const GraphDecision&) = default;
};

// "replay 16 seqs x 1, tokens", "eager 17 seqs x 1, tokens: too many sequences".
std::string ToString(const GraphDecision& decision);
std::ostream& operator<<(std::ostream& out, const GraphDecision& decision);

}  // namespace reprise

#endif  // REPRISE_GRAPHS_GRAPH_KEY_H_
