// The canary's marks, checks and findings as plain values that host and device share, and the
// device launchers. Callers use KvCanary (kv_canary.h).

#ifndef REPRISE_CACHE_OPS_KV_CANARY_ARGS_H_
#define REPRISE_CACHE_OPS_KV_CANARY_ARGS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// The key in a slot. -1: no key.
struct KvMark {
  int32_t sequence = -1;
  int32_t position = -1;

  friend bool operator==(const KvMark&, const KvMark&) = default;
};

// A key that differs from the expected key.
struct KvCanaryFault {
  int32_t row = 0;
  int32_t block = -1;  // block of the expected key; -1: the table has no such column
  int32_t offset = 0;  // within the block
  KvMark expected = {};
  KvMark found = {};  // also {-1, -1} if the block does not exist

  friend bool operator==(const KvCanaryFault&, const KvCanaryFault&) = default;
};

inline constexpr int kMaxCanaryFaults = 16;

// Stored in memory that the device writes and the host reads.
struct KvCanaryFindings {
  uint64_t num_wrong = 0;
  KvCanaryFault first[kMaxCanaryFaults] = {};
};

// Stored in device memory, because not every bus supports atomics on host memory.
struct KvCanaryCounters {
  unsigned long long num_wrong = 0;  // CUDA's type for 64-bit atomics
  unsigned num_done = 0;  // CTAs of the current check that have finished; 0 between checks
};

struct KvMarkArgs {
  KvMark* marks = nullptr;  // [num_blocks * block_size]
  int64_t num_slots = 0;
  const int64_t* slot_mapping = nullptr;  // [num_tokens]
  const int32_t* sequences = nullptr;     // [num_tokens]
  const int32_t* positions = nullptr;     // [num_tokens]
  int64_t num_tokens = 0;
};

// Arrays as in KvCanaryRows; null: the default.
struct KvCheckArgs {
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
  KvCanaryCounters* counters = nullptr;  // CUDA only
};

constexpr int32_t CellOr(const int32_t* cells, int row, int32_t otherwise) {
  return cells == nullptr ? otherwise : cells[row];
}

// Positions of the keys that a row reads: [begin, end).
struct CheckedKeys {
  int64_t begin = 0;
  int64_t end = 0;
};
constexpr CheckedKeys KeysOfRow(const KvCheckArgs& args, int row) {
  const int64_t start = CellOr(args.key_start, row, 0);
  const int64_t first = CellOr(args.first_keys, row, 0);
  const int64_t len = args.seq_lens[row];
  return {.begin = first > start ? first : start, .end = start + (len > 0 ? len : 0)};
}

// The result of checking the key at `position` of a row.
struct KeyCheck {
  bool is_wrong = false;
  KvCanaryFault fault = {};
};
constexpr KeyCheck CheckKey(const KvCheckArgs& args, int row, int64_t position) {
  KeyCheck check = {
      .fault = {.row = row, .expected = {args.sequences[row], static_cast<int32_t>(position)}}};
  const int table_row = args.table_row == nullptr ? row : args.table_row[row];
  const int64_t column = position < 0 ? -1 : position / args.block_size;
  check.fault.offset = static_cast<int32_t>(column < 0 ? 0 : position - column * args.block_size);
  if (table_row < 0 || table_row >= args.num_tables || column < 0 || column >= args.max_blocks) {
    check.is_wrong = true;
    return check;
  }
  const int32_t block = args.block_table[table_row * args.table_stride + column];
  check.fault.block = block;
  if (block < 0 || block >= args.num_blocks) {
    check.is_wrong = true;
    return check;
  }
  check.fault.found =
      args.marks[static_cast<int64_t>(block) * args.block_size + check.fault.offset];
  const bool is_shared = position < CellOr(args.shared_lens, row, 0);
  check.is_wrong = check.fault.found.position != check.fault.expected.position ||
                   (!is_shared && check.fault.found.sequence != check.fault.expected.sequence);
  return check;
}

// Errors: InvalidArgument naming the field. Do not read arrays.
inline absl::Status CheckMarkKv(const KvMarkArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_tokens", args.num_tokens, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_slots", args.num_slots, 0));
  if (args.num_tokens == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckGiven("slot_mapping", args.slot_mapping));
  REPRISE_RETURN_IF_ERROR(CheckGiven("sequences", args.sequences));
  REPRISE_RETURN_IF_ERROR(CheckGiven("positions", args.positions));
  return args.num_slots == 0 ? absl::OkStatus() : CheckGiven("marks", args.marks);
}
inline absl::Status CheckCheckKv(const KvCheckArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_blocks", args.num_blocks, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("block_size", args.block_size, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_tables", args.num_tables, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_blocks", args.max_blocks, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.num_rows, 0));
  if (args.num_rows == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckGiven("seq_lens", args.seq_lens));
  REPRISE_RETURN_IF_ERROR(CheckGiven("sequences", args.sequences));
  REPRISE_RETURN_IF_ERROR(CheckGiven("findings", args.findings));
  if (args.num_tables > 0 && args.max_blocks > 0) {
    REPRISE_RETURN_IF_ERROR(CheckGiven("block_table", args.block_table));
  }
  return args.num_blocks == 0 ? absl::OkStatus() : CheckGiven("marks", args.marks);
}

// Enqueue the work on `stream`. All pointers are device pointers. No launch if there is no token or
// row. Errors: as CheckMarkKv() and CheckCheckKv(), and InvalidArgument without `counters`;
// Internal if CUDA fails.
absl::Status LaunchMarkKv(const KvMarkArgs& args, CUstream_st* stream);
absl::Status LaunchCheckKv(const KvCheckArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_CACHE_OPS_KV_CANARY_ARGS_H_
