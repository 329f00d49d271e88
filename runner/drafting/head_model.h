// Heads with layers of their own (DraftHeads::layers()) as a draft model: their keys lie in the cache
// behind the model's, and DraftModel makes their passes. What they see besides tokens is kept here:
// of each slot the hidden states of its last tokens.
//
//   auto heads = *HeadModel::Create({.heads = speculation.heads, .of = &model->spec(), ...});
//   auto passes = *DraftModel::Create({.model = heads.get(), .heads = heads.get(), ...});
//   heads->Take(key, hidden);        // in each step: what the model gave to Step::KeepHidden()
//   passes->PromptPass(...)();       // if the step has chunks of prompts
//   heads->Keep(key, *driver);       // the step's states, for the next one
//
// Thread safety: none; one owner. All that it is given must outlive it and the graphs that call it.

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

// The spec of the heads' layers as those of a draft model of `model`.
ModelSpec HeadSpecOf(const DraftHeads& heads, const ModelSpec& model);

struct HeadModelOptions {
  DraftHeads* heads = nullptr;
  Collectives* collectives = nullptr;  // as in HeadDraftsOptions
  const ModelSpec* of = nullptr;       // the model whose hidden states they see
  const StepMemory* memory = nullptr;
  int max_num_seqs = 0;
  int max_num_tokens = 0;  // of a step, and of a pass
};

class HeadModel final : public Model {
 public:
  // Of a slot's last so many tokens the states are kept. Where more were decoded without drafts, the
  // heads see zeros in place of older ones.
  static constexpr int kKeptStates = 32;

  // Allocates. Errors: ResourceExhausted if the device has too little memory.
  static absl::StatusOr<std::unique_ptr<HeadModel>> Create(const HeadModelOptions& options);

  const ModelSpec& spec() const override { return spec_; }

  // What the next Forward() is about: pass `index` of a step with drafts, or a pass over the step's
  // own tokens, between Take() and Keep().
  static constexpr int kPromptPass = -1;
  void Begin(const StepArrays& arrays, int num_rows, int index, DeviceDriver& driver) {
    arrays_ = &arrays;
    num_rows_ = num_rows;
    index_ = index;
    driver_ = &driver;
  }
  absl::StatusOr<at::Tensor> Forward(const Step& step) override;

  // The hidden states [num_tokens, hidden_dim] of a step at `key`. Errors: InvalidArgument for
  // another shape or dtype.
  absl::Status Take(const GraphKey& key, const at::Tensor& hidden);
  // Whether Take() was called since the last Keep().
  bool has_taken() const { return step_hidden_.defined(); }
  // Keeps the states that Take() got: one launch. REQUIRES: has_taken().
  absl::Status Keep(const GraphKey& key, DeviceDriver& driver);

  // Nothing is known of slots that join.
  void Forget(absl::Span<const SlotJoin> joins);

  int64_t bytes() const;
  void AddTo(Fingerprint& fingerprint) const;

 private:
  // Where tokens are, [num_tokens] each: their rows, slots and positions.
  struct Places {
    at::Tensor row;       // int64
    at::Tensor slot;      // int64
    at::Tensor position;  // int32
    at::Tensor start;     // int32 of the row: its first token
  };

  explicit HeadModel(const HeadModelOptions& options);
  Places PlacesOf(const StepArrays& arrays, int num_rows, int64_t num_tokens) const;
  // What is kept of the token before each: zeros where nothing is.
  at::Tensor StatesBefore(const Places& places) const;
  // Keeps states of the rows of `arrays`: `hidden` of tokens.
  KeepStatesArgs ArgsToKeep(const StepArrays& arrays, int num_rows, int num_tokens,
                            const at::Tensor& hidden);

  HeadModelOptions options_;
  ModelSpec spec_;
  at::Tensor ids_;          // [max_num_tokens] int32 0, 1, 2, ...
  at::Tensor states_;       // [max_num_seqs * kKeptStates, hidden_dim]
  at::Tensor positions_;    // [max_num_seqs * kKeptStates] int32 of which position; below -1: none
  at::Tensor step_hidden_;  // between Take() and Keep()
  const StepArrays* arrays_ = nullptr;
  int num_rows_ = 0;
  int index_ = 0;
  DeviceDriver* driver_ = nullptr;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_DRAFTING_HEAD_MODEL_H_
