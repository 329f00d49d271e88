// Tests that every launcher rejects the arguments that its check rejects, before it calls CUDA.
// Needs no GPU.

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "reprise/cache/block_copy.h"
#include "reprise/cache/ops/copy_blocks_args.h"
#include "reprise/cache/ops/kv_canary_args.h"
#include "reprise/cache/ops/kv_scale_args.h"
#include "reprise/cache/ops/read_kv_args.h"
#include "reprise/cache/ops/write_kv_args.h"
#include "reprise/cache/storage/block_extents.h"

namespace reprise {
namespace {

char memory[8] = {};
int64_t slots[1] = {};
int32_t cells[2] = {};
float scales[1] = {};

template <typename Args>
struct Case {
  void (*spoil)(Args&);
  std::string message;
};

// Applies each change to `good`, and expects the check and, in builds with CUDA, the launcher to
// reject it with the same message.
template <typename Args, typename Check, typename Launch>
void ExpectRefused(const Args& good, const std::vector<Case<Args>>& cases, Check check,
                   [[maybe_unused]] Launch launch) {
  EXPECT_EQ(check(good), absl::OkStatus());
  for (const Case<Args>& c : cases) {
    Args args = good;
    c.spoil(args);
    EXPECT_EQ(check(args), absl::InvalidArgumentError(c.message));
#ifdef REPRISE_WITH_CUDA
    EXPECT_EQ(launch(args), absl::InvalidArgumentError(c.message));
#endif
  }
}

#ifdef REPRISE_WITH_CUDA
#define LAUNCH(function) [](const auto& args) { return function(args, nullptr); }
#else
#define LAUNCH(function) 0
#endif

KvLayer GoodLayer() {
  const KvView view = {.data = memory, .dim_chunk = 1};
  return {.k = view,
          .v = view,
          .num_blocks = 1,
          .block_size = 1,
          .num_kv_heads = 1,
          .head_dim_qk = 1,
          .head_dim_v = 1};
}

TEST(RefusedArgsTest, RejectsInvalidWriteArguments) {
  const WriteKvArgs good = {.kv = GoodLayer(),
                            .k = {.data = memory},
                            .v = {.data = memory},
                            .slot_mapping = slots,
                            .num_tokens = 1};
  ExpectRefused<WriteKvArgs>(
      good,
      {{[](auto& a) { a.kv.block_size = 0; }, "kv.block_size: expected at least 1, got 0"},
       {[](auto& a) { a.kv.k.data = nullptr; }, "kv.k: expected an array, got none"},
       {[](auto& a) { a.kv.v_scale.value = NAN; },
        "kv.v_scale: expected a positive, finite number, got nan"},
       {[](auto& a) { a.kv.k_scale = {.data = scales, .row_stride = 4}; },
        "kv.k_scale.row_stride: expected 0, got 4"},
       {[](auto& a) { a.num_tokens = -1; }, "num_tokens: expected at least 0, got -1"},
       {[](auto& a) { a.num_sides = 3; }, "num_sides: expected 1 to 2, got 3"},
       {[](auto& a) { a.k.data = nullptr; }, "k: expected an array, got none"},
       {[](auto& a) { a.v.data = nullptr; }, "v: expected an array, got none"},
       {[](auto& a) { a.slot_mapping = nullptr; }, "slot_mapping: expected an array, got none"}},
      CheckWriteKv, LAUNCH(LaunchWriteKv));
}

TEST(RefusedArgsTest, RejectsInvalidReadArguments) {
  const ReadKvArgs good = {.kv = GoodLayer(),
                           .k = {.data = memory},
                           .v = {.data = memory},
                           .num_tokens = 1,
                           .block_table = cells,
                           .num_tables = 1,
                           .max_blocks = 1,
                           .start_loc = cells,
                           .num_rows = 1};
  ExpectRefused<ReadKvArgs>(
      good,
      {{[](auto& a) { a.kv.num_blocks = -1; }, "kv.num_blocks: expected at least 0, got -1"},
       {[](auto& a) { a.num_tokens = -1; }, "num_tokens: expected at least 0, got -1"},
       {[](auto& a) { a.num_tables = -1; }, "num_tables: expected at least 0, got -1"},
       {[](auto& a) { a.max_blocks = -1; }, "max_blocks: expected at least 0, got -1"},
       {[](auto& a) { a.num_rows = -1; }, "num_rows: expected at least 0, got -1"},
       {[](auto& a) { a.start_loc = nullptr; }, "start_loc: expected an array, got none"},
       {[](auto& a) { a.block_table = nullptr; }, "block_table: expected an array, got none"},
       {[](auto& a) { a.k.data = nullptr; }, "k: expected an array, got none"},
       {[](auto& a) {
          a.slot_mapping = slots;
          a.kv.v_scale = {.data = scales, .row_stride = 4};
        },
        "kv.v_scale.row_stride: expected 0, got 4"}},
      CheckReadKv, LAUNCH(LaunchReadKv));
}

TEST(RefusedArgsTest, RejectsInvalidScaleArguments) {
  const KvScaleArgs good = {.values = {.data = memory},
                            .slot_mapping = slots,
                            .num_tokens = 1,
                            .num_kv_heads = 2,
                            .head_dim = 1,
                            .scales = scales,
                            .num_scales = 1};
  ExpectRefused<KvScaleArgs>(
      good,
      {{[](auto& a) { a.num_tokens = -1; }, "num_tokens: expected at least 0, got -1"},
       {[](auto& a) { a.num_kv_heads = -1; }, "num_kv_heads: expected at least 0, got -1"},
       {[](auto& a) { a.head_dim = -1; }, "head_dim: expected at least 0, got -1"},
       {[](auto& a) { a.range = 0; }, "range: expected a positive, finite number, got 0"},
       {[](auto& a) { a.num_scales = 3; }, "scales: expected 2, got 3"},
       {[](auto& a) { a.scales = nullptr; }, "scales: expected an array, got none"},
       {[](auto& a) { a.slot_mapping = nullptr; }, "slot_mapping: expected an array, got none"},
       {[](auto& a) { a.values.data = nullptr; }, "values: expected an array, got none"}},
      CheckKvScale, LAUNCH(LaunchKvScale));
}

TEST(RefusedArgsTest, RejectsInvalidMarkArguments) {
  static KvMark marks[1];
  const KvMarkArgs good = {.marks = marks,
                           .num_slots = 1,
                           .slot_mapping = slots,
                           .sequences = cells,
                           .positions = cells,
                           .num_tokens = 1};
  ExpectRefused<KvMarkArgs>(
      good,
      {{[](auto& a) { a.num_tokens = -1; }, "num_tokens: expected at least 0, got -1"},
       {[](auto& a) { a.num_slots = -1; }, "num_slots: expected at least 0, got -1"},
       {[](auto& a) { a.slot_mapping = nullptr; }, "slot_mapping: expected an array, got none"},
       {[](auto& a) { a.sequences = nullptr; }, "sequences: expected an array, got none"},
       {[](auto& a) { a.positions = nullptr; }, "positions: expected an array, got none"},
       {[](auto& a) { a.marks = nullptr; }, "marks: expected an array, got none"}},
      CheckMarkKv, LAUNCH(LaunchMarkKv));
}

TEST(RefusedArgsTest, RejectsInvalidCheckArguments) {
  static KvMark marks[1];
  static KvCanaryFindings findings;
  static KvCanaryCounters counters;
  const KvCheckArgs good = {.marks = marks,
                            .num_blocks = 1,
                            .block_size = 1,
                            .block_table = cells,
                            .num_tables = 1,
                            .max_blocks = 1,
                            .seq_lens = cells,
                            .sequences = cells,
                            .num_rows = 1,
                            .findings = &findings,
                            .counters = &counters};
  ExpectRefused<KvCheckArgs>(
      good,
      {{[](auto& a) { a.num_blocks = -1; }, "num_blocks: expected at least 0, got -1"},
       {[](auto& a) { a.block_size = 0; }, "block_size: expected at least 1, got 0"},
       {[](auto& a) { a.num_rows = -1; }, "num_rows: expected at least 0, got -1"},
       {[](auto& a) { a.seq_lens = nullptr; }, "seq_lens: expected an array, got none"},
       {[](auto& a) { a.sequences = nullptr; }, "sequences: expected an array, got none"},
       {[](auto& a) { a.findings = nullptr; }, "findings: expected an array, got none"},
       {[](auto& a) { a.block_table = nullptr; }, "block_table: expected an array, got none"},
       {[](auto& a) { a.marks = nullptr; }, "marks: expected an array, got none"}},
      CheckCheckKv, LAUNCH(LaunchCheckKv));
}

TEST(RefusedArgsTest, RejectsInvalidCopyArguments) {
  static const BlockExtent extents[1] = {};
  static const BlockCopy copies[1] = {};
  const BlockExtentList list = {.extents = extents, .host_extents = extents, .num_extents = 1};
  const CopyBlocksArgs good = {.src = list, .dst = list, .copies = copies, .num_copies = 1};
  const std::vector<Case<CopyBlocksArgs>> cases = {
      {[](auto& a) { a.num_copies = -1; }, "num_copies: expected at least 0, got -1"},
      {[](auto& a) { a.src.num_extents = -1; }, "src.num_extents: expected at least 0, got -1"},
      {[](auto& a) { a.dst.num_extents = 2; }, "dst.num_extents: expected 1, got 2"},
      {[](auto& a) { a.copies = nullptr; }, "copies: expected an array, got none"},
      {[](auto& a) { a.src.extents = nullptr; }, "src.extents: expected an array, got none"},
      {[](auto& a) { a.dst.host_extents = nullptr; },
       "dst.host_extents: expected an array, got none"}};
  ExpectRefused<CopyBlocksArgs>(good, cases, CheckCopyBlocks, LAUNCH(LaunchInlineCopies));
  ExpectRefused<CopyBlocksArgs>(good, cases, CheckCopyBlocks, LAUNCH(LaunchDeviceCopies));
#ifdef REPRISE_WITH_CUDA
  CopyBlocksArgs too_many = good;
  too_many.num_copies = kMaxInlineCopies + 1;
  EXPECT_EQ(LaunchInlineCopies(too_many, nullptr),
            absl::InvalidArgumentError("num_copies: expected at most 3840, got 3841"));
#endif
}

}  // namespace
}  // namespace reprise
