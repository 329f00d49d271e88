// A plain model of sequences and their tokens. Random calls drive the model together with a
// BlockManager and its SwapStore, and all are compared after each call.
//
//   RandomChoices choices(seed);
//   BlockManagerModel model({.manager = {...}, .num_host_blocks = 20}, &choices);
//   for (int i = 0; i < 100000; ++i) model.Step();
//
// The model stores each sequence as a list of tokens, and simulates device memory: one value per
// slot of a block. The value of a token's keys is a hash of its group and of all its inputs: the
// weights, every token before it, adapter, image, encoder input. Steps write those values through
// tables that are built only from updates. After each call that leaves no copy or swap-in pending,
// the model checks every value that may be needed at the address that the manager reports. This
// detects a hit on the wrong prefix, a block that is reallocated too early, and a missing copy or
// update.
//
// It detects each of these injected faults: no copy-on-write; no holds for swaps; in-place writes
// to blocks that a swap still reads; windows one token too small; hits on overwritten content; hits
// on keys of old weights; hits on blocks that a swap has not filled yet; and lost updates.
//
// CHECK-fails with the number and name of the call at the first difference. For tests and fuzzers.

#ifndef REPRISE_CACHE_TESTING_BLOCK_MANAGER_MODEL_H_
#define REPRISE_CACHE_TESTING_BLOCK_MANAGER_MODEL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "reprise/base/ids.h"
#include "reprise/cache/blocks/block_manager.h"
#include "reprise/cache/blocks/swap_store.h"
#include "reprise/cache/tables/block_table.h"
#include "reprise/cache/testing/choices.h"
#include "reprise/cache/testing/delayed_stream.h"

namespace reprise {

struct BlockManagerModelOptions {
  BlockManagerOptions manager;
  int num_host_blocks = 20;
};

class BlockManagerModel {
 public:
  BlockManagerModel(const BlockManagerModelOptions& options, Choices* choices);

  // Makes one call and runs all checks.
  void Step();

  // Number of occurrences of each event that a run must reach, by name. An event with count 0 was
  // not tested.
  const std::map<std::string, int64_t>& counts() const { return counts_; }

 private:
  // The inputs of keys and values other than tokens.
  struct Origin {
    int epoch = 0;           // version of the weights
    int adapter = 0;         // 0: none
    int image = 0;           // 0: none
    int first_of_image = 0;  // tokens [first, first + num_of_image) are its placeholders
    int num_of_image = 0;
    int encoder = 0;  // 0: none
    int num_encoder_tokens = 0;
    bool encoder_has_name = false;
  };
  struct Sequence {
    Origin origin;
    std::vector<int32_t> tokens;   // [num_tokens]
    std::vector<uint64_t> values;  // by token: a hash of all its inputs
    int num_written = 0;
    int num_committed = 0;
    bool is_known = true;  // other sequences can hit its committed blocks
    bool encoder_is_written = false;
    bool encoder_is_committed = false;
    bool is_swapping_out = false;  // planned to be swapped out
    bool is_swapping_in = false;   // planned to be swapped in
    SequenceId id{0};              // while swapping out, stored or swapping in

    int num_tokens() const { return static_cast<int>(tokens.size()); }
  };

  int Below(int n) { return choices_->Below(n); }
  SlotId AnySlot();
  SlotId AnyEmptySlot();
  std::optional<SlotId> AnySequence();
  int AnyCount();
  bool IsSlot(SlotId slot) const;
  bool MayLackBlocksToTruncate(SlotId slot, int num_tokens) const;

  void AddRoom();
  void AddPrompt();
  void AppendBatch();
  void Commit();
  void CommitUnknown();
  void Fork();
  void Truncate();
  void Free();
  void PlanOut();
  void PlanIn();
  void Drop();
  void LaunchSwaps();
  void AbandonSwaps();
  void SubmitSwaps(int num_swaps_in);
  void Store(SlotId slot);
  int NumPlannedIn() const;
  void RunSwap();
  void LaunchStep();
  void BadCall();
  void ForgetPrefixes();

  // Computes values for all tokens without one.
  void FillValues(Sequence& sequence);
  void Grow(Sequence& sequence, int num_tokens);
  uint64_t ValueAfter(const Sequence& sequence, uint64_t before, int position, int32_t token) const;
  uint64_t RootOf(const Origin& origin) const;
  void WriteTokens(SlotId slot, Sequence& sequence);
  void WriteEncoder(SlotId slot, Sequence& sequence);
  void FinishSwapsIn();
  int LongestKnownPrefix(const Sequence& sequence) const;
  void Leave(SlotId slot);
  void Remember(const Sequence& sequence);

  std::string Where() const;
  int NumNull(SlotId slot) const;
  void CheckDeviceRows(SlotId slot) const;
  void Check();
  void CheckContent();
  std::vector<int64_t> Snapshot() const;
  // Expects a status with one of these codes. A failed call must change nothing.
  void Expect(const absl::Status& status, std::vector<absl::StatusCode> codes,
              const std::vector<int64_t>& before);

  const BlockManagerModelOptions options_;
  const int block_size_;
  const int num_row_tokens_;
  Choices* choices_;
  DelayedStream swap_stream_;
  std::unique_ptr<BlockManager> manager_;
  std::unique_ptr<SwapStore> store_;
  std::vector<BlockTable> device_tables_;  // indexed by group
  std::vector<uint64_t> memory_;
  std::vector<uint64_t> host_memory_;
  std::map<SlotId, Sequence> live_;
  std::map<SequenceId, Sequence> stored_;
  std::vector<Sequence> remembered_;  // sources of new, similar sequences
  std::vector<SlotId> left_;          // slots that became empty since the last step
  int epoch_ = 0;                     // number of ForgetPrefixes() calls
  int num_swaps_in_ = 0;              // number of swap-ins waiting in the stream
  int64_t next_id_ = 0;
  int64_t num_calls_ = 0;
  std::string call_;
  std::map<std::string, int64_t> counts_;
};

}  // namespace reprise

#endif  // REPRISE_CACHE_TESTING_BLOCK_MANAGER_MODEL_H_
