// Extra state for tree-shaped drafts: the proposed tree, and after verification the moves that
// compact the keys of the accepted path, in all layers including a draft model's layers.
//
//   auto trees = *DraftTrees::Create({.tree = speculation.tree, .max_drafts = 12, ...});
//   trees->SetLayers(layers, classes);          // the layers of the cache
//   RefillArgs{..., .tree = trees->tree(), .tree_size = trees->tree_size()};
//   trees->Accept(args, /*num_drafts=*/12);     // instead of DeviceDriver::AcceptDrafts()
//
// Thread safety: none; one owner. The driver must outlive it.

#ifndef REPRISE_RUNNER_DRAFTING_DRAFT_TREES_H_
#define REPRISE_RUNNER_DRAFTING_DRAFT_TREES_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/attention/layer_classes.h"
#include "reprise/attention/speculation/accept_drafts_args.h"
#include "reprise/attention/speculation/move_kv_args.h"
#include "reprise/cache/storage/kv_layer.h"
#include "reprise/graphs/fingerprint.h"
#include "reprise/runner/device/device_driver.h"
#include "reprise/runner/speculation/draft_levels.h"

namespace reprise {

struct DraftTreesOptions {
  std::vector<int> tree = {};  // SpeculationOptions::tree
  int max_drafts = 0;          // maximum number of drafts per row
  int max_num_seqs = 0;
  int num_groups = 1;
  DeviceDriver* driver = nullptr;
};

class DraftTrees {
 public:
  // Allocates on LibTorch's current stream. Errors: ResourceExhausted if the device has too little
  // memory.
  static absl::StatusOr<std::unique_ptr<DraftTrees>> Create(const DraftTreesOptions& options);

  // Sets the layers whose keys are moved; `kv` has one entry per layer of `classes`. Errors: as
  // MakeMoveKvArgs().
  absl::Status SetLayers(absl::Span<const KvLayer> kv, const LayerClasses& classes);

  // On the device: the parent and the child index of each proposed draft; null without a tree.
  const int32_t* tree() const;
  const int32_t* ranks() const;
  int tree_size() const { return static_cast<int>(options_.tree.size()); }
  absl::Span<const int> parents() const { return options_.tree; }  // on the host

  // Accepts the drafts of a step's rows, at most `num_drafts` per row, and moves their keys. Sets
  // the move fields of `args` itself. Does not allocate.
  absl::Status Accept(const AcceptDraftsArgs& args, int num_drafts);

  int64_t bytes() const;
  void AddTo(Fingerprint& fingerprint) const;

 private:
  struct GroupMoves {
    int group = 0;
    MoveKvArgs args;
  };

  explicit DraftTrees(const DraftTreesOptions& options) : options_(options) {}

  DraftTreesOptions options_;
  at::Tensor tree_;                 // [2, tree_size] int32: parents, child indices
  at::Tensor moves_;                // [2, num_groups * max_num_seqs * max_drafts] int64: from, to
  std::vector<GroupMoves> groups_;  // layers with the same group and layout
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_DRAFTING_DRAFT_TREES_H_
