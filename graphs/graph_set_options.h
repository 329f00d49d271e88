// The steps that a GraphSet captures, when it captures them, and its memory budget.
//
//   GraphSetOptions options{.max_num_seqs = 64, .query_lens = {1, 5}, .max_seq_len = 8192};
//
// Captured steps have one of three forms:
// 1. Steps of `query_lens` have `sizes` rows of 1..query_len tokens: decode steps, and verification
//    of drafts.
// 2. Mixed steps have `mixed_tokens` tokens in total, split in any way into up to `mixed_sizes`
//    rows: prompt chunks together with decode rows. Some rows may have drafts.
// 3. Steps of `num_drafts` have `sizes` rows. Each row has its sequence's last token and at most
//    num_drafts drafts.
//
// A plain struct.

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
    kOff,    // Decide() always returns kEager with kDisabled
    kEager,  // CaptureAll() captures all keys before the first step
    kLazy,   // a key is captured at its first replay
  };
  // Whether steps with a common prefix have separate (cascade) graphs in addition to the flat
  // graphs.
  enum class Cascade : int8_t { kNotCaptured, kCaptured };
  // How mixed token steps are served if the set captures both inputs. kApart: by separate graphs.
  // kShared: by the graphs of embeddings, which halves the number of mixed graphs. With kShared, a
  // token step also selects between two embeddings for each token, and the owner must not mark any
  // token as embedded.
  enum class MixedInputs : int8_t { kApart, kShared };

  Mode mode = Mode::kEager;
  // Maximum number of sequences per step; default sizes end at this number or at 512. At least 1.
  int max_num_seqs = 0;
  // Captured numbers of sequences, strictly ascending, at most max_num_seqs. Empty:
  // DefaultGraphSizes(max_num_seqs).
  std::vector<int> sizes = {};
  // Captured query lengths, strictly ascending. 1 is plain decode; 1 + k verifies up to k drafts.
  std::vector<int> query_lens = {1};
  // Captured draft counts, strictly ascending. A step proposes and verifies up to that number of
  // drafts per row. Each draft count has graphs of `sizes`. Empty: steps with drafts run eagerly.
  // If mixed_tokens is set, the largest draft count also has graphs of the mixed sizes of at least
  // two rows, for drafts together with prompt chunks: such steps take as long with fewer drafts.
  std::vector<int> num_drafts = {};
  // Captured numbers of tokens of mixed steps, strictly ascending. Empty: mixed steps run eagerly.
  std::vector<int> mixed_tokens = {};
  // Numbers of sequences at which each of mixed_tokens is captured, strictly ascending, at most
  // max_num_seqs. A number that exceeds the step's number of tokens is replaced by the number of
  // tokens. A few numbers suffice: a padded row only costs a row of the GEMM that computes the
  // logits. Empty, with mixed_tokens: DefaultMixedSizes(max_num_seqs).
  std::vector<int> mixed_sizes = {};
  // Maximum length of a row in a captured step; a capture constant. At least the last of
  // query_lens, and more than the last of num_drafts.
  int max_seq_len = 0;
  std::vector<StepInput> inputs = {StepInput::kTokens};
  // Embedding steps use graphs only for keys with max_query_len at least this large. Other
  // embedding steps run eagerly, padded like token steps. Does not apply to mixed graphs. 2: for
  // models whose embeddings only occur in prompts.
  int min_embedding_query_len = 1;
  MixedInputs mixed_inputs = MixedInputs::kApart;
  Cascade cascade = Cascade::kNotCaptured;
  // Minimum number of sequences of a cascade graph. With fewer sequences, reading the common prefix
  // once is not faster.
  int min_cascade_seqs = 1;
  // Maximum measured memory of all graphs in bytes. A capture that exceeds the budget is undone,
  // and no further key is captured: keys without a graph then run eagerly with kOverBudget.
  // nullopt: no limit.
  std::optional<int64_t> memory_budget_bytes = std::nullopt;
  // Decides whether a capture counts as over the budget; `is_over` tells whether it exceeds the
  // budget of this set. With several ranks, return whether any rank is over its budget: graphs may
  // take different amounts of memory on each rank, but all ranks must capture the same keys. Called
  // once per capture if there is a budget; a capture returns the callback's errors. Empty: only
  // this set decides.
  std::function<absl::StatusOr<bool>(bool is_over)> agree_over_budget = {};
};

// Returns 1, 2, 4, 8, then multiples of 8 up to 256 and multiples of 16 up to 512, limited to
// max_num_seqs. The last size is min(max_num_seqs, 512).
// REQUIRES: max_num_seqs >= 1.
std::vector<int> DefaultGraphSizes(int max_num_seqs);

// Returns 64, 128, 192, ..., 512, limited to max_num_tokens. The last number is min(max_num_tokens,
// 512). Larger steps keep a GPU busy for longer than the host needs to launch them.
// REQUIRES: max_num_tokens >= 1.
std::vector<int> DefaultMixedTokens(int max_num_tokens);

// Returns 16, 128, 512, limited to max_num_seqs. The last size is min(max_num_seqs, 512).
// REQUIRES: max_num_seqs >= 1.
std::vector<int> DefaultMixedSizes(int max_num_seqs);

// Checks the options and fills in the defaults of `sizes` and `mixed_sizes`.
// Errors: InvalidArgument that names the field that is out of range.
absl::StatusOr<GraphSetOptions> CheckedOptions(const GraphSetOptions& options);

}  // namespace reprise

#endif  // REPRISE_GRAPHS_GRAPH_SET_OPTIONS_H_
