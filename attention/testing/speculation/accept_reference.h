// The acceptance of drafts by its definition: the contract of
// attention/speculation/accept_drafts.h, written with vectors and loops. Shares only the arguments
// with the operation.

#ifndef REPRISE_ATTENTION_TESTING_SPECULATION_ACCEPT_REFERENCE_H_
#define REPRISE_ATTENTION_TESTING_SPECULATION_ACCEPT_REFERENCE_H_

#include "reprise/attention/speculation/accept_drafts_args.h"

namespace reprise {

// Writes all results and the state to host memory. REQUIRES: CheckAcceptDrafts(args) is OK.
void AcceptByDefinition(const AcceptDraftsArgs& args);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_SPECULATION_ACCEPT_REFERENCE_H_
