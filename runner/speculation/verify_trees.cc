#include "reprise/runner/speculation/verify_trees.h"

#include "reprise/attention/metadata/builder_sizes.h"
#include "reprise/base/check.h"
#include "reprise/base/lanes.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/kv_group.h"
#include "reprise/runner/speculation/speculation_options.h"
#include "reprise/runner/speculation/verify_drafts.h"

namespace reprise {
namespace {

class HostLanes : public SerialLanes {
 public:
  template <typename Predicate>
  int First(int begin, int end, Predicate predicate) const {
    while (begin < end && !predicate(begin)) ++begin;
    return begin;
  }
};

}  // namespace

absl::Status CheckVerifyTrees(const VerifyTreesArgs& args) {
  const VerifyDraftsArgs& drafts = args.drafts;
  REPRISE_RETURN_IF_ERROR(CheckBetween("drafts.max_drafts", drafts.max_drafts, 0, kMaxTreeDrafts));
  REPRISE_RETURN_IF_ERROR(CheckBetween("num_groups", args.num_groups, 1, kMaxKvGroups));
  REPRISE_RETURN_IF_ERROR(CheckBetween("max_moves", args.max_moves, 0, drafts.max_drafts));
  VerifyDraftsArgs chain = drafts;  // all else is as for chains
  chain.max_drafts = 0;
  REPRISE_RETURN_IF_ERROR(CheckVerifyDrafts(chain));
  if (drafts.num_rows == 0) return absl::OkStatus();
  if (args.max_moves > 0) {
    REPRISE_RETURN_IF_ERROR(CheckGiven({{"move_from", args.move_from}, {"move_to", args.move_to}}));
  }
  return CheckGiven({{"arrays.parents", drafts.arrays.parents},
                     {"arrays.slot_mapping", drafts.arrays.slot_mapping}});
}

void VerifyTreesOnHost(const VerifyTreesArgs& args) {
  for (int r = 0; r < args.drafts.num_rows; ++r) WriteVerifiedTree(HostLanes(), args, r);
}

}  // namespace reprise
