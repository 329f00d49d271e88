// The passes of heads (runner/speculation/draft_heads.h) in a step, before the model's forward pass, and
// the hidden states that they read: of each slot the one that its newest token was chosen from.
//
//   auto heads = *HeadDrafts::Create({.heads = speculation.heads, ...});
//   heads->Passes(key);                    // the drafts of a step, into its token_ids
//   heads->Take(key, step, hidden);        // what the model's forward pass gave to Step::KeepHidden()
//   heads->KeepVerified(key);              // after the verification of a step with drafts
//
// Thread safety: none; one owner. All that it is given must outlive the functions that it returns.

#ifndef REPRISE_RUNNER_DRAFTING_HEAD_DRAFTS_H_
#define REPRISE_RUNNER_DRAFTING_HEAD_DRAFTS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/base/dtype.h"
#include "reprise/distributed/collectives.h"
#include "reprise/graphs/fingerprint.h"
#include "reprise/graphs/graph_key.h"
#include "reprise/runner/device/device_driver.h"
#include "reprise/runner/drafting/draft_trees.h"
#include "reprise/runner/speculation/draft_heads.h"
#include "reprise/runner/step.h"
#include "reprise/runner/step_memory.h"

namespace reprise {

struct HeadDraftsOptions {
  DraftHeads* heads = nullptr;
  // Null: one rank. Each has the heads as a whole, but may round in another way: all draw from the
  // logits of rank 0.
  Collectives* collectives = nullptr;
  DeviceDriver* driver = nullptr;
  const StepMemory* memory = nullptr;
  int hidden_dim = 0;
  DType dtype = DType::kFloat32;  // of the model
  int vocab_size = 0;
  int max_num_seqs = 0;
  int max_drafts = 0;
  int max_logits = 0;  // rows of a step
  // Keeps the logits of all passes, in this dtype, for rejection sampling. nullopt: does not.
  std::optional<DType> kept_logits_dtype = {};
};

class HeadDrafts {
 public:
  // Allocates. Errors: ResourceExhausted if the device has too little memory.
  static absl::StatusOr<std::unique_ptr<HeadDrafts>> Create(const HeadDraftsOptions& options);

  // The work that writes the drafts of a step at `key` into its token_ids: a pass for each of them, or
  // for each level of a tree, which chooses as many as follow a node. `trees` may be null: chains.
  std::function<absl::Status()> Passes(const GraphKey& key, const DraftTrees* trees) const;

  // Takes the hidden states [num_tokens, hidden_dim] of all tokens of `step`, and keeps the rows of
  // the tokens that have logits. Without drafts the slots have theirs then; with drafts
  // KeepVerified() gives them
  // those of the places that last_place() names. Errors: InvalidArgument if the shape or dtype
  // differs from the spec.
  absl::Status Take(const GraphKey& key, const Step& step, const at::Tensor& hidden);
  // Returns whether the forward pass has called Take() since the last call of this function.
  bool EndTake();
  absl::Status KeepVerified(const GraphKey& key) const;

  int32_t* last_place() const { return last_place_.data_ptr<int32_t>(); }  // [max_num_seqs]
  const at::Tensor& logits() const { return logits_; }  // undefined: they are not kept

  int64_t bytes() const;
  void AddTo(Fingerprint& fingerprint) const;

 private:
  explicit HeadDrafts(const HeadDraftsOptions& options) : options_(options) {}
  absl::Status Keep(const GraphKey& key, const at::Tensor& hidden, const int32_t* place) const;
  // Chooses the drafts of a pass: `num_choices` different ones, into chosen_ from row `first` on.
  absl::Status RunPass(const HeadsOutput& output, int pass, int first, int num_choices,
                       int num_rows) const;

  HeadDraftsOptions options_;
  at::Tensor slot_hidden_;  // [max_num_seqs, hidden_dim]
  at::Tensor positions_;    // [max_num_seqs] int32: of the tokens that they are of
  at::Tensor hidden_;       // [max_logits, hidden_dim] of a step with drafts
  at::Tensor last_place_;   // [max_num_seqs] int32
  at::Tensor chosen_;       // [max_drafts, max_num_seqs] int32: by pass and choice
  at::Tensor offsets_;      // [max_drafts, max_num_seqs] int32: the pass
  at::Tensor logits_;       // [max_drafts * max_num_seqs, vocab_size]
  bool has_taken_ = false;  // in the forward pass that is under way
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_DRAFTING_HEAD_DRAFTS_H_
