#include "reprise/runner/sampling/shard_sampling.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/runner/ops/test_device.h"
#include "reprise/runner/ops/test_tensors.h"
#include "reprise/runner/sampling/sampling.h"
#ifdef REPRISE_TEST_ON_GPU
#include "reprise/runner/ops/cuda_launch.h"
#endif

namespace reprise {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

absl::Status Run(const ShardSamplingArgs& args,
                 [[maybe_unused]] void (*on_host)(const ShardSamplingArgs&),
                 [[maybe_unused]] absl::Status (*launch)(const ShardSamplingArgs&, CUstream_st*),
                 [[maybe_unused]] const at::Tensor& logits) {
#ifdef REPRISE_TEST_ON_GPU
  return LaunchOnCurrentStream(logits, [&](cudaStream_t stream) { return launch(args, stream); });
#else
  const absl::Status status = CheckShardSampling(args);
  if (status.ok()) on_host(args);
  return status;
#endif
}

#ifdef REPRISE_TEST_ON_GPU
constexpr auto kTop = LaunchShardTop;
constexpr auto kChoice = LaunchShardChoice;
constexpr auto kTokens = LaunchShardTokens;
#else
constexpr absl::Status (*kTop)(const ShardSamplingArgs&, CUstream_st*) = nullptr;
constexpr auto kChoice = kTop;
constexpr auto kTokens = kTop;
#endif

struct Result {
  std::vector<int64_t> tokens;
  std::vector<int64_t> last_token;
  std::vector<int64_t> sample_index;

  friend bool operator==(const Result&, const Result&) = default;
};

std::vector<int64_t> Values(const at::Tensor& tensor) {
  const at::Tensor longs = tensor.cpu().to(at::kLong).contiguous();
  return {longs.const_data_ptr<int64_t>(), longs.const_data_ptr<int64_t>() + longs.numel()};
}

// Slots on the device, one per row, in reverse order.
class Slots {
 public:
  Slots(const std::vector<SamplingParams>& params, at::Device device)
      : params_(
            at::zeros({static_cast<int64_t>(params.size() * sizeof(SamplingParams))}, at::kByte)),
        slot_(at::zeros({static_cast<int64_t>(params.size())}, at::kInt)) {
    const int num_rows = static_cast<int>(params.size());
    auto* const by_slot = reinterpret_cast<SamplingParams*>(params_.mutable_data_ptr<uint8_t>());
    for (int row = 0; row < num_rows; ++row) {
      by_slot[num_rows - 1 - row] = params[row];
      slot_[row] = num_rows - 1 - row;
    }
    params_ = params_.to(device);
    slot_ = slot_.to(device);
    last_token_ = at::full({num_rows}, -7, slot_.options());
    sample_index_ = at::full({num_rows}, 1000, slot_.options().dtype(at::kLong));
    out_ = at::full({num_rows}, -7, slot_.options());
  }

  SamplingSlots slots() const {
    return {.params = reinterpret_cast<const SamplingParams*>(params_.const_data_ptr<uint8_t>()),
            .last_token = last_token_.mutable_data_ptr<int32_t>(),
            .sample_index = sample_index_.mutable_data_ptr<int64_t>(),
            .num_slots = static_cast<int>(slot_.numel())};
  }
  void Omit(int row) { slot_[row] = -1; }
  const int32_t* sample_slot() const { return slot_.const_data_ptr<int32_t>(); }
  int32_t* out() const { return out_.mutable_data_ptr<int32_t>(); }
  Result result() const { return {Values(out_), Values(last_token_), Values(sample_index_)}; }

 private:
  at::Tensor params_, slot_, last_token_, sample_index_, out_;
};

// Logits in `world` shards of any sizes. Each shard has its own memory.
class Shards {
 public:
  // `begins`: the first token of each shard except shard 0. `gap`: elements between rows.
  Shards(const at::Tensor& logits, std::vector<int64_t> begins, at::Device device, int64_t gap = 0)
      : begins_(std::move(begins)), vocab_size_(logits.size(1)) {
    begins_.insert(begins_.begin(), 0);
    begins_.push_back(vocab_size_);
    for (int i = 0; i < world(); ++i) {
      logits_.push_back(WithGaps(
          logits.narrow(1, begins_[i], begins_[i + 1] - begins_[i]).contiguous().to(device), gap));
    }
  }

  int world() const { return static_cast<int>(begins_.size()) - 1; }
  const at::Tensor& logits(int shard) const { return logits_[shard]; }

  // Returns the arguments of a shard. Results are stored in the gathered arrays of all shards.
  ShardSamplingArgs ArgsOf(int shard, const Slots& slots, int num_top) {
    const int64_t num_rows = logits_[shard].size(0);
    const at::TensorOptions options(logits_[shard].device());
    if (!tops_.defined()) {
      tops_ = at::full({world(), num_rows, 1 + num_top}, -1, options.dtype(at::kInt));
      choices_ = at::full({world(), num_rows}, -1, options.dtype(at::kLong));
    }
    return {.dtype = *FromScalarType(logits_[shard].scalar_type()),
            .logits = logits_[shard].const_data_ptr(),
            .logits_stride = logits_[shard].stride(0),
            .num_rows = static_cast<int>(num_rows),
            .shard_size = static_cast<int>(logits_[shard].size(1)),
            .first_token = static_cast<int>(begins_[shard]),
            .vocab_size = static_cast<int>(vocab_size_),
            .world = world(),
            .num_top = num_top,
            .slots = slots.slots(),
            .sample_slot = slots.sample_slot(),
            .top = static_cast<uint32_t*>(tops_[shard].mutable_data_ptr()),
            .all_tops = static_cast<const uint32_t*>(tops_.const_data_ptr()),
            .choices = static_cast<uint64_t*>(choices_[shard].mutable_data_ptr()),
            .all_choices = static_cast<const uint64_t*>(choices_.const_data_ptr()),
            .out = slots.out()};
  }

  // Runs the calls of each rank. The gathers are implicit.
  void Sample(const Slots& slots, int num_top) {
    for (int i = 0; i < world(); ++i) {
      EXPECT_EQ(Run(ArgsOf(i, slots, num_top), ShardTopOnHost, kTop, logits_[i]), absl::OkStatus());
    }
    for (int i = 0; i < world(); ++i) {
      EXPECT_EQ(Run(ArgsOf(i, slots, num_top), ShardChoiceOnHost, kChoice, logits_[i]),
                absl::OkStatus());
    }
    EXPECT_EQ(Run(ArgsOf(0, slots, num_top), ShardTokensOnHost, kTokens, logits_[0]),
              absl::OkStatus());
  }

  std::vector<int64_t> Top(int shard, int row) const { return Values(tops_[shard][row]); }

 private:
  std::vector<int64_t> begins_;
  int64_t vocab_size_;
  std::vector<at::Tensor> logits_;
  at::Tensor tops_, choices_;
};

class ShardSamplingTest : public DeviceTest {
 protected:
  static Result OfWhole(const at::Tensor& logits, const std::vector<SamplingParams>& params) {
    const Slots slots(params, device());
    EXPECT_EQ(Sample({.logits = logits.to(device()),
                      .slots = slots.slots(),
                      .sample_slot = slots.sample_slot(),
                      .out = slots.out()}),
              absl::OkStatus());
    return slots.result();
  }

  static Result OfShards(const at::Tensor& logits, const std::vector<SamplingParams>& params,
                         const std::vector<int64_t>& begins, int num_top, int64_t gap = 0) {
    const Slots slots(params, device());
    Shards(logits, begins, device(), gap).Sample(slots, num_top);
    return slots.result();
  }

  // Expects the tokens of the whole vocabulary from shards that begin at `begins`.
  static void ExpectEqual(const at::Tensor& logits, const std::vector<SamplingParams>& params,
                          const std::vector<int64_t>& begins, int64_t gap = 0) {
    int num_top = 0;
    for (const SamplingParams& p : params) {
      ASSERT_TRUE(ShardsServe(p, logits.size(1)));
      num_top = std::max(num_top, ShardTopOf(p, logits.size(1)));
    }
    const Result whole = OfWhole(logits, params);
    EXPECT_EQ(OfShards(logits, params, begins, num_top, gap), whole);
    if (num_top > 0 && num_top + 3 <= kMaxShardTop) {  // more than the rows need
      EXPECT_EQ(OfShards(logits, params, begins, num_top + 3, gap), whole);
    }
  }
};

at::Tensor Logits(const std::vector<std::vector<float>>& rows) {
  at::Tensor logits =
      at::empty({static_cast<int64_t>(rows.size()), static_cast<int64_t>(rows[0].size())});
  float* out = logits.mutable_data_ptr<float>();
  for (const std::vector<float>& row : rows) out = std::copy(row.begin(), row.end(), out);
  return logits;
}

// Returns all kinds of parameters that shards support.
std::vector<SamplingParams> ManyParams(std::mt19937& random, int num_rows, int vocab_size) {
  std::vector<SamplingParams> params(num_rows);
  for (int row = 0; row < num_rows; ++row) {
    SamplingParams& p = params[row];
    p.temperature = row % 7 == 0 ? 0.0f : 0.3f * (1 + row % 5);
    if (row % 3 > 0) p.top_k = 1 + static_cast<int32_t>(random() % std::min(vocab_size, 70));
    if (row % 4 >= 2 && HasTopK(p, vocab_size)) {
      p.top_p = 0.05f + 0.9f * static_cast<float>(random() % 1000) / 1000;
    }
    if (row % 5 >= 3) p.min_p = std::pow(10.0f, -static_cast<float>(random() % 500) / 100);
    p.seed = (static_cast<uint64_t>(random()) << 32) | random();
  }
  return params;
}

TEST_F(ShardSamplingTest, MatchesSamplingOfTheWholeVocabulary) {
  std::mt19937 random(1);
  for (const int vocab_size : {2, 5, 100, 1003, 4096}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
      for (const int world : {2, 3, 4}) {
        if (vocab_size < world) continue;
        SCOPED_TRACE(testing::Message() << vocab_size << " " << dtype << " over " << world);
        constexpr int kRows = 60;
        const at::Tensor logits = (RandomNormal(random, {kRows, vocab_size}, at::kFloat) * 3);
        std::vector<int64_t> begins;
        for (int i = 1; i < world; ++i) begins.push_back(int64_t{i} * vocab_size / world);
        ExpectEqual(logits.to(dtype), ManyParams(random, kRows, vocab_size), begins,
                    /*gap=*/world == 2 ? 0 : 3);
      }
    }
  }
}

// Shards that begin within a group of four tokens, which share their random numbers, and shards of
// one token.
TEST_F(ShardSamplingTest, ShardsMayBeginAnywhere) {
  std::mt19937 random(2);
  const at::Tensor logits = RandomNormal(random, {40, 37}, at::kFloat);
  for (const std::vector<int64_t>& begins :
       std::vector<std::vector<int64_t>>{{1}, {36}, {3, 6}, {5, 6, 7}, {9, 17, 18, 35}}) {
    ExpectEqual(logits, ManyParams(random, 40, 37), begins);
  }
}

// Logits with few distinct values: all logits equal to the k-th are kept and count for top_p,
// however they are distributed over shards. Greedy rows choose the lowest token.
TEST_F(ShardSamplingTest, KeepsEqualLogitsOfAllShards) {
  std::mt19937 random(3);
  for (const int num_values : {1, 2, 4, 30}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(testing::Message() << num_values << " values");
      const at::Tensor logits = at::randint(num_values, {80, 600}, at::kFloat) - num_values / 2;
      ExpectEqual(logits.to(dtype), ManyParams(random, 80, 600), {7, 333});
    }
  }
}

TEST_F(ShardSamplingTest, GreedyTakesTheLowestOfEqualsOfAllShards) {
  const at::Tensor logits = Logits({{1, 3, 2, 3, 0, 3},
                                    {-1, -1, -1, -1, -1, -1},
                                    {-kInfinity, -5, -kInfinity, -9, -4, -4},
                                    {-1, -1, -1, -0.0f, 0.0f, -1},
                                    {kNan, kNan, 0, kNan, kNan, 1},
                                    {kNan, kNan, kNan, -kInfinity, kNan, kNan}});
  for (const int num_top : {0, 1, 4}) {  // without and with other rows that draw in the step
    EXPECT_THAT(OfShards(logits, std::vector<SamplingParams>(6), {3}, num_top).tokens,
                ElementsAre(1, 0, 4, 3, 5, kNanRow));
  }
}

// A shard may have no number, or fewer numbers than top_k.
TEST_F(ShardSamplingTest, HandlesNansInfinitiesAndShardsWithoutCandidates) {
  const std::vector<std::vector<float>> rows = {
      {kNan, kNan, kNan, 1, kNan, 2},
      {kNan, kNan, kNan, kNan, kNan, kNan},
      {-kInfinity, -kInfinity, -kInfinity, -kInfinity, -kInfinity, -kInfinity},
      {-kInfinity, kNan, -kInfinity, -3e38f, kNan, kNan},
      {kInfinity, 0, 1, kInfinity, 0, kNan},
      {-kInfinity, -kInfinity, 5, -kInfinity, -kInfinity, -kInfinity},
      {-0.0f, 0, -0.0f, 0, -0.0f, -1}};
  for (const SamplingParams& kind : {SamplingParams{},
                                     {.temperature = 1, .seed = 4},
                                     {.temperature = 1, .top_k = 1, .seed = 4},
                                     {.temperature = 1, .top_k = 4, .seed = 4},
                                     {.temperature = 2, .top_k = 5, .top_p = 0.7f, .seed = 5},
                                     {.temperature = 1, .min_p = 0.2f, .seed = 6}}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      SamplingParams params = kind;
      params.seed += 100 * seed;
      for (const std::vector<int64_t>& begins : {std::vector<int64_t>{3}, {1, 2}, {2, 5}}) {
        ExpectEqual(Logits(rows), std::vector<SamplingParams>(rows.size(), params), begins);
      }
    }
  }
}

TEST_F(ShardSamplingTest, AdvancesOnlyTheSlotsThatSample) {
  Slots slots({{}, {.temperature = 1, .top_k = 1}, {}}, device());
  slots.Omit(1);
  Shards shards(Logits({{0, 1, 0}, {0, 1, 0}, {0, 0, 5}}), {2}, device());
  shards.Sample(slots, /*num_top=*/1);
  EXPECT_EQ(slots.result(), (Result{.tokens = {1, kNotSampled, 2},
                                    .last_token = {2, -7, 1},
                                    .sample_index = {1001, 1000, 1001}}));
}

TEST_F(ShardSamplingTest, TheTopIsTheKthKeyItsCountAndTheKeysAbove) {
  const Slots slots({{.temperature = 1, .top_k = 3},
                     {.temperature = 1},
                     {},
                     {.temperature = 1, .top_k = 3},
                     {.temperature = 1, .top_k = 3}},
                    device());
  Shards shards(Logits({{1, 4, 2, 2, kNan, 2, -1, 9},
                        {1, 4, 2, 2, kNan, 4, -1, 9},
                        {1, 4, 2, 2, kNan, 4, -1, 9},
                        {kNan, 4, kNan, kNan, kNan, 2, kNan, 9},
                        {-3, -1, -5, -3, -3, -2, -7, 9}}),
                {7}, device());
  shards.Sample(slots, /*num_top=*/4);
  const auto key = [](float logit) { return std::bit_cast<int32_t>(OrderKey(logit)); };
  const auto above = [&](int row) {
    std::vector<int64_t> words = shards.Top(0, row);
    words.erase(words.begin(), words.begin() + 2);
    return words;
  };
  const auto head = [&](int row) {
    const std::vector<int64_t> words = shards.Top(0, row);
    return std::pair(words[0], words[1]);
  };
  EXPECT_EQ(head(0), std::pair(int64_t{key(2)}, int64_t{3}));
  EXPECT_THAT(above(0), UnorderedElementsAre(key(4), 0, 0));
  EXPECT_EQ(head(1), std::pair(int64_t{key(4)}, int64_t{2}));
  EXPECT_THAT(above(1), Each(0));
  EXPECT_THAT(shards.Top(0, 2), Each(0));  // greedy
  EXPECT_EQ(head(3), std::pair(int64_t{0}, int64_t{0}));
  EXPECT_THAT(above(3), UnorderedElementsAre(key(4), key(2), 0));
  EXPECT_EQ(head(4), std::pair(int64_t{key(-3)}, int64_t{3}));
  EXPECT_THAT(above(4), UnorderedElementsAre(key(-1), key(-2), 0));
}

// The low bits of a key depend on the dtype.
TEST_F(ShardSamplingTest, TopsOfSixteenBitLogitsHoldTheirKeys) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    const Slots slots({{.temperature = 1, .top_k = 2}}, device());
    Shards shards(Logits({{-3, -1.5f, -2, -2, 0}}).to(dtype), {4}, device());
    shards.Sample(slots, /*num_top=*/2);
    EXPECT_THAT(shards.Top(0, 0), ElementsAre(std::bit_cast<int32_t>(OrderKey(-2)), 2,
                                              std::bit_cast<int32_t>(OrderKey(-1.5f))));
  }
}

TEST(ShardSamplingRulesTest, FloatOfKeyUndoesOrderKey) {
  for (const float value : {0.0f, 1.0f, -1.0f, 3e38f, -3e38f, 1e-42f, -1e-42f, kInfinity}) {
    EXPECT_EQ(FloatOfKey(OrderKey(value)), value);
    EXPECT_EQ(FloatOfKey(OrderKey(-value)), -value);
  }
}

TEST(ShardSamplingRulesTest, ShardsServeGreedyTopKAndPlainRows) {
  const auto serves = [](const SamplingParams& params) { return ShardsServe(params, 1000); };
  EXPECT_TRUE(serves({}));
  EXPECT_TRUE(serves({.top_p = 0.5f}));  // greedy, so top_p is ignored
  EXPECT_TRUE(serves({.temperature = 1}));
  EXPECT_TRUE(serves({.temperature = 1, .min_p = 0.1f}));
  EXPECT_TRUE(serves({.temperature = 1, .top_k = kMaxShardTop, .top_p = 0.5f}));
  EXPECT_FALSE(serves({.temperature = 1, .top_k = kMaxShardTop + 1}));
  EXPECT_FALSE(serves({.temperature = 1, .top_p = 0.5f}));
  EXPECT_FALSE(serves({.temperature = 1, .top_k = 1000, .top_p = 0.5f}));  // top_k keeps all
  EXPECT_TRUE(serves({.temperature = 1, .top_k = 1000}));
  EXPECT_EQ(ShardTopOf({}, 1000), 0);
  EXPECT_EQ(ShardTopOf({.temperature = 1}, 1000), 1);
  EXPECT_EQ(ShardTopOf({.temperature = 1, .top_k = 20}, 1000), 20);
  EXPECT_EQ(ShardTopOf({.temperature = 1, .top_k = 1000}, 1000), 1);
}

TEST(ShardSamplingCheckTest, ErrorsNameTheField) {
  const float logits[8] = {};
  const SamplingParams params = {};
  int32_t token = 0, slot = 0, out = 0;
  int64_t index = 0;
  uint32_t top[2] = {};
  uint64_t choice = 0;
  const ShardSamplingArgs good = {.logits = logits,
                                  .logits_stride = 4,
                                  .num_rows = 1,
                                  .shard_size = 4,
                                  .first_token = 4,
                                  .vocab_size = 8,
                                  .world = 2,
                                  .num_top = 1,
                                  .slots = {&params, &token, &index, 1},
                                  .sample_slot = &slot,
                                  .top = top,
                                  .all_tops = top,
                                  .choices = &choice,
                                  .all_choices = &choice,
                                  .out = &out};
  EXPECT_EQ(CheckShardSampling(good), absl::OkStatus());
  const auto refusal = [&](auto change) {
    ShardSamplingArgs args = good;
    change(args);
    const absl::Status status = CheckShardSampling(args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  using Args = ShardSamplingArgs;
  EXPECT_THAT(refusal([](Args& a) { a.dtype = DType::kFp8E4M3; }), HasSubstr("dtype: expected"));
  EXPECT_THAT(refusal([](Args& a) { a.num_rows = -1; }), HasSubstr("num_rows: expected"));
  EXPECT_THAT(refusal([](Args& a) { a.shard_size = 0; }), HasSubstr("shard_size: expected"));
  EXPECT_THAT(refusal([](Args& a) { a.vocab_size = 3; }), HasSubstr("vocab_size: expected"));
  EXPECT_THAT(refusal([](Args& a) { a.first_token = 5; }),
              HasSubstr("first_token: expected 0 to 4"));
  EXPECT_THAT(refusal([](Args& a) { a.logits_stride = 3; }), HasSubstr("logits_stride: expected"));
  EXPECT_THAT(refusal([](Args& a) { a.world = 0; }), HasSubstr("world: expected"));
  EXPECT_THAT(refusal([](Args& a) { a.num_top = 257; }), HasSubstr("num_top: expected 0 to 256"));
  EXPECT_THAT(refusal([](Args& a) { a.logits = nullptr; }), HasSubstr("logits: expected"));
  EXPECT_THAT(refusal([](Args& a) { a.slots.params = nullptr; }), HasSubstr("slots.params: exp"));
  EXPECT_THAT(refusal([](Args& a) { a.sample_slot = nullptr; }), HasSubstr("sample_slot: exp"));
  EXPECT_THAT(refusal([](Args& a) { a.all_tops = nullptr; }), HasSubstr("all_tops: expected"));
  EXPECT_THAT(refusal([](Args& a) { a.all_choices = nullptr; }), HasSubstr("all_choices: exp"));
  EXPECT_THAT(refusal([](Args& a) { a.out = nullptr; }), HasSubstr("out: expected"));
  ShardSamplingArgs greedy = good;
  greedy.num_top = 0;
  greedy.slots.params = nullptr;
  greedy.top = nullptr;
  greedy.all_tops = nullptr;
  EXPECT_EQ(CheckShardSampling(greedy), absl::OkStatus());
}

}  // namespace
}  // namespace reprise
