#include "reprise/runner/testing/refill_memory.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <sstream>

namespace reprise {
namespace {

constexpr int64_t kAlignment = 256;

// Allocates aligned arrays. If `base` is null, only counts bytes.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}

  template <typename T>
  T* Take(int64_t count) {
    T* array = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + offset_);
    offset_ += (count * static_cast<int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    return array;
  }
  int64_t offset() const { return offset_; }

 private:
  std::byte* base_;
  int64_t offset_ = 0;
};

RefillArgs Carve(const RefillShape& shape, Carver& carver) {
  RefillArgs args;
  // Uses a stride larger than the number of columns, with a canary after each row of the table.
  args.slots.block_table_stride = shape.max_blocks + 1;
  args.slots.num_groups = static_cast<int>(shape.groups.size());
  args.slots.block_table_group_stride = shape.num_slots * args.slots.block_table_stride + 3;
  args.slots.block_table =
      carver.Take<int32_t>(args.slots.num_groups * args.slots.block_table_group_stride);
  args.slots.seq_len = carver.Take<int32_t>(shape.num_slots);
  args.slots.encoder_len = carver.Take<int32_t>(shape.num_slots);
  const int dims = shape.num_position_dims;
  if (dims > 1) args.slots.position_delta = carver.Take<int32_t>(shape.num_slots);
  args.slots.last_token = carver.Take<int32_t>(shape.num_slots);
  args.slots.sample_index = carver.Take<int64_t>(shape.num_slots);
  args.slots.sampling = carver.Take<SamplingParams>(shape.num_slots);
  args.slots.num_slots = shape.num_slots;
  args.slots.max_blocks = shape.max_blocks;
  if (shape.place_group >= 0) {
    args.slots.history.stride = int64_t{shape.max_blocks} * shape.block_size;
    args.slots.history.tokens = carver.Take<int32_t>(shape.num_slots * args.slots.history.stride);
    args.place_tokens = {.num_places = int64_t{shape.num_blocks} * shape.block_size,
                         .group = shape.place_group};
    args.place_tokens.tokens = carver.Take<int32_t>(args.place_tokens.num_places);
  }
  args.arrays.token_ids = carver.Take<int32_t>(shape.max_tokens);
  args.arrays.positions = carver.Take<int32_t>(shape.max_tokens);
  if (dims > 1) {
    args.arrays.model_positions = carver.Take<int32_t>(int64_t{dims} * shape.max_tokens);
  }
  args.arrays.slot_mapping =
      carver.Take<int64_t>(static_cast<int64_t>(args.slots.num_groups) * shape.max_tokens);
  args.arrays.query_start_loc = carver.Take<int32_t>(shape.max_rows + 1);
  args.arrays.seq_lens = carver.Take<int32_t>(shape.max_rows);
  args.arrays.context_lens = carver.Take<int32_t>(shape.max_rows);
  args.arrays.encoder_lens = carver.Take<int32_t>(shape.max_rows);
  args.arrays.table_row = carver.Take<int32_t>(shape.max_rows);
  const int max_logits = shape.max_rows + shape.max_earlier_logits;
  args.arrays.logits_indices = carver.Take<int32_t>(max_logits);
  args.arrays.scored_slot = carver.Take<int32_t>(max_logits);
  args.arrays.scored_token = carver.Take<int32_t>(max_logits);
  args.arrays.sample_slot = carver.Take<int32_t>(shape.max_rows);
  args.arrays.row_faults = carver.Take<int32_t>(shape.max_rows);
  args.arrays.common_prefix_len = carver.Take<int32_t>(1);
  args.arrays.num_faults = carver.Take<int32_t>(1);
  args.arrays.max_rows = shape.max_rows;
  args.arrays.max_tokens = shape.max_tokens;
  args.arrays.max_earlier_logits = shape.max_earlier_logits;
  args.arrays.num_position_dims = dims;
  args.delta.counts = carver.Take<StepDeltaCounts>(1);
  args.delta.leaves = carver.Take<int32_t>(shape.num_slots);
  args.delta.joins = carver.Take<StepJoin>(shape.num_slots);
  args.delta.updates = carver.Take<StepUpdate>(shape.max_updates);
  args.delta.rows = carver.Take<StepRow>(shape.max_rows);
  args.delta.host_tokens = carver.Take<int32_t>(shape.max_tokens);
  args.delta.scores = carver.Take<StepRowScore>(shape.max_rows);
  if (dims > 1) args.delta.host_positions = carver.Take<int32_t>(int64_t{dims} * shape.max_tokens);
  args.delta.max_updates = shape.max_updates;
  args.padded_num_rows = shape.max_rows;
  args.padded_num_tokens = shape.max_tokens;
  args.block_size = shape.block_size;
  args.num_blocks = shape.num_blocks;
  std::copy(shape.groups.begin(), shape.groups.end(), args.groups);
  return args;
}

int Between(std::mt19937& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

bool Chance(std::mt19937& random, double p) { return std::bernoulli_distribution(p)(random); }

// Returns a number that is mostly outside the valid range [low, high].
int32_t Nonsense(std::mt19937& random, int low, int high) {
  const int32_t values[] = {low - 1,
                            high + 1,
                            -1,
                            0,
                            std::numeric_limits<int32_t>::max(),
                            std::numeric_limits<int32_t>::min(),
                            Between(random, low, high)};
  return values[Between(random, 0, 6)];
}

template <typename T>
bool Report(const char* name, const T* a, const T* b, int64_t count, std::string& difference) {
  for (int64_t i = 0; i < count && difference.empty(); ++i) {
    if (a[i] == b[i]) continue;
    std::ostringstream out;
    out << name << "[" << i << "]: " << a[i] << " and " << b[i];
    difference = out.str();
  }
  return difference.empty();
}

void RandomRow(std::mt19937& random, const RefillArgs& args, double hostility, int32_t slot,
               int& num_host_tokens, StepRow& row) {
  row = {.slot = slot, .samples = Chance(random, 0.8)};
  if (Chance(random, 0.4)) {  // a chunk of a prompt
    row.query_len = Between(random, 1, 2 * args.block_size);
    row.first_host_token = num_host_tokens;
    num_host_tokens = std::min(num_host_tokens + row.query_len, args.arrays.max_tokens);
  }
  if (Chance(random, hostility)) row.slot = Nonsense(random, 0, args.slots.num_slots - 1);
  if (Chance(random, hostility)) row.query_len = Nonsense(random, 1, args.padded_num_tokens);
  if (Chance(random, hostility)) {
    row.first_host_token = Nonsense(random, 0, args.arrays.max_tokens - 1);
  }
}

// Draws scores of some rows, mostly within the capacity for earlier logits.
void RandomScores(std::mt19937& random, const RefillShape& shape, double hostility, int num_rows,
                  RefillArgs& args) {
  args.has_scored_rows = shape.max_earlier_logits > 0 && Chance(random, 0.8);
  args.padded_num_earlier_logits =
      args.has_scored_rows ? Between(random, 0, shape.max_earlier_logits) : 0;
  int num_left = args.padded_num_earlier_logits;
  for (int r = 0; r < num_rows; ++r) {
    StepRowScore& score = args.delta.scores[r];
    score = {};
    if (Chance(random, 0.3)) score.next_token = Between(random, 0, 30000);
    const int count = std::clamp(args.delta.rows[r].query_len, 1, shape.max_tokens) - 1;
    if (Chance(random, 0.5) && (count <= num_left || Chance(random, hostility))) {
      score.all_logits = 1;
      num_left -= count;
    }
    if (Chance(random, hostility)) score.next_token = Nonsense(random, 0, 30000);
    if (Chance(random, hostility)) score.all_logits = Nonsense(random, 0, 1);
  }
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const RefillShape& shape) {
  return out << shape.num_slots << " slots of " << shape.max_blocks << " blocks of "
             << shape.block_size << ", " << shape.max_rows << " rows, " << shape.max_tokens
             << " tokens, " << shape.groups.size() << " groups, " << shape.max_earlier_logits
             << " earlier logits, positions of " << shape.num_position_dims << " dimensions";
}

int64_t RefillBytes(const RefillShape& shape) {
  Carver carver(nullptr);
  Carve(shape, carver);
  return carver.offset();
}

RefillArgs RefillArgsAt(const RefillShape& shape, std::byte* base) {
  Carver carver(base);
  return Carve(shape, carver);
}

RefillMemory::RefillMemory(const RefillShape& shape)
    : shape_(shape), bytes_(RefillBytes(shape) + kAlignment), args_(RefillArgsAt(shape, base())) {
  std::fill_n(args_.slots.sampling, shape.num_slots, SamplingParams());
}

std::byte* RefillMemory::base() {
  const uintptr_t address = reinterpret_cast<uintptr_t>(bytes_.data());
  return bytes_.data() + (kAlignment - address % kAlignment) % kAlignment;
}

void RefillMemory::PoisonArrays() {
  constexpr int32_t kAbsurd = 0x5a5a5a5a;
  const StepArrays& arrays = args_.arrays;
  for (int32_t* array : {arrays.token_ids, arrays.positions}) {
    std::fill_n(array, arrays.max_tokens, kAbsurd);
  }
  if (arrays.num_position_dims > 1) {
    std::fill_n(arrays.model_positions, arrays.num_position_dims * arrays.max_tokens, kAbsurd);
  }
  std::fill_n(arrays.slot_mapping, args_.slots.num_groups * arrays.max_tokens, kAbsurd);
  std::fill_n(arrays.query_start_loc, arrays.max_rows + 1, kAbsurd);
  for (int32_t* array : {arrays.seq_lens, arrays.context_lens, arrays.encoder_lens,
                         arrays.table_row, arrays.sample_slot}) {
    std::fill_n(array, arrays.max_rows, kAbsurd);
  }
  for (int32_t* array : {arrays.logits_indices, arrays.scored_slot, arrays.scored_token}) {
    std::fill_n(array, arrays.max_rows + arrays.max_earlier_logits, kAbsurd);
  }
  *arrays.common_prefix_len = kAbsurd;
  *arrays.num_faults = kAbsurd;
}

void RandomDelta(std::mt19937& random, const RefillShape& shape, double hostility,
                 RefillArgs& args) {
  StepDeltaCounts counts;
  std::vector<int32_t> order(shape.num_slots);
  for (int i = 0; i < shape.num_slots; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);

  const int max_blocks = shape.max_blocks;
  const int num_groups = static_cast<int>(shape.groups.size());
  const int num_changes = Chance(random, 0.3) ? Between(random, 0, shape.num_slots) : 0;
  for (int i = 0; i < num_changes; ++i) {
    args.delta.leaves[counts.num_leaves++] =
        Chance(random, hostility) ? Nonsense(random, 0, shape.num_slots - 1) : order[i];
    if (Chance(random, 0.2)) continue;
    StepJoin& join = args.delta.joins[counts.num_joins++];
    join = {.slot = order[i],
            .seq_len = Between(random, 0, max_blocks * shape.block_size / 2),
            .sample_index = Between(random, 0, 1000),
            .sampling = {.temperature = 0.5f * Between(random, 0, 3),
                         .top_k = Between(random, 0, 50),
                         .top_p = 0.1f * Between(random, 1, 10),
                         .min_p = 0.1f * Between(random, 0, 5),
                         .seed = random()},
            .num_encoder_tokens = Between(random, 0, max_blocks * shape.block_size)};
    if (shape.num_position_dims > 1) join.position_delta = Between(random, -20, 20);
    if (Chance(random, hostility)) join.slot = Nonsense(random, 0, shape.num_slots - 1);
    if (Chance(random, hostility)) {
      join.seq_len = Nonsense(random, 0, max_blocks * shape.block_size);
    }
    if (Chance(random, hostility)) {
      join.num_encoder_tokens = Nonsense(random, 0, max_blocks * shape.block_size);
    }
  }
  // Consecutive entries are in neighbouring columns; some entries may occur twice.
  const int num_updates = Between(random, 0, shape.max_updates);
  for (int i = 0; i < num_updates; ++i) {
    StepUpdate& update = args.delta.updates[counts.num_updates++];
    update = {.slot = order[Between(random, 0, shape.num_slots - 1)],
              .column = i % max_blocks,
              .block = Between(random, 1, shape.num_blocks - 1),
              .group = Between(random, 0, num_groups - 1)};
    if (shape.place_group >= 0) update.block = 1 + update.slot * max_blocks + update.column;
    // As when a block leaves the window of its group.
    if (shape.groups[update.group].span > 0 && Chance(random, 0.2)) update.block = 0;
    if (Chance(random, hostility)) update.slot = Nonsense(random, 0, shape.num_slots - 1);
    if (Chance(random, hostility)) update.column = Nonsense(random, 0, max_blocks - 1);
    if (Chance(random, hostility)) update.block = Nonsense(random, 0, shape.num_blocks - 1);
    if (Chance(random, hostility)) update.group = Nonsense(random, 0, num_groups - 1);
  }
  args.padded_num_rows = Between(random, 1, shape.max_rows);
  args.padded_num_tokens = Between(random, 1, shape.max_tokens);
  const int num_rows = Between(random, 0, std::min(shape.num_slots, shape.max_rows));
  std::shuffle(order.begin(), order.end(), random);
  for (int i = 0; i < num_rows; ++i) {
    const int32_t slot = i > 0 && Chance(random, hostility) ? order[i - 1] : order[i];
    RandomRow(random, args, hostility, slot, counts.num_host_tokens,
              args.delta.rows[counts.num_rows++]);
  }
  RandomScores(random, shape, hostility, num_rows, args);
  for (int i = 0; i < counts.num_host_tokens; ++i) {
    args.delta.host_tokens[i] = Between(random, 0, 30000);
  }
  if (shape.num_position_dims > 1) {
    counts.has_positions = Chance(random, 0.5);
    for (int i = 0; i < shape.num_position_dims * shape.max_tokens; ++i) {
      args.delta.host_positions[i] = Chance(random, 0.5) ? Between(random, 0, 500) : -1;
    }
    if (counts.num_joins > 0 && Chance(random, hostility)) {
      const int last = counts.num_joins - 1;
      args.delta.joins[last].position_delta = Nonsense(random, -1000, 1000);
    }
  }
  counts.num_tokens = 12345;  // refill must not use this
  counts.common_prefix_len = Chance(random, hostility)
                                 ? Nonsense(random, 0, max_blocks * shape.block_size)
                                 : Between(random, 0, max_blocks * shape.block_size);
  *args.delta.counts = counts;
}

std::string FirstDifference(const RefillShape& shape, const RefillArgs& a, const RefillArgs& b) {
  std::string difference;
  const int64_t table_size = a.slots.num_groups * a.slots.block_table_group_stride;
  Report("block_table", a.slots.block_table, b.slots.block_table, table_size, difference);
  Report("seq_len", a.slots.seq_len, b.slots.seq_len, shape.num_slots, difference);
  Report("encoder_len", a.slots.encoder_len, b.slots.encoder_len, shape.num_slots, difference);
  if (shape.num_position_dims > 1) {
    Report("position_delta", a.slots.position_delta, b.slots.position_delta, shape.num_slots,
           difference);
  }
  Report("last_token", a.slots.last_token, b.slots.last_token, shape.num_slots, difference);
  Report("sample_index", a.slots.sample_index, b.slots.sample_index, shape.num_slots, difference);
  for (int i = 0; i < shape.num_slots && difference.empty(); ++i) {
    const SamplingParams& p = a.slots.sampling[i];
    const SamplingParams& q = b.slots.sampling[i];
    if (p.temperature != q.temperature || p.top_k != q.top_k || p.top_p != q.top_p ||
        p.min_p != q.min_p || p.seed != q.seed) {
      difference = "sampling[" + std::to_string(i) + "]";
    }
  }
  if (shape.place_group >= 0) {
    Report("history", a.slots.history.tokens, b.slots.history.tokens,
           shape.num_slots * a.slots.history.stride, difference);
    Report("place_tokens", a.place_tokens.tokens, b.place_tokens.tokens, a.place_tokens.num_places,
           difference);
  }
  const StepArrays& x = a.arrays;
  const StepArrays& y = b.arrays;
  Report("num_faults", x.num_faults, y.num_faults, 1, difference);
  Report("common_prefix_len", x.common_prefix_len, y.common_prefix_len, 1, difference);
  Report("query_start_loc", x.query_start_loc, y.query_start_loc, shape.max_rows + 1, difference);
  Report("seq_lens", x.seq_lens, y.seq_lens, shape.max_rows, difference);
  Report("context_lens", x.context_lens, y.context_lens, shape.max_rows, difference);
  Report("encoder_lens", x.encoder_lens, y.encoder_lens, shape.max_rows, difference);
  Report("table_row", x.table_row, y.table_row, shape.max_rows, difference);
  const int max_logits = shape.max_rows + shape.max_earlier_logits;
  Report("logits_indices", x.logits_indices, y.logits_indices, max_logits, difference);
  Report("scored_slot", x.scored_slot, y.scored_slot, max_logits, difference);
  Report("scored_token", x.scored_token, y.scored_token, max_logits, difference);
  Report("sample_slot", x.sample_slot, y.sample_slot, shape.max_rows, difference);
  Report("row_faults", x.row_faults, y.row_faults, shape.max_rows, difference);
  Report("token_ids", x.token_ids, y.token_ids, shape.max_tokens, difference);
  Report("positions", x.positions, y.positions, shape.max_tokens, difference);
  if (shape.num_position_dims > 1) {
    Report("model_positions", x.model_positions, y.model_positions,
           shape.num_position_dims * shape.max_tokens, difference);
  }
  Report("slot_mapping", x.slot_mapping, y.slot_mapping, a.slots.num_groups * shape.max_tokens,
         difference);
  return difference;
}

}  // namespace reprise
