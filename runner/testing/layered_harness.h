// Drives a ModelRunner over a LayeredModel with a BlockManager of its KV groups, and computes the
// expected result of each step: for tests of windows, chunks, shared keys and encoders on any
// device.
//
//   auto harness = *LayeredHarness::Create({.max_num_seqs = 4}, {.layers = ...});
//   harness->Join(SlotId(0), {.text = {1, 2, 3}});
//   ASSERT_OK(harness->Step({SlotId(0)}));   // prefill, in chunks if so set; then decode
//   harness->ExpectTokensAndLogits();        // against a dense forward in float64
//
// Cache memory is NaN at first, and again in every block that returns to the pool.

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
  std::vector<int32_t> encoder_text = {};  // of models with an encoder
  int num_prompt_tokens = 0;               // set by Join()
  int num_computed = 0;                    // first tokens of the text whose keys are cached
  bool is_new = true;
};

class LayeredHarness {
 public:
  static absl::StatusOr<std::unique_ptr<LayeredHarness>> Create(const ModelRunnerOptions& options,
                                                                const LayeredModelOptions& model);

  // A sequence enters with the next Step() that has its slot; it leaves with the next Step().
  void Join(SlotId slot, LayeredSequence sequence);
  void Leave(SlotId slot);

  // One step of these slots: each computes what it has, at most `max_chunk` tokens of it.
  absl::Status Step(const std::vector<SlotId>& slots, int max_chunk = 1000);

  // Checks that the last step's tokens follow from its logits, and that these are near a dense
  // forward.
  void ExpectTokensAndLogits();

  const LayeredSequence& sequence(SlotId slot) const { return sequences_[slot.value()]; }
  // Whether its next row is of one token.
  bool decodes(SlotId slot) const;
  const GraphDecision& decision() const { return decision_; }
  // Of the last step, [rows, vocab_size].
  const at::Tensor& logits() const { return logits_; }
  ModelRunner& runner() { return *runner_; }
  const BlockManager& blocks() const { return *blocks_; }
  // Blocks that the sequence holds in a group.
  int num_blocks(SlotId slot, int group) const;

 private:
  LayeredHarness(const LayeredModelOptions& model, int max_num_seqs);
  // Room for the slot's next `num_tokens` tokens; adds it to the joins and encodes if it is new.
  absl::Status MakeRoom(SlotId slot, int num_tokens);
  // Fills blocks that no sequence holds, or will hold, with NaN.
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
  std::vector<RowResult> rows_;  // of the last step
  GraphDecision decision_;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_LAYERED_HARNESS_H_
