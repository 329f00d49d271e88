#include "reprise/attention/testing/schedule_generator.h"

#include <algorithm>
#include <sstream>

#include "reprise/base/divisor.h"
#include "reprise/cache/tables/block_table_view.h"

namespace reprise {
namespace {

constexpr int32_t kAbsurd[] = {-12345, 1 << 30, INT32_MIN, INT32_MAX, -1};

// Returns a short length, a length near a block boundary, or any length.
int DrawSeqLen(const ScheduleOptions& options, int block_size, Random& random) {
  const int border = block_size * random.Int(0, 4) + random.Int(-1, 1);
  const int length = random.Pick(
      {random.Int(0, 6), border, random.Int(0, 40), random.Int(0, options.max_seq_len)});
  return std::clamp(length, 0, options.max_seq_len);
}

}  // namespace

int Schedule::num_tokens() const {
  int num_tokens = 0;
  for (const BatchSequence& sequence : sequences) num_tokens += sequence.query_len;
  return num_tokens;
}

int64_t Schedule::SlotOf(const BatchSequence& sequence, int64_t position) const {
  const int64_t block = entries[sequence.table_row * row_stride + position / block_size];
  return block * block_size + position % block_size;
}

std::string Schedule::Description() const {
  std::ostringstream text;
  text << "block_size " << block_size << ", rows (query_len/seq_len)";
  for (const BatchSequence& sequence : sequences) {
    text << " " << sequence.query_len << "/" << sequence.seq_len();
  }
  return text.str();
}

Schedule DrawSchedule(const ScheduleOptions& options, Random& random) {
  Schedule drawn;
  drawn.block_size =
      std::min(options.max_block_size, random.Pick({1, 2, 3, 4, 8, 16, random.Int(1, 32)}));
  drawn.num_tables = random.OneIn(30) ? 0 : random.Int(1, options.max_rows);
  const bool decode_only = random.OneIn(3);
  for (int row = 0; row < drawn.num_tables; ++row) {
    const int seq_len = DrawSeqLen(options, drawn.block_size, random);
    int query_len = random.Pick({0, 1, random.Int(0, options.max_query_len), random.Int(1, 8)});
    if (random.OneIn(8)) query_len = seq_len;
    if (decode_only) query_len = random.OneIn(6) ? 0 : 1;
    query_len = std::min(query_len, seq_len);
    drawn.sequences.push_back(
        {.table_row = row, .num_computed = seq_len - query_len, .query_len = query_len});
    const int num_blocks = NumBlocksFor(seq_len, drawn.block_size);
    drawn.max_blocks = std::max(drawn.max_blocks, num_blocks);
  }
  drawn.max_blocks += random.Int(0, 2);
  drawn.row_stride = drawn.max_blocks + random.Int(0, 3);
  drawn.entries.assign(drawn.num_tables * drawn.row_stride, 0);
  for (int32_t& entry : drawn.entries) entry = kAbsurd[random.Int(0, 4)];
  drawn.num_blocks = 1 + drawn.num_tables * drawn.max_blocks;
  std::vector<int32_t> free(drawn.num_blocks - 1);
  for (size_t i = 0; i < free.size(); ++i) free[i] = static_cast<int32_t>(i) + 1;
  random.Shuffle(free);
  for (const BatchSequence& sequence : drawn.sequences) {
    const int used = static_cast<int>(CeilDiv(sequence.seq_len(), drawn.block_size));
    const int held = std::min(drawn.max_blocks, used + random.Pick({0, 0, 1, 2}));
    for (int column = 0; column < held; ++column) {
      drawn.entries[sequence.table_row * drawn.row_stride + column] = free.back();
      free.pop_back();
    }
  }
  random.Shuffle(drawn.sequences);
  return drawn;
}

VisiblePairs SetByDefinition(
    const Schedule& schedule,
    absl::FunctionRef<bool(int64_t query_position, int64_t key_position)> sees) {
  VisiblePairs pairs;
  int token = 0;
  for (const BatchSequence& sequence : schedule.sequences) {
    for (int i = 0; i < sequence.query_len; ++i, ++token) {
      const int64_t position = int64_t{sequence.num_computed} + i;
      for (int64_t key = 0; key < sequence.seq_len(); ++key) {
        if (!sees(position, key)) continue;
        pairs.push_back({.token = token,
                         .query_position = position,
                         .key_position = key,
                         .slot = schedule.SlotOf(sequence, key)});
      }
    }
  }
  return pairs;
}

ScheduledBatchMemory::ScheduledBatchMemory(const Schedule& schedule, const PaddedSize& padded)
    : builder(
          *BatchBuilder::Create({.max_rows = padded.num_rows, .max_tokens = padded.num_tokens})) {
  built = *builder.Build(
      {.sequences = schedule.sequences, .table = schedule.table(), .padded = padded});
}

}  // namespace reprise
