// The queue of batches in flight, oldest first. Holds the data that the host needs to commit each
// batch.
//
//   OpenBatches open(shape);
//   open.Push(rows);                        // takes the rows; leaves `rows` empty
//   std::vector<OpenRow> rows = open.TakeOldest();
//   open.Recycle(std::move(rows));          // keeps the memory for a later batch
//
// Invariants, checked by CheckInvariants():
//   1. At most max_steps_in_flight batches are open, and none of them is empty.
//   2. A batch that was taken is recycled before the next Push(). The number of open and spare
//      batches is max_steps_in_flight in total.
//
// Thread safety: none; one owner. Does not allocate after construction.

#ifndef REPRISE_ENGINE_SCHEDULING_OPEN_BATCHES_H_
#define REPRISE_ENGINE_SCHEDULING_OPEN_BATCHES_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "reprise/engine/scheduling/sequence_state.h"
#include "reprise/runner/runner_shape.h"
#include "reprise/runner/slots/scheduled_batch.h"

namespace reprise {

// A row of a batch that is being built or in flight.
struct OpenRow {
  SequenceState* sequence = nullptr;
  // SequenceState::admission when the row was made. If the value differs at the commit, the
  // sequence has left its slot since, and the row is discarded.
  int64_t admission = 0;
  int first_token = 0;  // index of the row's first token; an upper bound after drafts in flight
  int num_tokens = 0;
  bool encodes = false;  // whether the step encodes the sequence's encoder input
  RowOutput output = RowOutput::kNone;
  // Number of tokens that the row generates: more than 1 if they are forced; with drafts, the
  // maximum.
  int num_new_tokens = 0;
  int num_drafts = 0;
  int num_levels = 0;             // maximum number of accepted drafts; for a chain num_drafts
  bool has_given_drafts = false;  // the drafts are predicted tokens of the request: a chain
  bool feeds_drafter = false;     // the step feeds its rows' tokens to a drafter with a KV cache
  bool scores_prompt = false;     // the row computes log-probabilities of prompt tokens
  int first_earlier = 0;          // index of the row's first entry in the step's earlier logits
  bool has_earlier = false;       // whether the row has such entries
};

class OpenBatches {
 public:
  explicit OpenBatches(const RunnerShape& shape);

  int size() const { return static_cast<int>(open_.size()); }
  bool empty() const { return open_.empty(); }

  // Appends `rows` as the newest batch. Replaces `rows` with the empty memory of a recycled batch.
  // REQUIRES: size() < max_steps_in_flight; `rows` is not empty.
  void Push(std::vector<OpenRow>& rows);

  // The rows of the oldest batch. REQUIRES: !empty().
  absl::Span<const OpenRow> oldest() const;

  // Removes a batch. Return its memory with Recycle(). REQUIRES: !empty().
  std::vector<OpenRow> TakeOldest();
  std::vector<OpenRow> TakeNewest();
  void Recycle(std::vector<OpenRow> rows);

  // All batches, oldest first.
  absl::Span<const std::vector<OpenRow>> batches() const { return open_; }

  void CheckInvariants() const;

 private:
  size_t max_open_;
  std::vector<std::vector<OpenRow>> open_;
  std::vector<std::vector<OpenRow>> spare_;  // empty, with memory for max_num_seqs rows
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_SCHEDULING_OPEN_BATCHES_H_
