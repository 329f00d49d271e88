// The rows of a draft model's passes by their definition: what attention/speculation/draft_rows.h
// promises, written with vectors and loops. Shares no code with the operation, except for the
// arguments.

#ifndef REPRISE_ATTENTION_TESTING_SPECULATION_DRAFT_REFERENCE_H_
#define REPRISE_ATTENTION_TESTING_SPECULATION_DRAFT_REFERENCE_H_

#include "reprise/attention/speculation/draft_rows_args.h"

namespace reprise {

// Writes all results and the state, over host memory. REQUIRES: CheckDraftRows(args) is OK.
void DraftRowsByDefinition(const DraftRowsArgs& args);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_SPECULATION_DRAFT_REFERENCE_H_
