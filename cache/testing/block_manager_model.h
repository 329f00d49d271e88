// A plain model of sequences and their tokens beside a BlockManager and its SwapStore, driven by
// random calls, and everything checked after each.
//
//   RandomChoices choices(seed);
//   BlockManagerModel model({.manager = {...}, .num_host_blocks = 20}, &choices);
//   for (int i = 0; i < 100000; ++i) model.Step();
//
// The model keeps each sequence as a list of tokens, and a memory as a device would: one value a
// slot of a block. The value of a token's keys is a hash of its group and of all that it depends
// on: every token before it, adapter, image, encoder input. Steps write those values through tables
// that are fed by updates alone; after each call every value is looked for where the manager says
// it is. So a hit on the wrong prefix, a block handed out too early, a missing copy or update show
// at once.
//
// It has been seen to fail, within a second, with a copy on write left out, with the fences of
// swaps left out, with writes in place under a swap that still reads, with windows one token too
// small, with content found after it was overwritten, and with updates lost.
//
// CHECK-fails with the call's number and name where anything differs. For tests and fuzzers.

#ifndef CACHE_TESTING_BLOCK_MANAGER_MODEL_H_
#define CACHE_TESTING_BLOCK_MANAGER_MODEL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/ids.h"
#include "cache/block_manager.h"
#include "cache/block_table.h"
#include "cache/swap_store.h"
#include "cache/testing/choices.h"
#include "cache/testing/delayed_stream.h"

namespace reprise {

struct BlockManagerModelOptions {
  BlockManagerOptions manager;
  int num_host_blocks = 20;
};

class BlockManagerModel {
 public:
  BlockManagerModel(const BlockManagerModelOptions& options, Choices* choices);

  // One call and all checks.
  void Step();

  // How often what a run should have met has happened, by name: a test that never met a thing has
  // not tested it.
  const std::map<std::string, int64_t>& counts() const { return counts_; }

 private:
  // What keys and values depend on beside the tokens.
  struct Origin {
    int adapter = 0;         // 0: none
    int image = 0;           // 0: none
    int first_of_image = 0;  // tokens [first, first + num_of_image) stand for it
    int num_of_image = 0;
    int encoder = 0;  // 0: none
    int num_encoder_tokens = 0;
    bool encoder_has_name = false;
  };
  struct Sequence {
    Origin origin;
    std::vector<int32_t> tokens;   // [num_tokens]
    std::vector<uint64_t> values;  // of each token, over all that it depends on
    int num_written = 0;
    int num_committed = 0;
    bool is_known = true;  // its committed blocks are found by others
    bool encoder_is_written = false;
    bool encoder_is_committed = false;
    bool is_leaving = false;  // planned to be swapped out
    SequenceId id{0};         // while leaving or stored

    int num_tokens() const { return static_cast<int>(tokens.size()); }
  };

  int Below(int n) { return choices_->Below(n); }
  SlotId AnySlot();
  SlotId AnyEmptySlot();
  std::optional<SlotId> AnySequence();
  int AnyCount();
  bool IsSlot(SlotId slot) const;

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
  void RunSwap();
  void LaunchStep();
  void BadCall();
  void ForgetPrefixes();

  // Values for all tokens that have none yet.
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
  // Expects a status of one of these codes; a refusal leaves all as it was.
  void Expect(const absl::Status& status, std::vector<absl::StatusCode> codes,
              const std::vector<int64_t>& before);

  const BlockManagerModelOptions options_;
  const int block_size_;
  const int num_row_tokens_;
  Choices* choices_;
  DelayedStream swap_stream_;
  std::unique_ptr<BlockManager> manager_;
  std::unique_ptr<SwapStore> store_;
  std::vector<BlockTable> device_tables_;  // by group
  std::vector<uint64_t> memory_;
  std::vector<uint64_t> host_memory_;
  std::map<SlotId, Sequence> live_;
  std::map<SequenceId, Sequence> stored_;
  std::vector<Sequence> remembered_;  // to begin others like them
  std::vector<SlotId> left_;          // since the last step
  int num_swaps_in_ = 0;              // planned, or waiting in the stream
  int num_swaps_in_launched_ = 0;     // of those, in the stream
  int64_t next_id_ = 0;
  int64_t num_calls_ = 0;
  std::string call_;
  std::map<std::string, int64_t> counts_;
};

}  // namespace reprise

#endif  // CACHE_TESTING_BLOCK_MANAGER_MODEL_H_
