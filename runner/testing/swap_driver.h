// Drives a ModelRunner with sequences that are swapped out and in. For tests of swaps on any
// device.
//
//   auto driver = *SwapDriver::Create(&model, {.max_num_seqs = 4, .cache = {.swap = NumBlocks{20}}});
//   driver->Join(7, SlotId(0), {.text = {1, 2, 3}});
//   ASSERT_OK(driver->Step({7}));           // prefill, later decode
//   driver->Out(7);                         // the next step swaps its blocks out
//   driver->Back(7, SlotId(2));             // the next step swaps its blocks in
//
// A runner without host blocks serves as a reference: its Out() and Back() do nothing, and
// everything else is equal.
//
// Cache memory is filled with NaN initially. Steps may be launched before earlier steps are
// awaited.

#ifndef REPRISE_RUNNER_TESTING_SWAP_DRIVER_H_
#define REPRISE_RUNNER_TESTING_SWAP_DRIVER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/base/ids.h"
#include "reprise/cache/block_copy.h"
#include "reprise/cache/blocks/block_manager.h"
#include "reprise/cache/blocks/swap_store.h"
#include "reprise/runner/model_runner.h"

namespace reprise {

struct SwapSequence {
  std::vector<int32_t> text = {};          // the prompt; sampled tokens are appended
  std::vector<int32_t> encoder_text = {};  // for models with an encoder
};

class SwapDriver {
 public:
  static absl::StatusOr<std::unique_ptr<SwapDriver>> Create(Model* model,
                                                            const ModelRunnerOptions& options);

  // The sequence enters with its first row.
  void Join(int id, SlotId slot, SwapSequence sequence);
  void Leave(int id);
  // REQUIRES: no step of the sequence is in flight; Back() has not been called since the last
  // launch.
  void Out(int id);
  void Back(int id, SlotId slot);

  // Runs a step with a row for each sequence. AwaitOldest() stores its logits [rows, vocab_size] on
  // the CPU.
  absl::Status Step(const std::vector<int>& ids);
  absl::Status Launch(const std::vector<int>& ids);
  absl::Status AwaitOldest();

  const at::Tensor& logits() const { return logits_; }
  const std::vector<int32_t>& text(int id) const { return sequences_.at(id).text; }
  ModelRunner& runner() { return *runner_; }
  const BlockManager& blocks() const { return *blocks_; }
  const SwapStore* store() const { return store_ ? &*store_ : nullptr; }
  // Returns the number of cache blocks that were assigned again after they had been swapped out.
  int num_reused() const { return num_reused_; }

 private:
  enum class Entry { kNone, kNew, kReturned };
  struct Sequence {
    SlotId slot;
    std::vector<int32_t> text;
    std::vector<int32_t> encoder_text;
    Entry entry = Entry::kNew;  // how the sequence enters with its next row
    int num_launched = 0;       // tokens with keys that are cached or computed by a step in flight
  };
  struct InFlight {
    int64_t ticket;
    std::vector<int> ids;
    std::vector<int> num_tokens;  // by row
  };

  SwapDriver() = default;
  absl::StatusOr<ScheduledRow> RowOf(Sequence& sequence);

  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<BlockManager> blocks_;
  std::optional<SwapStore> store_;
  std::map<int, Sequence> sequences_;
  std::vector<SlotId> leaves_;
  std::vector<SlotJoin> joins_;
  std::vector<ScheduledEncode> encodes_;
  std::vector<BlockCopy> swap_outs_;
  std::vector<BlockCopy> swap_ins_;
  std::deque<InFlight> in_flight_;
  std::map<int, bool> went_out_;  // swapped-out cache blocks
  int num_reused_ = 0;
  at::Tensor logits_;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_SWAP_DRIVER_H_
