// Trees of draft tokens by their definition: what attention/speculation/tree_tokens.h promises,
// written with vectors and loops. Shares no code with the operation, except for the arguments.

#ifndef REPRISE_ATTENTION_TESTING_SPECULATION_TREE_REFERENCE_H_
#define REPRISE_ATTENTION_TESTING_SPECULATION_TREE_REFERENCE_H_

#include "reprise/attention/speculation/tree_tokens_args.h"

namespace reprise {

// Writes all results over host memory. REQUIRES: CheckTreeTokens(args) is OK.
void TreeTokensByDefinition(const TreeTokensArgs& args);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_SPECULATION_TREE_REFERENCE_H_
