// The rows of a draft model's passes by their definition: the contract of
// attention/speculation/draft_rows.h, written with vectors and loops. Shares only the arguments
// with the operation.

#ifndef REPRISE_ATTENTION_TESTING_SPECULATION_DRAFT_REFERENCE_H_
#define REPRISE_ATTENTION_TESTING_SPECULATION_DRAFT_REFERENCE_H_

#include "reprise/attention/speculation/draft_rows_args.h"

namespace reprise {

// Writes all results and the state to host memory. REQUIRES: CheckDraftRows(args) is OK.
void DraftRowsByDefinition(const DraftRowsArgs& args);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_SPECULATION_DRAFT_REFERENCE_H_
