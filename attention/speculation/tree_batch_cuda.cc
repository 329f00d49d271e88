// The device form of tree batches: launches the two operations.

#include "absl/status/status.h"
#include "reprise/attention/metadata/batch_gather.h"
#include "reprise/attention/speculation/tree_batch.h"
#include "reprise/attention/speculation/tree_tokens.h"
#include "reprise/base/status_macros.h"

namespace reprise {

absl::Status LaunchTreeBatch(const TreeBatchArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckTreeBatch(args));
  REPRISE_RETURN_IF_ERROR(LaunchBatchGather(ChainRowsOf(args), stream));
  return LaunchTreeTokens(TreeTokensOf(args), stream);
}

}  // namespace reprise
