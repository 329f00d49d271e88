#include "reprise/runner/drafting/draft_trees.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "reprise/attention/speculation/move_kv.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"

namespace reprise {

absl::StatusOr<std::unique_ptr<DraftTrees>> DraftTrees::Create(const DraftTreesOptions& options) {
  return CatchTorchOr([&]() -> absl::StatusOr<std::unique_ptr<DraftTrees>> {
    auto trees = std::unique_ptr<DraftTrees>(new DraftTrees(options));
    const at::TensorOptions on_device(options.driver->device());
    std::vector<int32_t> tree(options.tree.begin(), options.tree.end());
    const std::vector<int32_t> ranks = RanksOf(options.tree);
    tree.insert(tree.end(), ranks.begin(), ranks.end());
    const int64_t size = trees->tree_size();
    trees->tree_ = at::zeros({2, size}, on_device.dtype(at::kInt));
    if (size > 0) {
      trees->tree_.copy_(at::from_blob(tree.data(), {2, size}, at::TensorOptions(at::kInt)));
    }
    const int64_t num_moves =
        int64_t{options.num_groups} * options.max_num_seqs * options.max_drafts;
    trees->moves_ = at::zeros({2, num_moves}, on_device.dtype(at::kLong));
    return trees;
  });
}

absl::Status DraftTrees::SetLayers(absl::Span<const KvLayer> kv, const LayerClasses& classes) {
  groups_.clear();
  for (int group = 0; group < options_.num_groups; ++group) {
    // Layers that share keys move them once.
    std::vector<KvLayer> left;
    for (size_t i = 0; i < kv.size(); ++i) {
      const std::optional<int> of_layer = classes.classes[classes.class_of_layer[i]].kv_group;
      const bool is_there =
          absl::c_any_of(left, [&](const KvLayer& layer) { return layer.k.data == kv[i].k.data; });
      if (of_layer == group && kv[i].k.data != nullptr && !is_there) left.push_back(kv[i]);
    }
    while (!left.empty()) {
      std::vector<KvLayer> alike;
      std::vector<KvLayer> others;
      for (const KvLayer& layer : left) {
        const KvLayer pair[] = {left[0], layer};
        const bool is_alike = alike.size() < kMaxMoveLayers && MakeMoveKvArgs(pair).ok();
        (is_alike ? alike : others).push_back(layer);
      }
      REPRISE_ASSIGN_OR_RETURN(const MoveKvArgs args, MakeMoveKvArgs(alike));
      groups_.push_back({.group = group, .args = args});
      left = std::move(others);
    }
  }
  return absl::OkStatus();
}

const int32_t* DraftTrees::ranks() const {
  return tree_size() == 0 ? nullptr : tree() + tree_size();
}

const int32_t* DraftTrees::tree() const {
  return tree_size() == 0 ? nullptr : tree_.const_data_ptr<int32_t>();
}

absl::Status DraftTrees::Accept(const AcceptDraftsArgs& args, int num_drafts) {
  auto* from = moves_.data_ptr<int64_t>();
  int64_t* to = from + moves_.size(1);
  AcceptDraftsArgs of_trees = args;
  of_trees.max_drafts = num_drafts;
  of_trees.move_from = from;
  of_trees.move_to = to;
  REPRISE_RETURN_IF_ERROR(options_.driver->AcceptDrafts(of_trees));
  for (GroupMoves& moves : groups_) {
    const int64_t first = int64_t{moves.group} * args.num_rows * num_drafts;
    moves.args.move_from = from + first;
    moves.args.move_to = to + first;
    moves.args.row_stride = num_drafts;
    moves.args.num_rows = args.num_rows;
    moves.args.max_moves = num_drafts;
    REPRISE_RETURN_IF_ERROR(options_.driver->MoveKeys(moves.args));
  }
  return absl::OkStatus();
}

void DraftTrees::AddTo(Fingerprint& fingerprint) const {
  fingerprint.AddAddress("tree of drafts", tree_.const_data_ptr());
  fingerprint.AddAddress("moves of accepted keys", moves_.const_data_ptr());
}

int64_t DraftTrees::bytes() const { return static_cast<int64_t>(tree_.nbytes() + moves_.nbytes()); }

}  // namespace reprise
