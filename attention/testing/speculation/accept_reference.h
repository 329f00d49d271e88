// The acceptance of drafts by its definition: what attention/speculation/accept_drafts.h promises,
// written with vectors and loops. Shares no code with the operation, except for the arguments.

#ifndef REPRISE_ATTENTION_TESTING_SPECULATION_ACCEPT_REFERENCE_H_
#define REPRISE_ATTENTION_TESTING_SPECULATION_ACCEPT_REFERENCE_H_

#include "reprise/attention/speculation/accept_drafts_args.h"

namespace reprise {

// Writes all results and the state, over host memory. REQUIRES: CheckAcceptDrafts(args) is OK.
void AcceptByDefinition(const AcceptDraftsArgs& args);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_SPECULATION_ACCEPT_REFERENCE_H_
