// The steps that a GraphSet captures, when it captures them, and its memory budget.
//
//   GraphSetOptions options{.max_num_seqs = 64, .query_lens = {1, 5}, .max_seq_len = 8192};
//
// There are three forms of captured steps. A step of `query_lens` has `sizes` rows of up to so many
// tokens each: decodes, and verification of drafts. A mixed step has `mixed_tokens` tokens in all,
// split in any way into up to `mixed_sizes` rows: chunks of prompts together with decodes. A step
// of `num_drafts` has `sizes` rows, each of its sequence's last token and up to so many drafts; or it
// is a mixed one, some rows of which are such.
//
// Plain values.

#ifndef REPRISE_GRAPHS_GRAPH_SET_OPTIONS_H_
#define REPRISE_GRAPHS_GRAPH_SET_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "reprise/graphs/graph_key.h"

namespace reprise {

struct GraphSetOptions {
  enum class Mode : int8_t {
    kOff,    // Decide() always answers kEager, kDisabled
    kEager,  // all keys captured by CaptureAll(), before the first step
    kLazy,   // a key is captured when it is first replayed
  };
  // Whether steps with a common prefix have graphs of their own in addition to the flat ones.
  enum class Cascade : int8_t { kNotCaptured, kCaptured };
  // Whether mixed steps of tokens have graphs of their own in a set that has inputs of both kinds, or
  // replay those of embeddings: half as many graphs, for what it costs a step of many tokens to
  // choose between two embeddings of each. The owner must mark no token as embedded in such a step.
  enum class MixedInputs : int8_t { kApart, kShared };

  Mode mode = Mode::kEager;
  // The most sequences a step may have; default sizes end here (or at 512). At least 1.
  int max_num_seqs = 0;
  // Captured numbers of sequences, strictly ascending, at most max_num_seqs; empty:
  // DefaultGraphSizes(max_num_seqs).
  std::vector<int> sizes = {};
  // Captured query lengths, strictly ascending; 1 is plain decode, 1 + k verifies up to k drafts.
  std::vector<int> query_lens = {1};
  // Captured numbers of drafts, strictly ascending: steps that propose up to so many drafts for each
  // row, and verify them. Empty: such steps run eagerly. Each has graphs of `sizes`. The last one has,
  // with mixed_tokens, graphs of the mixed sizes of two rows or more, for drafts beside chunks of
  // prompts: those take as long with fewer drafts.
  std::vector<int> num_drafts = {};
  // Captured numbers of tokens of mixed steps, strictly ascending; empty: mixed steps run eagerly.
  std::vector<int> mixed_tokens = {};
  // The numbers of sequences at which each of them is captured, strictly ascending, at most
  // max_num_seqs; a step of fewer tokens is captured for as many sequences as it has tokens. Few:
  // a padded row costs a row of the product that makes the logits. Empty, with mixed_tokens:
  // DefaultMixedSizes(max_num_seqs).
  std::vector<int> mixed_sizes = {};
  // The longest row of a captured step; a capture constant. At least the last of query_lens.
  int max_seq_len = 0;
  std::vector<StepInput> inputs = {StepInput::kTokens};
  // Steps of embeddings have graphs of their own where rows may have so many tokens; with fewer
  // they run eagerly, padded like steps of tokens. 2: embeddings come with prompts only.
  int least_embedding_query_len = 1;
  MixedInputs mixed_inputs = MixedInputs::kApart;
  Cascade cascade = Cascade::kNotCaptured;
  // The fewest sequences of a cascade graph: with fewer, reading the prefix once does not pay.
  int least_cascade_seqs = 1;
  // The measured memory that graphs may hold. The capture that passes it is undone, and no further
  // one is tried: keys without a graph then answer kOverBudget. nullopt: no limit.
  std::optional<int64_t> memory_budget_bytes = std::nullopt;
  // Whether a capture that passes the budget here, or does not, counts as over it: with several ranks,
  // whose graphs may take unlike memory, it does if it passes the budget of any, so that all capture
  // the same keys. Called in each capture under a budget; its errors are those of the capture. Empty:
  // this set alone decides.
  std::function<absl::StatusOr<bool>(bool is_over)> agree_over_budget = {};
};

// 1, 2, 4, 8, then every 8th up to 256, every 16th up to 512, cut at max_num_seqs, which is itself
// included if it is at most 512. REQUIRES: max_num_seqs >= 1.
std::vector<int> DefaultGraphSizes(int max_num_seqs);

// 64, 128, 192, ..., 512, cut at max_num_tokens, which is itself included if it is at most 512.
// Larger steps keep a GPU busy for longer than the host takes to launch them.
// REQUIRES: max_num_tokens >= 1.
std::vector<int> DefaultMixedTokens(int max_num_tokens);

// 16, 128, 512, cut at max_num_seqs, which is itself included if it is at most 512.
// REQUIRES: max_num_seqs >= 1.
std::vector<int> DefaultMixedSizes(int max_num_seqs);

// The options with `sizes` and `mixed_sizes` filled in.
// Errors: InvalidArgument naming the field out of range.
absl::StatusOr<GraphSetOptions> CheckedOptions(const GraphSetOptions& options);

}  // namespace reprise

#endif  // REPRISE_GRAPHS_GRAPH_SET_OPTIONS_H_
