// The canary's marks, checks and findings in plain values: the same for the CPU and for CUDA.

#ifndef CACHE_KV_CANARY_PARAMS_H_
#define CACHE_KV_CANARY_PARAMS_H_

#include <cstdint>

namespace reprise {

// Whose key a slot holds. -1: nobody's.
struct KvMark {
  int32_t sequence = -1;
  int32_t position = -1;

  friend bool operator==(const KvMark&, const KvMark&) = default;
};

// A key that was not the expected one.
struct KvCanaryFault {
  int32_t row = 0;
  int32_t block = -1;  // where it was looked for; -1: the table has no such column
  int32_t offset = 0;  // within the block
  KvMark expected = {};
  KvMark found = {};  // {-1, -1} too if the block does not exist

  friend bool operator==(const KvCanaryFault&, const KvCanaryFault&) = default;
};

inline constexpr int kMaxCanaryFaults = 16;

// In memory that the device writes and the host reads.
struct KvCanaryFindings {
  uint64_t num_wrong = 0;
  KvCanaryFault first[kMaxCanaryFaults] = {};
};

// In the device's memory: buses do not all carry atomics to the host's.
struct KvCanaryCounters {
  unsigned long long num_wrong = 0;  // CUDA's type for 64-bit atomics
  unsigned num_done = 0;             // CTAs of a check that have ended; 0 between checks
};

struct KvMarkParams {
  KvMark* marks = nullptr;  // [num_blocks * block_size]
  int64_t num_slots = 0;
  const int64_t* slot_mapping = nullptr;  // [num_tokens]
  const int32_t* sequences = nullptr;     // [num_tokens]
  const int32_t* positions = nullptr;     // [num_tokens]
  int64_t num_tokens = 0;
};

// Arrays as KvCanaryRows has them; null: their default.
struct KvCheckParams {
  const KvMark* marks = nullptr;
  int num_blocks = 0;
  int block_size = 0;
  const int32_t* block_table = nullptr;
  int64_t table_stride = 0;
  int num_tables = 0;
  int max_blocks = 0;
  const int32_t* seq_lens = nullptr;
  const int32_t* sequences = nullptr;
  const int32_t* table_row = nullptr;
  const int32_t* key_start = nullptr;
  const int32_t* shared_lens = nullptr;
  const int32_t* first_keys = nullptr;
  int num_rows = 0;
  KvCanaryFindings* findings = nullptr;
  KvCanaryCounters* counters = nullptr;  // on CUDA
};

constexpr int32_t CellOr(const int32_t* cells, int row, int32_t otherwise) {
  return cells == nullptr ? otherwise : cells[row];
}

// Positions of a row's keys that are read: [begin, end).
struct KeyRange {
  int64_t begin = 0;
  int64_t end = 0;
};
constexpr KeyRange KeysOfRow(const KvCheckParams& params, int row) {
  const int64_t start = CellOr(params.key_start, row, 0);
  const int64_t first = CellOr(params.first_keys, row, 0);
  const int64_t len = params.seq_lens[row];
  return {.begin = first > start ? first : start, .end = start + (len > 0 ? len : 0)};
}

// What is wrong with the key at `position` of a row.
struct KeyCheck {
  bool is_wrong = false;
  KvCanaryFault fault = {};
};
constexpr KeyCheck CheckKey(const KvCheckParams& params, int row, int64_t position) {
  KeyCheck check = {
      .fault = {.row = row, .expected = {params.sequences[row], static_cast<int32_t>(position)}}};
  const int table_row = params.table_row == nullptr ? row : params.table_row[row];
  const int64_t column = position < 0 ? -1 : position / params.block_size;
  check.fault.offset = static_cast<int32_t>(column < 0 ? 0 : position - column * params.block_size);
  if (table_row < 0 || table_row >= params.num_tables || column < 0 ||
      column >= params.max_blocks) {
    check.is_wrong = true;
    return check;
  }
  const int32_t block = params.block_table[table_row * params.table_stride + column];
  check.fault.block = block;
  if (block < 0 || block >= params.num_blocks) {
    check.is_wrong = true;
    return check;
  }
  check.fault.found =
      params.marks[static_cast<int64_t>(block) * params.block_size + check.fault.offset];
  const bool is_shared = position < CellOr(params.shared_lens, row, 0);
  check.is_wrong = check.fault.found.position != check.fault.expected.position ||
                   (!is_shared && check.fault.found.sequence != check.fault.expected.sequence);
  return check;
}

}  // namespace reprise

#endif  // CACHE_KV_CANARY_PARAMS_H_
