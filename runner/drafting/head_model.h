// Presents draft heads with layers (DraftHeads::layers()) as a draft model. Their KV layers follow
// the model's layers, and DraftModel runs them. This class keeps their second input: the hidden
// states of each slot's last tokens.
//
//   auto heads = *HeadModel::Create({.heads = speculation.heads(), .of = &model->spec(), ...});
//   auto passes = *DraftModel::Create({.model = heads.get(), .heads = heads.get(), ...});
//   heads->Take(key, hidden);        // in each step: the model's argument of Step::KeepHidden()
//   passes->PromptPass(...)();       // if the step has prefill chunks
//   heads->Keep(key, *driver);       // stores the step's states for the next step
//
// Thread safety: none; one owner. The objects that it is given must outlive it and the graphs that
// call it.

#ifndef REPRISE_RUNNER_DRAFTING_HEAD_MODEL_H_
#define REPRISE_RUNNER_DRAFTING_HEAD_MODEL_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/distributed/collectives.h"
#include "reprise/graphs/fingerprint.h"
#include "reprise/graphs/graph_key.h"
#include "reprise/runner/device/device_driver.h"
#include "reprise/runner/model.h"
#include "reprise/runner/slots/scheduled_batch.h"
#include "reprise/runner/slots/step_arrays.h"
#include "reprise/runner/speculation/draft_heads.h"
#include "reprise/runner/speculation/keep_states.h"
#include "reprise/runner/step_memory.h"

namespace reprise {

// Returns the spec of a draft model for `model` that has the heads' layers.
ModelSpec HeadSpecOf(const DraftHeads& heads, const ModelSpec& model);

struct HeadModelOptions {
  DraftHeads* heads = nullptr;
  Collectives* collectives = nullptr;  // as in HeadDraftsOptions
  const ModelSpec* of = nullptr;       // the model whose hidden states the heads read
  const StepMemory* memory = nullptr;
  int max_num_seqs = 0;
  int max_num_tokens = 0;  // maximum number of tokens per step and per pass
};

class HeadModel final : public Model {
 public:
  // Number of tokens per slot whose hidden states are kept. If more tokens were decoded without
  // drafts, the heads read zeros for the older ones.
  static constexpr int kKeptStates = 32;

  // Allocates. Errors: ResourceExhausted if the device has too little memory.
  static absl::StatusOr<std::unique_ptr<HeadModel>> Create(const HeadModelOptions& options);

  const ModelSpec& spec() const override { return spec_; }

  // Sets what the next Forward() computes: pass `index` of a step with drafts, or kPromptPass, the
  // pass over the step's own tokens between Take() and Keep().
  static constexpr int kPromptPass = -1;
  void Begin(const StepArrays& arrays, int num_rows, int index, DeviceDriver& driver) {
    arrays_ = &arrays;
    num_rows_ = num_rows;
    index_ = index;
    driver_ = &driver;
  }
  absl::StatusOr<at::Tensor> Forward(const Step& step) override;

  // Receives the hidden states [num_tokens, hidden_dim] of a step at `key`. Errors: InvalidArgument
  // if the shape or dtype differs from the spec.
  absl::Status Take(const GraphKey& key, const at::Tensor& hidden);
  // Returns whether Take() was called since the last Keep().
  bool has_taken() const { return step_hidden_.defined(); }
  // Stores the states of the last Take() in the slots: one launch. REQUIRES: has_taken().
  absl::Status Keep(const GraphKey& key, DeviceDriver& driver);

  // Marks the states of joining slots as unknown.
  void Forget(absl::Span<const SlotJoin> joins);

  int64_t bytes() const;
  void AddTo(Fingerprint& fingerprint) const;

 private:
  // The row, slot and position of each token, [num_tokens] each.
  struct Places {
    at::Tensor row;       // int64
    at::Tensor slot;      // int64
    at::Tensor position;  // int32
    at::Tensor start;     // int32: index of the first token of its row
  };

  explicit HeadModel(const HeadModelOptions& options);
  Places PlacesOf(const StepArrays& arrays, int num_rows, int64_t num_tokens) const;
  // Returns the stored state of the token before each token; zeros if it is unknown.
  at::Tensor StatesBefore(const Places& places) const;
  // Returns the arguments that store `hidden`, the states of the tokens of the rows of `arrays`.
  KeepStatesArgs ArgsToKeep(const StepArrays& arrays, int num_rows, int num_tokens,
                            const at::Tensor& hidden);

  HeadModelOptions options_;
  ModelSpec spec_;
  at::Tensor ids_;     // [max_num_tokens] int32 0, 1, 2, ...
  at::Tensor states_;  // [max_num_seqs * kKeptStates, hidden_dim]
  // [max_num_seqs * kKeptStates] int32: position of each state's token; below -1: no state.
  at::Tensor positions_;
  at::Tensor step_hidden_;  // set between Take() and Keep()
  const StepArrays* arrays_ = nullptr;
  int num_rows_ = 0;
  int index_ = 0;
  DeviceDriver* driver_ = nullptr;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_DRAFTING_HEAD_MODEL_H_
