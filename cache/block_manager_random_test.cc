// A plain model beside the manager, thousands of random calls, and everything checked after each:
// the lengths, that each token written through the table is found again, and that a copy of the
// table fed by updates alone is the same.

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "cache/block_manager.h"
#include "cache/block_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

// What stands in a slot of the cache: which sequence wrote it, and which of its tokens it is.
using Token = std::pair<int, int>;

class RandomRun {
 public:
  RandomRun(const BlockManagerOptions& options, unsigned seed)
      : options_(options),
        random_(seed),
        manager_(*BlockManager::Create(options)),
        device_table_(*BlockTable::Create(
            {.num_slots = options.num_slots, .max_blocks = options.max_blocks})),
        memory_(options.num_blocks * options.block_size, Token(-1, -1)) {}

  void Run(int num_steps) {
    for (int step = 0; step < num_steps && !testing::Test::HasFatalFailure(); ++step) {
      SCOPED_TRACE(testing::Message() << "step " << step);
      RandomCall();
      if (Below(3) == 0) SendUpdates();
      Check();
    }
  }

 private:
  struct Sequence {
    int serial;
    int num_tokens;
  };

  int Below(int n) { return static_cast<int>(random_() % n); }
  // Now and then out of range.
  SlotId AnySlot() { return SlotId(Below(20) == 0 ? Below(9) - 4 : Below(options_.num_slots)); }
  // Mostly small, now and then absurd or negative.
  int AnyCount() {
    const int row = options_.max_blocks * options_.block_size;
    const int kind = Below(20);
    if (kind == 0) return -1 - Below(3);
    if (kind == 1) return row + Below(3) - 1;
    if (kind == 2) return INT32_MAX - Below(2);
    return kind < 8 ? Below(row) : Below(3);
  }

  int BlocksFor(int64_t num_tokens) const {
    const int64_t covered = std::min<int64_t>(num_tokens + options_.num_lookahead_tokens,
                                              options_.max_blocks * options_.block_size);
    return static_cast<int>((covered + options_.block_size - 1) / options_.block_size);
  }

  int NumUsed() const {
    int num_used = 0;
    for (const auto& [slot, sequence] : model_) num_used += BlocksFor(sequence.num_tokens);
    return num_used;
  }

  bool IsSlot(SlotId slot) const { return slot >= SlotId(0) && slot < SlotId(options_.num_slots); }

  // Mostly growth, so that the pool is full most of the time.
  void RandomCall() {
    const int kind = Below(12);
    if (kind < 3) return AddSequence();
    if (kind < 7) return AppendBatch();
    if (kind < 10) return Append();
    if (kind < 11) return Truncate();
    Free();
  }

  void AddSequence() {
    const SlotId slot = AnySlot();
    const int count = AnyCount();
    const int num_free = options_.num_blocks - 1 - NumUsed();
    // A sequence that needs no block is never refused one.
    const int num_allowed = std::max(num_free - options_.num_reserved_blocks, 0);
    const bool fits = IsSlot(slot) && model_.count(slot) == 0 && count >= 0 &&
                      count <= options_.max_blocks * options_.block_size &&
                      BlocksFor(count) <= num_allowed;
    ASSERT_EQ(manager_.Add(slot, count).ok(), fits) << "Add " << slot << ", " << count;
    if (!fits) return;
    model_[slot] = {next_serial_++, count};
    Write(slot, 0);
  }

  // Whether the model takes the batch; if so it has.
  bool ModelTakes(const std::vector<SlotAppend>& batch) {
    std::map<SlotId, Sequence> after = model_;
    for (const SlotAppend& append : batch) {
      auto found = after.find(append.slot);
      if (found == after.end() || append.num_tokens < 0) return false;
      const int64_t length = int64_t{found->second.num_tokens} + append.num_tokens;
      if (length > options_.max_blocks * options_.block_size) return false;
      found->second.num_tokens = static_cast<int>(length);
    }
    std::swap(after, model_);
    if (NumUsed() <= options_.num_blocks - 1) return true;
    std::swap(after, model_);
    return false;
  }

  void AppendBatch() {
    std::vector<SlotAppend> batch(Below(5));
    for (SlotAppend& append : batch) append = {AnySlot(), AnyCount()};
    const std::map<SlotId, Sequence> before = model_;
    const bool fits = ModelTakes(batch);
    ASSERT_EQ(manager_.AppendBatch(batch).ok(), fits);
    for (const auto& [slot, sequence] : before) Write(slot, sequence.num_tokens);
  }

  void Append() {
    const std::vector<SlotAppend> one = {{AnySlot(), AnyCount()}};
    const auto before = model_.find(one[0].slot);
    const int num_before = before == model_.end() ? 0 : before->second.num_tokens;
    const bool fits = ModelTakes(one);
    ASSERT_EQ(manager_.Append(one[0].slot, one[0].num_tokens).ok(), fits);
    if (fits) Write(one[0].slot, num_before);
  }

  void Truncate() {
    const SlotId slot = AnySlot();
    auto found = model_.find(slot);
    const int count =
        found == model_.end() || Below(4) == 0 ? AnyCount() : found->second.num_tokens - Below(6);
    const bool fits = found != model_.end() && count >= 0 && count <= found->second.num_tokens;
    ASSERT_EQ(manager_.Truncate(slot, count).ok(), fits);
    if (fits) found->second.num_tokens = count;
  }

  void Free() {
    const SlotId slot = AnySlot();
    ASSERT_EQ(manager_.Free(slot).ok(), model_.erase(slot) == 1);
  }

  // Writes the sequence's tokens from `first` on through the manager's table.
  void Write(SlotId slot, int first) {
    const Sequence& sequence = model_.at(slot);
    for (int i = first; i < sequence.num_tokens; ++i) {
      memory_[SlotOf(manager_.blocks(slot), i)] = Token(sequence.serial, i);
    }
  }

  int SlotOf(absl::Span<const BlockId> row, int token) const {
    return row[token / options_.block_size].value() * options_.block_size +
           token % options_.block_size;
  }

  // As a kernel would: in any order.
  void SendUpdates() {
    absl::Span<const BlockTableUpdate> taken = manager_.TakeUpdates();
    std::vector<BlockTableUpdate> updates(taken.begin(), taken.end());
    std::shuffle(updates.begin(), updates.end(), random_);
    ASSERT_TRUE(device_table_.Apply(updates).ok());
    for (const auto& [slot, sequence] : model_) {
      const absl::Span<const BlockId> row = manager_.blocks(slot);
      ASSERT_THAT(device_table_.row(slot).first(row.size()), testing::ElementsAreArray(row));
    }
  }

  void Check() {
    manager_.CheckInvariants();
    ASSERT_EQ(manager_.num_sequences(), static_cast<int>(model_.size()));
    ASSERT_EQ(manager_.pool().num_used(), NumUsed());
    for (const auto& [slot, sequence] : model_) {
      ASSERT_EQ(manager_.num_tokens(slot), sequence.num_tokens);
      const absl::Span<const BlockId> row = manager_.blocks(slot);
      ASSERT_EQ(static_cast<int>(row.size()), BlocksFor(sequence.num_tokens));
      for (int i = 0; i < sequence.num_tokens; ++i) {
        ASSERT_EQ(memory_[SlotOf(row, i)], Token(sequence.serial, i)) << "slot " << slot;
      }
    }
  }

  const BlockManagerOptions options_;
  std::mt19937 random_;
  BlockManager manager_;
  BlockTable device_table_;
  std::vector<Token> memory_;
  std::map<SlotId, Sequence> model_;
  int next_serial_ = 0;
};

TEST(BlockManagerRandomTest, AgreesWithAModelOverRandomCalls) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  RandomRun({.num_blocks = 30,
             .block_size = 4,
             .num_slots = 5,
             .max_blocks = 9,
             .num_reserved_blocks = 3},
            seed)
      .Run(8000);
  RandomRun({.num_blocks = 12, .block_size = 1, .num_slots = 4, .max_blocks = 20}, seed).Run(4000);
  RandomRun({.num_blocks = 40,
             .block_size = 5,
             .num_slots = 6,
             .max_blocks = 6,
             .num_reserved_blocks = 1,
             .num_lookahead_tokens = 7},
            seed)
      .Run(8000);
}

}  // namespace
}  // namespace reprise
