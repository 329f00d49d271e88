// Results do not depend on how sequences are cut into chunks, batches, blocks, rows and ranks. The
// comparison is exact if the contract guarantees bitwise identical results.

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/cpu/host_attention.h"
#include "reprise/attention/metadata/batch_builder.h"
#include "reprise/attention/metadata/batch_split.h"
#include "reprise/attention/testing/kv_memory.h"
#include "reprise/attention/testing/random.h"

namespace reprise {
namespace {

using ::testing::FloatNear;
using ::testing::Pointwise;

constexpr int kNumQHeads = 6;
constexpr int kNumKvHeads = 2;
constexpr int kHeadDim = 24;
constexpr int kMaxSeqLen = 700;

constexpr AttentionParams kLayer = {.num_q_heads = kNumQHeads,
                                    .num_kv_heads = kNumKvHeads,
                                    .head_dim_qk = kHeadDim,
                                    .head_dim_v = kHeadDim};

void RunInTurn(int num_shares, absl::FunctionRef<void(int)> run_share) {
  for (int share = 0; share < num_shares; ++share) run_share(share);
}

// Random q for each token of several sequences, and a cache with their random keys and values.
class World {
 public:
  World(int num_sequences, int block_size, KvMemoryLayout layout, uint64_t seed)
      : max_blocks_((kMaxSeqLen + block_size - 1) / block_size),
        memory_({.layout = layout,
                 .dtype = DType::kBFloat16,
                 .num_blocks = num_sequences * max_blocks_ + 1,
                 .block_size = block_size,
                 .num_kv_heads = kNumKvHeads,
                 .head_dim_qk = kHeadDim,
                 .head_dim_v = kHeadDim}) {
    Random random(seed);
    for (int i = 1; i <= num_sequences * max_blocks_; ++i) entries_.push_back(i);
    random.Shuffle(entries_);
    Random values(99);  // independent of the table's seed
    for (int s = 0; s < num_sequences; ++s) {
      for (int token = 0; token < kMaxSeqLen; ++token) {
        for (int i = 0; i < kNumQHeads * kHeadDim; ++i) {
          q_.push_back(static_cast<float>(values.NearNormal()));
        }
        const int block = entries_[s * max_blocks_ + token / block_size];
        for (int head = 0; head < kNumKvHeads; ++head) {
          for (int d = 0; d < kHeadDim; ++d) {
            memory_.SetK(block, token % block_size, head, d, values.NearNormal());
            memory_.SetV(block, token % block_size, head, d, values.NearNormal());
          }
        }
      }
    }
    table_ = {.entries = entries_.data(),
              .row_stride = max_blocks_,
              .num_tables = num_sequences,
              .max_blocks = max_blocks_,
              .block_size = block_size};
  }

  const BlockTableView& table() const { return table_; }

  // Returns q for the tokens of a built batch.
  std::vector<float> QueriesOf(const BuiltBatch& built) const {
    std::vector<float> q(built.batch.num_tokens * kNumQHeads * kHeadDim, NAN);
    for (int r = 0; r < built.batch.num_rows; ++r) {
      for (int t = built.batch.query_start_loc[r]; t < built.batch.query_start_loc[r + 1]; ++t) {
        const int64_t token = built.batch.table_row[r] * kMaxSeqLen + built.positions[t];
        std::copy_n(&q_[token * kNumQHeads * kHeadDim], kNumQHeads * kHeadDim,
                    &q[t * kNumQHeads * kHeadDim]);
      }
    }
    return q;
  }

  struct Result {
    std::vector<float> out;  // [num_tokens, heads, head_dim]
    std::vector<float> lse;  // [num_tokens, heads]

    // Returns the rows of `num_tokens` tokens, starting at token `first`.
    std::vector<float> OutOf(int first, int num_tokens) const {
      const auto begin = out.begin() + first * kNumQHeads * kHeadDim;
      return {begin, begin + num_tokens * kNumQHeads * kHeadDim};
    }
    friend bool operator==(const Result&, const Result&) = default;
  };

  Result Attend(const PagedBatch& batch, std::vector<float> q, int num_threads = 1,
                const AttentionParams& layer = kLayer) const {
    Result result;
    result.out.assign(batch.num_tokens * kNumQHeads * kHeadDim, NAN);
    result.lse.assign(batch.num_tokens * kNumQHeads, NAN);
    const TokenView q_view = {
        .data = q.data(), .token_stride = kNumQHeads * kHeadDim, .head_stride = kHeadDim};
    TokenView out = q_view;
    out.data = result.out.data();
    PagedAttentionOnHost({.layer = layer,
                          .kv = memory_.View(OnHost),
                          .q = q_view,
                          .output = {.out = out,
                                     .num_out_tokens = batch.num_tokens,
                                     .lse = result.lse.data(),
                                     .lse_token_stride = kNumQHeads,
                                     .lse_head_stride = 1,
                                     .num_lse_tokens = batch.num_tokens}},
                         batch, {.run = RunInTurn, .count = num_threads, .share_work = 1});
    return result;
  }

  // Computes the attention of these sequences as one batch.
  Result Step(const std::vector<BatchSequence>& sequences,
              std::optional<PaddedSize> padded = std::nullopt,
              const std::vector<int32_t>& order = {}, const AttentionParams& layer = kLayer) const {
    BatchBuilder builder = *BatchBuilder::Create({.max_rows = 40, .max_tokens = 2000});
    const absl::StatusOr<BuiltBatch> built =
        builder.Build({.sequences = sequences, .order = order, .table = table_, .padded = padded});
    EXPECT_TRUE(built.ok()) << built.status();
    return Attend(built->batch, QueriesOf(*built), /*num_threads=*/1, layer);
  }

 private:
  int max_blocks_;
  KvMemory memory_;
  std::vector<int32_t> entries_;
  BlockTableView table_;
  std::vector<float> q_;  // [sequences, kMaxSeqLen, heads, head_dim]
};

World SmallWorld() { return World(8, 16, KvMemoryLayout::kNhd, /*seed=*/1); }

const std::vector<BatchSequence> kMixed = {{3, 600, 1}, {0, 0, 77},   {5, 10, 3}, {1, 699, 1},
                                           {2, 0, 1},   {7, 512, 40}, {4, 127, 2}};

TEST(HostAttentionPropertyTest, ChunkedPromptMatchesTheWholePrompt) {
  const World world = SmallWorld();
  constexpr int kPrompt = 333;
  const World::Result whole = world.Step({{0, 0, kPrompt}});
  for (int chunk : {1, 3, 16, 128, 200}) {
    std::vector<float> out;
    for (int computed = 0; computed < kPrompt; computed += chunk) {
      const World::Result part = world.Step({{0, computed, std::min(chunk, kPrompt - computed)}});
      out.insert(out.end(), part.out.begin(), part.out.end());
    }
    EXPECT_THAT(out, Pointwise(FloatNear(1e-5f), whole.out)) << "chunks of " << chunk;
  }
}

TEST(HostAttentionPropertyTest, RowInAnyBatchIsBitwiseIdenticalToTheSingleRow) {
  const World world = SmallWorld();
  std::vector<BatchSequence> sequences = kMixed;
  Random random(4);
  for (int trial = 0; trial < 5; ++trial) {
    random.Shuffle(sequences);
    const World::Result together = world.Step(sequences);
    int first = 0;
    for (const BatchSequence& sequence : sequences) {
      EXPECT_EQ(world.Step({sequence}).out, together.OutOf(first, sequence.query_len));
      first += sequence.query_len;
    }
  }
}

// As in the verification of drafts.
TEST(HostAttentionPropertyTest, TokenInARowOfSeveralIsBitwiseIdenticalToADecode) {
  const World world = SmallWorld();
  for (const std::optional<int> window : {std::optional<int>(), {5}, {100}}) {
    AttentionParams layer = kLayer;
    layer.window_left = window;
    for (const int computed : {0, 3, 127, 250, 510, 683}) {
      std::vector<float> decodes;
      for (int i = 0; i < 17; ++i) {
        const std::vector<float> out =
            world.Step({{6, computed + i, 1}}, std::nullopt, {}, layer).out;
        decodes.insert(decodes.end(), out.begin(), out.end());
      }
      for (int query_len = 1; query_len <= 17; ++query_len) {
        const World::Result row = world.Step({{6, computed, query_len}}, std::nullopt, {}, layer);
        EXPECT_TRUE(std::equal(row.out.begin(), row.out.end(), decodes.begin()))
            << query_len << " queries behind " << computed << " keys, window "
            << window.value_or(-1);
      }
    }
  }
}

TEST(HostAttentionPropertyTest, SeparateDecodesAndPrefillsMatchTheBatch) {
  const World world = SmallWorld();
  std::vector<int32_t> order(kMixed.size());
  const absl::StatusOr<BatchSplit> split =
      SplitBatch(kMixed, {.decode_threshold = 3}, absl::MakeSpan(order));
  ASSERT_TRUE(split.ok());
  const World::Result together = world.Step(kMixed, std::nullopt, order);
  int first = 0;
  for (const BatchKind& kind : {split->decode, split->prefill}) {
    const std::vector<int32_t> rows(order.begin() + kind.first_row,
                                    order.begin() + kind.first_row + kind.num_rows);
    EXPECT_EQ(world.Step(kMixed, std::nullopt, rows).out, together.OutOf(first, kind.num_tokens));
    first += kind.num_tokens;
  }
}

TEST(HostAttentionPropertyTest, PaddingAddsOnlyInertRows) {
  const World world = SmallWorld();
  const World::Result bare = world.Step(kMixed);
  const int num_tokens = static_cast<int>(bare.lse.size()) / kNumQHeads;
  const World::Result padded = world.Step(kMixed, PaddedSize{16, num_tokens + 9});
  EXPECT_EQ(padded.OutOf(0, num_tokens), bare.out);
  EXPECT_EQ(padded.OutOf(num_tokens, 9), std::vector<float>(9 * kNumQHeads * kHeadDim, 0.0f));
  for (size_t i = bare.lse.size(); i < padded.lse.size(); ++i) {
    EXPECT_EQ(padded.lse[i], -std::numeric_limits<float>::infinity());
  }
}

TEST(HostAttentionPropertyTest, ResultsAreBitwiseIndependentOfBlockSizeAndLayout) {
  const World::Result expected = SmallWorld().Step(kMixed);
  for (int block_size : {1, 5, 64}) {
    for (KvMemoryLayout layout :
         {KvMemoryLayout::kHnd, KvMemoryLayout::kPackedNhd, KvMemoryLayout::kKPacked}) {
      EXPECT_EQ(World(8, block_size, layout, /*seed=*/block_size).Step(kMixed), expected)
          << block_size << " " << layout;
    }
  }
}

// Combines softmaxes over disjoint keys by their lse.
World::Result Merged(const std::vector<World::Result>& parts) {
  World::Result merged = parts[0];
  for (size_t i = 0; i < merged.lse.size(); ++i) {
    double sum = 0;
    for (const World::Result& part : parts) sum += std::exp(double{part.lse[i]});
    merged.lse[i] = static_cast<float>(std::log(sum));
    for (int d = 0; d < kHeadDim; ++d) {
      double out = 0;
      for (const World::Result& part : parts) {
        out += std::exp(double{part.lse[i]}) / sum * part.out[i * kHeadDim + d];
      }
      merged.out[i * kHeadDim + d] = static_cast<float>(out);
    }
  }
  return merged;
}

TEST(HostAttentionPropertyTest, PartsOfTheKeysMergeByLse) {
  const World world = SmallWorld();
  const World::Result whole = world.Step({{2, 640, 4}});
  BatchBuilder builder = *BatchBuilder::Create({.max_rows = 1, .max_tokens = 4});
  const std::vector<BatchSequence> sequence = {{2, 640, 4}};
  const BuiltBatch built = *builder.Build({.sequences = sequence, .table = world.table()});
  for (int cut : {1, 100, 128, 513, 640, 643}) {  // within a key block and at its boundaries
    std::vector<World::Result> parts;
    for (const auto& [start, len] : {std::pair(0, cut), std::pair(cut, 644 - cut)}) {
      const std::vector<int32_t> key_start = {start};
      const std::vector<int32_t> seq_lens = {len};
      PagedBatch batch = built.batch;
      batch.key_start = key_start.data();
      batch.seq_lens = seq_lens.data();
      batch.query_positions = built.positions.data();
      parts.push_back(world.Attend(batch, world.QueriesOf(built)));
    }
    const World::Result merged = Merged(parts);
    EXPECT_THAT(merged.out, Pointwise(FloatNear(1e-5f), whole.out)) << "cut at " << cut;
    EXPECT_THAT(merged.lse, Pointwise(FloatNear(1e-5f), whole.lse)) << "cut at " << cut;
  }
}

TEST(HostAttentionPropertyTest, RanksOfContextParallelismMergeByLse) {
  // The tokens of sequence 6 are divided between two ranks.
  const World world(8, 1, KvMemoryLayout::kNhd, /*seed=*/1);  // so that a table can name any token
  const World::Result whole = world.Step({{6, 299, 2}});
  BatchBuilder builder = *BatchBuilder::Create({.max_rows = 1, .max_tokens = 2});
  const std::vector<BatchSequence> sequence = {{6, 299, 2}};
  const BuiltBatch built = *builder.Build({.sequences = sequence, .table = world.table()});
  for (int interleave : {1, 4}) {
    std::vector<World::Result> parts;
    for (int rank : {0, 1}) {
      std::vector<int32_t> local;
      for (int token = 0; token < 301; ++token) {
        if (token / interleave % 2 != rank) continue;
        local.push_back(world.table().entries[6 * world.table().row_stride + token]);
      }
      const std::vector<int32_t> seq_lens = {static_cast<int32_t>(local.size())};
      const std::vector<int32_t> table_row = {0};
      PagedBatch batch = built.batch;
      batch.seq_lens = seq_lens.data();
      batch.table_row = table_row.data();
      batch.block_table = local.data();
      batch.query_positions = built.positions.data();
      batch.key_positions = {.rank = rank, .world = 2, .interleave = interleave};
      parts.push_back(world.Attend(batch, world.QueriesOf(built)));
    }
    const World::Result merged = Merged(parts);
    EXPECT_THAT(merged.out, Pointwise(FloatNear(1e-5f), whole.out));
    EXPECT_THAT(merged.lse, Pointwise(FloatNear(1e-5f), whole.lse));
  }
}

TEST(HostAttentionPropertyTest, CommonPrefixDoesNotChangeResults) {
  const World world = SmallWorld();
  BatchBuilder builder = *BatchBuilder::Create({.max_rows = 2, .max_tokens = 2});
  const std::vector<BatchSequence> forks = {{1, 300, 1}, {1, 200, 1}};  // forks of one sequence
  const BuiltBatch built = *builder.Build({.sequences = forks, .table = world.table()});
  PagedBatch batch = built.batch;
  const World::Result flat = world.Attend(batch, world.QueriesOf(built));
  const int32_t prefix_len = 201;
  batch.common_prefix_len = &prefix_len;
  EXPECT_EQ(world.Attend(batch, world.QueriesOf(built)), flat);
}

}  // namespace
}  // namespace reprise
