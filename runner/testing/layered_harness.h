// Drives a ModelRunner over a LayeredModel with a BlockManager for its KV groups, and computes the
// expected result of each step. For tests of windows, chunks, shared keys and encoders on any
// device.
//
//   auto harness = *LayeredHarness::Create({.max_num_seqs = 4}, {.layers = ...});
//   harness->Join(SlotId(0), {.text = {1, 2, 3}});
//   ASSERT_OK(harness->Step({SlotId(0)}));   // prefill (with max_chunk, in chunks), then decode
//   harness->ExpectTokensAndLogits();        // compares with a dense forward pass in float64
//
// Cache memory is filled with NaN initially. Blocks that have returned to the pool are filled with
// NaN again by the next Step().

#ifndef REPRISE_RUNNER_TESTING_LAYERED_HARNESS_H_
#define REPRISE_RUNNER_TESTING_LAYERED_HARNESS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/base/ids.h"
#include "reprise/cache/blocks/block_manager.h"
#include "reprise/runner/model_runner.h"
#include "reprise/runner/testing/layered_model.h"

namespace reprise {

struct LayeredSequence {
  std::vector<int32_t> text = {};          // the prompt; sampled tokens are appended
  std::vector<int32_t> encoder_text = {};  // for models with an encoder
  int num_prompt_tokens = 0;               // set by Join()
  int num_computed = 0;  // number of leading tokens of `text` whose keys are cached
  bool is_new = true;
};

class LayeredHarness {
 public:
  static absl::StatusOr<std::unique_ptr<LayeredHarness>> Create(const ModelRunnerOptions& options,
                                                                const LayeredModelOptions& model);

  // The sequence of Join() enters with the next Step() that has its slot. The sequence of Leave()
  // leaves with the next Step().
  void Join(SlotId slot, LayeredSequence sequence);
  void Leave(SlotId slot);

  // Runs one step of these slots. Each slot computes its pending tokens, at most `max_chunk` of
  // them.
  absl::Status Step(const std::vector<SlotId>& slots, int max_chunk = 1000);

  // Checks that the last step's tokens follow from its logits, and that the logits are close to
  // those of a dense forward pass.
  void ExpectTokensAndLogits();

  const LayeredSequence& sequence(SlotId slot) const { return sequences_[slot.value()]; }
  // Whether the sequence's next row has one token.
  bool decodes(SlotId slot) const;
  const GraphDecision& decision() const { return decision_; }
  // Logits of the last step, [rows, vocab_size].
  const at::Tensor& logits() const { return logits_; }
  ModelRunner& runner() { return *runner_; }
  const BlockManager& blocks() const { return *blocks_; }
  // Returns the number of blocks that the sequence holds in a group.
  int num_blocks(SlotId slot, int group) const;

 private:
  LayeredHarness(const LayeredModelOptions& model, int max_num_seqs);
  // Allocates blocks for the slot's next `num_tokens` tokens. Adds a new sequence to joins_ and
  // encodes_.
  absl::Status MakeRoom(SlotId slot, int num_tokens);
  // Fills blocks that are neither held nor about to be held with NaN.
  void PoisonFreeBlocks();

  LayeredModel model_;
  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<BlockManager> blocks_;
  std::vector<LayeredSequence> sequences_;  // by slot
  std::vector<SlotId> leaves_;
  std::vector<SlotJoin> joins_;
  std::vector<ScheduledEncode> encodes_;
  std::vector<bool> was_held_;  // by block
  at::Tensor logits_;
  struct RowResult {
    SlotId slot;
    bool sampled;
    std::vector<int32_t> text;  // up to the row's last token
  };
  std::vector<RowResult> rows_;  // rows of the last step
  GraphDecision decision_;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_LAYERED_HARNESS_H_
