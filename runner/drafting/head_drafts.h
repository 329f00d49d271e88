// Runs the passes of draft heads without attention layers (runner/speculation/draft_heads.h) before
// the model's forward pass. Stores their input: for each slot, the hidden state that its newest
// token was sampled from.
//
//   auto heads = *HeadDrafts::Create({.heads = speculation.heads(), ...});
//   heads->Passes(key, trees)();           // writes the drafts of a step into its token_ids
//   heads->Take(key, step, hidden);        // the model's argument of Step::KeepHidden()
//   heads->KeepVerified(key);              // after the verification of a step with drafts
//
// Thread safety: none; one owner. This object and the objects that it is given must outlive the
// functions that it returns.

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
  // Null: one rank. Each rank holds all of the heads, but ranks may round differently, so all ranks
  // sample from the logits of rank 0.
  Collectives* collectives = nullptr;
  DeviceDriver* driver = nullptr;
  const StepMemory* memory = nullptr;
  int hidden_dim = 0;
  DType dtype = DType::kFloat32;  // the model's dtype
  int vocab_size = 0;
  int max_num_seqs = 0;
  int max_drafts = 0;
  int max_logits = 0;  // rows of logits per step
  // For rejection sampling: keeps the logits of all passes, in this dtype. nullopt: does not keep
  // them.
  std::optional<DType> kept_logits_dtype = {};
};

class HeadDrafts {
 public:
  // Allocates. Errors: ResourceExhausted if the device has too little memory.
  static absl::StatusOr<std::unique_ptr<HeadDrafts>> Create(const HeadDraftsOptions& options);

  // Returns the work that writes the drafts of a step at `key` into its token_ids. Runs one pass
  // per draft, or for a tree one pass per level, which samples one token per child index. `trees`
  // null: drafts are chains.
  std::function<absl::Status()> Passes(const GraphKey& key, const DraftTrees* trees) const;

  // Receives the hidden states [num_tokens, hidden_dim] of all tokens of `step`, and keeps the
  // states of the tokens that have logits. In a step without drafts, stores them in the slots. In a
  // step with drafts, KeepVerified() stores them: the state at last_place() for each row. Errors:
  // InvalidArgument if the shape or dtype differs from the spec.
  absl::Status Take(const GraphKey& key, const Step& step, const at::Tensor& hidden);
  // Returns whether the forward pass has called Take() since the last call of this function.
  bool EndTake();
  absl::Status KeepVerified(const GraphKey& key) const;

  int32_t* last_place() const { return last_place_.data_ptr<int32_t>(); }  // [max_num_seqs]
  const at::Tensor& logits() const { return logits_; }  // undefined if they are not kept

  int64_t bytes() const;
  void AddTo(Fingerprint& fingerprint) const;

 private:
  explicit HeadDrafts(const HeadDraftsOptions& options) : options_(options) {}
  absl::Status Keep(const GraphKey& key, const at::Tensor& hidden, const int32_t* place) const;
  // Samples `num_choices` different drafts of a pass into chosen_, starting at row `first`.
  absl::Status RunPass(const HeadsOutput& output, int pass, int first, int num_choices,
                       int num_rows) const;

  HeadDraftsOptions options_;
  at::Tensor slot_hidden_;  // [max_num_seqs, hidden_dim]
  at::Tensor positions_;    // [max_num_seqs] int32: positions of the tokens of slot_hidden_
  at::Tensor hidden_;       // [max_logits, hidden_dim] hidden states of a step with drafts
  at::Tensor last_place_;   // [max_num_seqs] int32
  at::Tensor chosen_;       // [max_drafts, max_num_seqs] int32: one row per pass and choice
  at::Tensor offsets_;      // [max_drafts, max_num_seqs] int32: row i holds i
  at::Tensor logits_;       // [max_drafts * max_num_seqs, vocab_size]
  bool has_taken_ = false;  // whether Take() was called in the current forward pass
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_DRAFTING_HEAD_DRAFTS_H_
