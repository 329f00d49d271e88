// Random batches with drafts, for tests of draft acceptance.
//
//   const AcceptShape shape = DrawAcceptShape(random);
//   BuilderMemory<AcceptDraftsArgs> memory(
//       [&](ArrayCarver& carver) { return CarveAcceptDrafts(shape, carver); });
//   DrawAcceptDrafts(random, shape, /*hostility=*/0, memory.args());
//   AcceptDraftsOnHost(memory.args());
//
// Rows have drafts or one token, or are padded, in any order over the slots. Hostility is the
// probability that a value is invalid: an index or length out of range, a parent that is not an
// earlier node, a negative token. Slots stay distinct. With hostility 0, no row has a fault.
//
// Thread safety: pure functions of their arguments.

#ifndef REPRISE_ATTENTION_TESTING_SPECULATION_ACCEPT_CASES_H_
#define REPRISE_ATTENTION_TESTING_SPECULATION_ACCEPT_CASES_H_

#include <cstdint>
#include <ostream>

#include "reprise/attention/speculation/accept_drafts_args.h"
#include "reprise/attention/testing/random.h"
#include "reprise/base/testing/builder_memory.h"

namespace reprise {

struct AcceptShape {
  int num_rows = 6;
  int num_slots = 8;       // at least num_rows
  int max_drafts = 4;      // 0 to 63
  int max_extra = 0;       // drafts of a row beyond max_drafts
  int vocab_size = 20;     // a small vocabulary makes equal drafts and accepted drafts likely
  int max_positions = 40;  // positions per history
  int num_groups = 1;
  bool has_trees = false;
  bool is_by_token = false;  // `chosen` has one entry per token
  int64_t parent_stride = TreeParents::kByToken;
  bool has_state = true;  // all state arrays, or none
  bool has_history = true;
  bool has_drafted_len = true;
  bool has_faults = true;
  int place_group = -1;  // group of place_tokens; -1: no place_tokens
  int num_outputs = 0;   // 0: output_stride is 0

  int max_row_tokens() const { return 1 + max_drafts + max_extra; }
  int num_tokens() const { return num_rows * max_row_tokens(); }
  int num_logits() const { return is_by_token ? num_tokens() : num_rows + num_tokens(); }
};

std::ostream& operator<<(std::ostream& out, const AcceptShape& shape);

// Up to 9 rows, or up to 300, with chains or with trees of up to 64 nodes, without max_extra.
AcceptShape DrawAcceptShape(Random& random);

AcceptDraftsArgs CarveAcceptDrafts(const AcceptShape& shape, ArrayCarver& carver);

// Fills the inputs of the operation and the state.
void DrawAcceptDrafts(Random& random, const AcceptShape& shape, double hostility,
                      AcceptDraftsArgs& args);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_SPECULATION_ACCEPT_CASES_H_
