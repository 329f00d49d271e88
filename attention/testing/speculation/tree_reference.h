// Trees of draft tokens by their definition: the contract of attention/speculation/tree_tokens.h,
// written with vectors and loops. Shares only the arguments with the operation.

#ifndef REPRISE_ATTENTION_TESTING_SPECULATION_TREE_REFERENCE_H_
#define REPRISE_ATTENTION_TESTING_SPECULATION_TREE_REFERENCE_H_

#include "reprise/attention/speculation/tree_tokens_args.h"

namespace reprise {

// Writes all results to host memory. REQUIRES: CheckTreeTokens(args) is OK.
void TreeTokensByDefinition(const TreeTokensArgs& args);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_SPECULATION_TREE_REFERENCE_H_
