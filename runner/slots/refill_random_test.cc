// Compares refill with a naive model over many random steps.

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/runner/slots/refill.h"
#include "reprise/runner/testing/refill_memory.h"

namespace reprise {
namespace {

// An independent implementation of the same rules, with sequences as lists and maps.
class NaiveModel {
 public:
  explicit NaiveModel(const RefillShape& shape) : shape_(shape) {}

  // Checks the result of a refill with `args`.
  void ExpectStep(const RefillArgs& args) {
    const StepDelta& delta = args.delta;
    int num_faults = 0;
    for (int i = 0; i < delta.counts->num_leaves; ++i) {
      if (Exists(delta.leaves[i])) {
        sequences_.erase(delta.leaves[i]);
      } else {
        ++num_faults;
      }
    }
    for (int i = 0; i < delta.counts->num_joins; ++i) {
      const StepJoin& join = delta.joins[i];
      if (Exists(join.slot) && join.seq_len >= 0 && join.seq_len <= Room() &&
          join.num_encoder_tokens >= 0 && join.num_encoder_tokens <= Room() &&
          join.position_delta >= -Room() && join.position_delta + Room() <= INT32_MAX) {
        sequences_[join.slot].seq_len = join.seq_len;
        sequences_[join.slot].encoder_len = join.num_encoder_tokens;
        sequences_[join.slot].position_delta = join.position_delta;
      } else {
        ++num_faults;
      }
    }
    for (int i = 0; i < delta.counts->num_updates; ++i) {
      const StepUpdate& update = delta.updates[i];
      if (Exists(update.slot) && update.column >= 0 && update.column < shape_.max_blocks &&
          update.block >= 0 && update.block < shape_.num_blocks && update.group >= 0 &&
          update.group < num_groups()) {
        sequences_[update.slot].blocks[{update.group, update.column}] = update.block;
      } else {
        ++num_faults;
      }
    }
    ExpectRows(args, num_faults);
  }

 private:
  struct Sequence {
    int64_t seq_len = 0;
    int32_t encoder_len = 0;
    int64_t position_delta = 0;
    std::map<std::pair<int, int64_t>, int32_t> blocks;  // by group and column

    int32_t BlockOf(int group, int64_t position, int block_size) const {
      const auto found = blocks.find({group, position / block_size});
      return found == blocks.end() ? 0 : found->second;
    }
  };

  bool Exists(int32_t slot) const { return slot >= 0 && slot < shape_.num_slots; }
  int64_t Room() const { return int64_t{shape_.max_blocks} * shape_.block_size; }
  int num_groups() const { return static_cast<int>(shape_.groups.size()); }

  // Returns whether the query at `query` reads the key at `key` (not later than `query`) in a layer
  // of the group.
  bool Sees(int group, int64_t query, int64_t key) const {
    const int span = shape_.groups[group].span;
    switch (shape_.groups[group].retention) {
      case KvRetention::kFull:
        return true;
      case KvRetention::kSlidingWindow:
        return query - key < span;
      case KvRetention::kChunkedLocal:
        return query / span == key / span;
      case KvRetention::kCross:
        return false;
    }
    return true;
  }

  // A block may be missing if the last query reads none of the keys that the row writes into it.
  bool MayLack(int group, int64_t first, int64_t last, int64_t position) const {
    for (int64_t p = first; p <= last; ++p) {
      const bool same_block = p / shape_.block_size == position / shape_.block_size;
      if (same_block && Sees(group, last, p)) return false;
    }
    return true;
  }

  bool IsGood(const StepRow& row, const RefillArgs& args) {
    const Sequence& sequence = sequences_[row.slot];
    const int64_t first = row.first_host_token;
    if (row.query_len <= 0 || row.query_len > args.padded_num_tokens) return false;
    if (first < -1 || (first == -1 && row.query_len != 1)) return false;
    if (first >= 0 && first + row.query_len > args.delta.counts->num_host_tokens) return false;
    for (int64_t p = sequence.seq_len; p < sequence.seq_len + row.query_len; ++p) {
      if (p >= Room()) return false;
      for (int group = 0; group < num_groups(); ++group) {
        if (sequence.BlockOf(group, p, shape_.block_size) == 0 &&
            !MayLack(group, sequence.seq_len, sequence.seq_len + row.query_len - 1, p)) {
          return false;
        }
      }
    }
    return true;
  }

  // The token and the score of a row of logits.
  struct Logits {
    int32_t token = 0;
    int32_t scored_slot = -1;
    int32_t scored_token = -1;
  };

  void ExpectRows(const RefillArgs& args, int num_faults) {
    const StepArrays& arrays = args.arrays;
    std::set<int32_t> seen;
    int num_tokens = 0;
    bool is_full = false;
    std::vector<Logits> logits(args.padded_num_rows + args.padded_num_earlier_logits);
    int64_t num_earlier = 0;
    for (int r = 0; r < args.padded_num_rows; ++r) {
      const StepRow row = r < args.delta.counts->num_rows ? args.delta.rows[r] : StepRow{-1};
      bool good = Exists(row.slot) && seen.insert(row.slot).second && IsGood(row, args);
      const int64_t first_earlier = num_earlier;
      const bool wants_all = good && args.has_scored_rows && args.delta.scores[r].all_logits != 0;
      if (wants_all && row.query_len > 1) {
        num_earlier += row.query_len - 1;
        good = num_earlier <= args.padded_num_earlier_logits;
      }
      if (good && num_tokens + row.query_len > args.padded_num_tokens) is_full = true;
      good = good && !is_full;
      if (r < args.delta.counts->num_rows && !good) ++num_faults;
      EXPECT_EQ(arrays.query_start_loc[r], num_tokens);
      if (!good) {
        EXPECT_EQ(arrays.seq_lens[r], 0);
        EXPECT_EQ(arrays.context_lens[r], 0);
        EXPECT_EQ(arrays.encoder_lens[r], 0);
        EXPECT_EQ(arrays.table_row[r], 0);
        EXPECT_EQ(arrays.logits_indices[r], 0);
        EXPECT_EQ(arrays.sample_slot[r], -1);
        continue;
      }
      Sequence& sequence = sequences_[row.slot];
      if (args.has_scored_rows && !row.samples && args.delta.scores[r].next_token >= 0) {
        logits[r] = {0, row.slot, args.delta.scores[r].next_token};
      }
      for (int i = 0; wants_all && i + 1 < row.query_len; ++i) {
        logits[args.padded_num_rows + first_earlier + i] = {
            num_tokens + i, row.slot, args.delta.host_tokens[row.first_host_token + i + 1]};
      }
      for (int i = 0; i < row.query_len; ++i, ++num_tokens, ++sequence.seq_len) {
        const int32_t token = row.first_host_token == -1
                                  ? args.slots.last_token[row.slot]
                                  : args.delta.host_tokens[row.first_host_token + i];
        EXPECT_EQ(arrays.token_ids[num_tokens], token);
        EXPECT_EQ(arrays.positions[num_tokens], sequence.seq_len);
        for (int dim = 0; shape_.num_position_dims > 1 && dim < shape_.num_position_dims; ++dim) {
          int64_t position = sequence.seq_len + sequence.position_delta;
          if (args.delta.counts->has_positions != 0 && row.first_host_token >= 0) {
            const int32_t given =
                args.delta.host_positions[dim * shape_.max_tokens + row.first_host_token + i];
            if (given != -1) position = given;
          }
          EXPECT_EQ(arrays.model_positions[dim * shape_.max_tokens + num_tokens], position);
        }
        for (int group = 0; group < num_groups(); ++group) {
          const int64_t block = sequence.BlockOf(group, sequence.seq_len, shape_.block_size);
          const bool is_written =
              block != 0 && shape_.groups[group].retention != KvRetention::kCross;
          EXPECT_EQ(
              arrays.group_slots(group)[num_tokens],
              is_written ? block * shape_.block_size + sequence.seq_len % shape_.block_size : -1);
        }
      }
      for (int i = 0; shape_.place_group >= 0 && i < row.query_len; ++i) {
        const int32_t token_id = arrays.token_ids[num_tokens - row.query_len + i];
        const int64_t position = sequence.seq_len - row.query_len + i;
        EXPECT_EQ(args.slots.history.row(row.slot)[position], token_id);
        const int64_t block = sequence.BlockOf(shape_.place_group, position, shape_.block_size);
        if (block == 0) continue;
        EXPECT_EQ(
            args.place_tokens.tokens[block * shape_.block_size + position % shape_.block_size],
            token_id);
      }
      EXPECT_EQ(arrays.seq_lens[r], sequence.seq_len);
      EXPECT_EQ(arrays.context_lens[r], sequence.seq_len - row.query_len);
      EXPECT_EQ(arrays.encoder_lens[r], sequence.encoder_len);
      EXPECT_EQ(args.slots.seq_len[row.slot], sequence.seq_len);
      EXPECT_EQ(arrays.table_row[r], row.slot);
      EXPECT_EQ(arrays.logits_indices[r], num_tokens - 1);
      EXPECT_EQ(arrays.sample_slot[r], row.samples ? row.slot : -1);
    }
    for (int i = 0; args.has_scored_rows && i < static_cast<int>(logits.size()); ++i) {
      if (i >= args.padded_num_rows) {
        EXPECT_EQ(arrays.logits_indices[i], logits[i].token);
      }
      EXPECT_EQ(arrays.scored_slot[i], logits[i].scored_slot);
      EXPECT_EQ(arrays.scored_token[i], logits[i].scored_token);
    }
    num_faults += std::max(0, args.delta.counts->num_rows - args.padded_num_rows);
    EXPECT_EQ(arrays.query_start_loc[args.padded_num_rows], num_tokens);
    for (int t = num_tokens; t < args.padded_num_tokens; ++t) {
      EXPECT_EQ(arrays.token_ids[t], 0);
      EXPECT_EQ(arrays.positions[t], 0);
      for (int dim = 0; shape_.num_position_dims > 1 && dim < shape_.num_position_dims; ++dim) {
        EXPECT_EQ(arrays.model_positions[dim * shape_.max_tokens + t], 0);
      }
      for (int group = 0; group < num_groups(); ++group) {
        EXPECT_EQ(arrays.group_slots(group)[t], -1);
      }
    }
    EXPECT_EQ(*arrays.num_faults, num_faults);
  }

  RefillShape shape_;
  std::map<int32_t, Sequence> sequences_;
};

TEST(RefillRandomTest, MatchesTheNaiveModelOverManySteps) {
  const RefillShape shapes[] = {
      {},
      {.num_slots = 20,
       .max_blocks = 10,
       .block_size = 1,
       .num_blocks = 400,
       .max_rows = 20,
       .max_tokens = 20,
       .max_updates = 100},
      {.num_slots = 3,
       .max_blocks = 4,
       .block_size = 16,
       .num_blocks = 9,
       .max_rows = 6,
       .max_tokens = 100,
       .max_updates = 30},
      {.max_updates = 100, .max_earlier_logits = 20},
      {.num_slots = 12,
       .max_blocks = 12,
       .block_size = 8,
       .num_blocks = 400,
       .max_rows = 10,
       .max_tokens = 90,
       .max_updates = 150,
       .max_earlier_logits = 60},
      {.num_slots = 6, .max_rows = 6, .max_updates = 40, .num_position_dims = 3},
      {.max_updates = 100, .groups = {{.retention = KvRetention::kSlidingWindow, .span = 5}, {}}},
      {.num_slots = 5,
       .max_blocks = 8,
       .block_size = 3,
       .num_blocks = 50,
       .max_rows = 5,
       .max_tokens = 40,
       .max_updates = 120,
       .groups = {{.retention = KvRetention::kChunkedLocal, .span = 7},
                  {.retention = KvRetention::kCross},
                  {.retention = KvRetention::kSlidingWindow, .span = 1}}},
      {.num_blocks = 49, .max_updates = 40, .place_group = 0},
      {.num_blocks = 49,
       .max_updates = 100,
       .groups = {{.retention = KvRetention::kSlidingWindow, .span = 5}, {}},
       .place_group = 1},
  };
  for (const RefillShape& shape : shapes) {
    for (double hostility : {0.0, 0.05, 0.4}) {
      if (shape.place_group >= 0 && hostility > 0) continue;  // faulty rows would share blocks
      const uint32_t seed = 7 + static_cast<uint32_t>(100 * hostility);
      SCOPED_TRACE(testing::Message() << shape << ", hostility " << hostility << ", seed " << seed);
      std::mt19937 random(seed);
      RefillMemory memory(shape);
      NaiveModel model(shape);
      int num_good = 0;
      int num_earlier = 0;
      for (int step = 0; step < 500 && !testing::Test::HasFailure(); ++step) {
        memory.PoisonArrays();
        RandomDelta(random, shape, hostility, memory.args());
        RefillOnHost(memory.args());
        model.ExpectStep(memory.args());
        for (int r = 0; r < memory.args().padded_num_rows; ++r) {
          num_good += memory.args().arrays.seq_lens[r] > 0;
        }
        for (int i = 0; i < memory.args().padded_num_earlier_logits; ++i) {
          const int logits_row = memory.args().padded_num_rows + i;
          num_earlier += memory.args().arrays.scored_slot[logits_row] >= 0;
        }
      }
      EXPECT_GT(num_good, 30);  // otherwise the test is too weak
      if (shape.max_earlier_logits > 0) {
        EXPECT_GT(num_earlier, 30);
      }
    }
  }
}

}  // namespace
}  // namespace reprise
