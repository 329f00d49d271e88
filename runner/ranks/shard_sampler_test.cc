#include "reprise/runner/ranks/shard_sampler.h"

#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/distributed/testing/counting_collectives.h"
#include "reprise/distributed/testing/thread_ranks.h"
#include "reprise/runner/ops/linear_context.h"
#include "reprise/runner/ranks/over_ranks.h"
#include "reprise/runner/sampling/sampling.h"

namespace reprise {
namespace {

using testing::Each;
using testing::HasSubstr;

// The sampling parameters of sequences, one per slot. Row i belongs to slot i.
struct Rows {
  std::vector<SamplingParams> params;
  std::vector<SlotJoin> joins;
  std::vector<ScheduledRow> rows;

  explicit Rows(std::vector<SamplingParams> of_slots) : params(std::move(of_slots)) {
    for (int slot = 0; slot < static_cast<int>(params.size()); ++slot) {
      joins.push_back(JoinOf(SlotId(slot), {}, 1, params[slot]));
      rows.push_back({.slot = SlotId(slot)});
    }
  }
  ScheduledBatch batch() const { return {.joins = joins, .rows = rows}; }
};

// The sampling state of slots.
struct State {
  std::vector<int32_t> last_token, sample_slot, out;
  std::vector<int64_t> sample_index;

  explicit State(size_t num_slots)
      : last_token(num_slots, -7),
        sample_slot(num_slots),
        out(num_slots, -7),
        sample_index(num_slots, 5) {
    for (size_t i = 0; i < num_slots; ++i) sample_slot[i] = static_cast<int32_t>(i);
  }
  SamplingSlots slots(const std::vector<SamplingParams>& params) {
    return {.params = params.data(),
            .last_token = last_token.data(),
            .sample_index = sample_index.data(),
            .num_slots = static_cast<int>(params.size())};
  }
  friend bool operator==(const State&, const State&) = default;
};

State OfWhole(const at::Tensor& logits, const std::vector<SamplingParams>& params) {
  State state(params.size());
  EXPECT_EQ(Sample({.logits = logits,
                    .slots = state.slots(params),
                    .sample_slot = state.sample_slot.data(),
                    .out = state.out.data()}),
            absl::OkStatus());
  return state;
}

// Rows of several kinds of sampling, for several vocabulary sizes and numbers of ranks.
TEST(ShardSamplerTest, ChoosesTheTokensOfTheWholeLogitsOnAllRanks) {
  const Rows rows({{},
                   {.temperature = 1, .seed = 1},
                   {.temperature = 0.7f, .top_k = 5, .seed = 2},
                   {.temperature = 1, .top_k = 7, .top_p = 0.8f, .seed = 3},
                   {.temperature = 1, .min_p = 0.05f, .seed = 4},
                   {.temperature = 1, .top_k = 4, .top_p = 0.5f, .min_p = 0.01f, .seed = 5}});
  for (const int64_t vocab_size : {8, 37, 128, 257}) {
    for (const int world : {2, 3, 4}) {
      SCOPED_TRACE(testing::Message() << vocab_size << " over " << world << " ranks");
      const at::Tensor logits = at::randn({8, vocab_size}).mul_(2);  // 2 padded rows
      const State expected = OfWhole(logits.narrow(0, 0, 6), rows.params);
      const auto run = [&](Collectives& ranks) -> absl::Status {
        CountingCollectives collectives(ranks);
        ShardedLogits sharded(vocab_size, &collectives);
        REPRISE_ASSIGN_OR_RETURN(
            const auto sampler,
            ShardSampler::Create({.logits = &sharded, .max_rows = 6, .max_logits = 10}));
        const Share share = sharded.share();
        sharded.PartsIn(sampler->memory(), 8)[ranks.ranks().rank]
            .narrow(1, 0, share.size)
            .copy_(logits.narrow(1, share.begin, share.size));
        sampler->Plan(rows.batch());
        EXPECT_TRUE(sampler->serves());
        EXPECT_EQ(sampler->num_top(), 7);
        State state(rows.params.size());
        REPRISE_RETURN_IF_ERROR(sampler->Sample({.num_logits = 8,
                                                 .num_rows = 6,
                                                 .slots = state.slots(rows.params),
                                                 .sample_slot = state.sample_slot.data(),
                                                 .out = state.out.data()}));
        EXPECT_EQ(state, expected);
        EXPECT_EQ(collectives.num_gathers(), 2);
        EXPECT_EQ(collectives.num_bytes(),
                  (world - 1) * 6 * (4 * ShardTopWords(sampler->num_top()) + 8));
        // Gather() must return the same logits as whole rows.
        const at::Tensor gathered = at::full({8, vocab_size}, 9.0f);
        REPRISE_RETURN_IF_ERROR(sampler->Gather(8, gathered));
        EXPECT_TRUE(gathered.equal(logits));
        return absl::OkStatus();
      };
      EXPECT_THAT(RunThreadRanks(world, run), Each(absl::OkStatus()));
    }
  }
}

TEST(ShardSamplerTest, GreedyStepsGatherOneChoicePerRow) {
  const Rows rows({{}, {.top_p = 0.5f}});
  const at::Tensor logits = at::randn({2, 300}).to(at::kBFloat16);
  const State expected = OfWhole(logits, rows.params);
  const auto run = [&](Collectives& ranks) -> absl::Status {
    CountingCollectives collectives(ranks);
    ShardedLogits sharded(300, &collectives);
    REPRISE_ASSIGN_OR_RETURN(const auto sampler,
                             ShardSampler::Create({.logits = &sharded,
                                                   .max_rows = 2,
                                                   .max_logits = 2,
                                                   .logits_dtype = DType::kBFloat16}));
    sharded.PartsIn(sampler->memory(), 2)[ranks.ranks().rank]
        .narrow(1, 0, sharded.share().size)
        .copy_(logits.narrow(1, sharded.share().begin, sharded.share().size));
    sampler->Plan(rows.batch());
    EXPECT_TRUE(sampler->serves());
    State state(2);
    REPRISE_RETURN_IF_ERROR(sampler->Sample({.num_logits = 2,
                                             .num_rows = 2,
                                             .slots = state.slots(rows.params),
                                             .sample_slot = state.sample_slot.data(),
                                             .out = state.out.data()}));
    EXPECT_EQ(state, expected);
    EXPECT_EQ(collectives.num_bytes(), 2 * 8);
    return absl::OkStatus();
  };
  EXPECT_THAT(RunThreadRanks(2, run), Each(absl::OkStatus()));
}

// Rank 0 of 2; its collectives fail.
class NoCollectives final : public Collectives {
 public:
  NoCollectives() : Collectives({.rank = 0, .world = 2}) {}
  std::string Fingerprint() const override { return "none"; }

 protected:
  static absl::Status Refuse() { return absl::InternalError("no collectives"); }
  absl::Status DoAllReduce(at::Tensor&) override { return Refuse(); }
  absl::Status DoAllGather(const at::Tensor&, at::Tensor&) override { return Refuse(); }
  absl::Status DoReduceScatter(const at::Tensor&, at::Tensor&) override { return Refuse(); }
  absl::Status DoBroadcast(at::Tensor&, int) override { return Refuse(); }
  absl::Status DoBarrier() override { return Refuse(); }
};

TEST(ShardSamplerTest, ServesDependsOnlyOnRowsThatSample) {
  NoCollectives collectives;
  ShardedLogits sharded(1000, &collectives);
  const auto sampler = ShardSampler::Create({.logits = &sharded, .max_rows = 4, .max_logits = 4});
  ASSERT_TRUE(sampler.ok()) << sampler.status();
  Rows rows({{.temperature = 1, .top_p = 0.9f},
             {.temperature = 1, .top_k = 3},
             {.temperature = 1, .top_k = 300},
             {}});
  (*sampler)->Plan(rows.batch());
  EXPECT_FALSE((*sampler)->serves());
  // The slots keep the parameters of the sequences that joined.
  const auto serves = [&](const std::vector<int>& slots) {
    std::vector<ScheduledRow> some;
    for (const int slot : slots) some.push_back({.slot = SlotId(slot)});
    (*sampler)->Plan({.rows = some});
    return (*sampler)->serves();
  };
  EXPECT_TRUE(serves({1, 3}));
  EXPECT_EQ((*sampler)->num_top(), 3);
  EXPECT_FALSE(serves({3, 2}));
  EXPECT_FALSE(serves({0}));
  EXPECT_TRUE(serves({3}));
  EXPECT_EQ((*sampler)->num_top(), 0);
  EXPECT_TRUE(serves({}));
  // A prefill chunk that is not the last does not sample.
  const ScheduledRow chunk = {.slot = SlotId(0), .output = RowOutput::kNone};
  (*sampler)->Plan({.rows = absl::MakeConstSpan(&chunk, 1)});
  EXPECT_TRUE((*sampler)->serves());
  // Another sequence joins slot 0.
  const SlotJoin join = JoinOf(SlotId(0), {}, 1, {.temperature = 1, .top_k = 2, .top_p = 0.9f});
  const ScheduledRow row = {.slot = SlotId(0)};
  (*sampler)->Plan({.joins = absl::MakeConstSpan(&join, 1), .rows = absl::MakeConstSpan(&row, 1)});
  EXPECT_TRUE((*sampler)->serves());
  EXPECT_EQ((*sampler)->num_top(), 2);
}

// The head of a model's forward pass, with the runner's memory and without.
TEST(ShardedLogitsTest, ForwardPassWritesItsShard) {
  NoCollectives collectives;
  const ShardedVocabulary vocabulary(130, &collectives);
  ShardedLogits& logits = *vocabulary.logits();
  const int64_t size = logits.share().size;
  const at::Tensor weight = at::randn({size, 16});
  const absl::StatusOr<Linear> head = Linear::Create(weight, std::nullopt);
  ASSERT_TRUE(head.ok()) << head.status();
  const auto context = MakeLinearContext(c10::kCPU, {});
  ASSERT_TRUE(context.ok()) << context.status();
  const at::Tensor x = at::randn({3, 16});
  const at::Tensor whole = at::full({3, 130}, 7.0f);
  const at::Tensor memory = at::full({logits.PartsSize(5)}, 7.0f);
  EXPECT_EQ(vocabulary.Logits(*head, **context, x, {.whole = whole, .sharded = memory}),
            absl::OkStatus());
  EXPECT_TRUE(whole.equal(at::full({3, 130}, 7.0f)));
  const at::Tensor own = logits.PartsIn(memory, 3)[0];
  EXPECT_TRUE(own.narrow(1, 0, size).allclose(x.matmul(weight.t()), 1e-5, 1e-5));
  EXPECT_TRUE(logits.PartsIn(memory, 3)[1].eq(7).all().item<bool>());
  // Without this memory, the head calls the collectives.
  EXPECT_THAT(std::string(vocabulary.Logits(*head, **context, x, {.whole = whole}).message()),
              HasSubstr("no collectives"));
}

TEST(ShardedLogitsTest, LogitsOfIsNullWithoutShardedLogitsOrWithOneRank) {
  NoCollectives collectives;
  ShardedLogits alone(10, nullptr), sharded(10, &collectives);
  EXPECT_EQ(ShardSampler::LogitsOf({}), nullptr);
  ModelSpec spec;
  spec.sharded_logits = &alone;
  EXPECT_EQ(ShardSampler::LogitsOf(spec), nullptr);
  spec.sharded_logits = &sharded;
  EXPECT_EQ(ShardSampler::LogitsOf(spec), &sharded);
}

}  // namespace
}  // namespace reprise
