#include "reprise/runner/sampling/sampling.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/philox.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/runner/ops/test_device.h"
#include "reprise/runner/ops/test_tensors.h"

namespace reprise {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// One slot per row, in reverse order, so that a confusion of rows and slots fails the test.
struct Batch {
  at::Tensor logits;  // [num_rows, vocab_size], on the CPU
  int64_t gap = 0;    // elements between rows on the device
  std::vector<SamplingParams> params;
  std::vector<int64_t> sample_index;
  std::vector<int32_t> sample_slot;
  std::vector<int32_t> sample_offset;  // empty: the slots advance
  SamplingFeatures features = SamplingFeatures::kGeneral;

  Batch(at::Tensor logits, std::vector<SamplingParams> row_params)
      : logits(std::move(logits)), params(std::move(row_params)) {
    const int num_rows = static_cast<int>(params.size());
    std::reverse(params.begin(), params.end());
    for (int row = 0; row < num_rows; ++row) {
      sample_index.push_back(100 * row);
      sample_slot.push_back(num_rows - 1 - row);
    }
  }
};

struct Result {
  std::vector<int32_t> tokens;        // [num_rows]
  std::vector<int32_t> last_token;    // [num_slots]
  std::vector<int64_t> sample_index;  // [num_slots]

  friend bool operator==(const Result&, const Result&) = default;
};

template <typename T>
at::Tensor OnDevice(std::vector<T>& values, at::Device device) {
  const int64_t bytes = static_cast<int64_t>(values.size() * sizeof(T));
  return at::from_blob(values.data(), {bytes}, at::TensorOptions().dtype(at::kByte))
      .to(device, at::kByte, /*non_blocking=*/false, /*copy=*/true);
}

template <typename T>
T* Data(const at::Tensor& bytes) {
  return reinterpret_cast<T*>(bytes.mutable_data_ptr<uint8_t>());
}

template <typename T>
std::vector<T> FromDevice(const at::Tensor& bytes) {
  const at::Tensor host = bytes.cpu();
  return std::vector<T>(Data<T>(host), Data<T>(host) + host.numel() / sizeof(T));
}

class SamplingTest : public DeviceTest {
 protected:
  static Result Run(Batch batch) {
    std::vector<int32_t> last_token(batch.params.size(), -7);
    std::vector<int32_t> tokens(batch.sample_slot.size(), -7);
    const at::Tensor params = OnDevice(batch.params, device());
    const at::Tensor index = OnDevice(batch.sample_index, device());
    const at::Tensor last = OnDevice(last_token, device());
    const at::Tensor slots = OnDevice(batch.sample_slot, device());
    const at::Tensor offsets = OnDevice(batch.sample_offset, device());
    const at::Tensor out = OnDevice(tokens, device());
    const absl::Status status =
        Sample({.logits = WithGaps(batch.logits.to(device()), batch.gap),
                .slots = {.params = Data<SamplingParams>(params),
                          .last_token = Data<int32_t>(last),
                          .sample_index = Data<int64_t>(index),
                          .num_slots = static_cast<int>(batch.params.size())},
                .sample_slot = Data<int32_t>(slots),
                .sample_offset = batch.sample_offset.empty() ? nullptr : Data<int32_t>(offsets),
                .out = Data<int32_t>(out),
                .features = batch.features});
    EXPECT_TRUE(status.ok()) << status;
    return {FromDevice<int32_t>(out), FromDevice<int32_t>(last), FromDevice<int64_t>(index)};
  }

  static std::vector<int32_t> Tokens(const Batch& batch) { return Run(batch).tokens; }
};

at::Tensor Logits(const std::vector<std::vector<float>>& rows) {
  at::Tensor logits =
      at::empty({static_cast<int64_t>(rows.size()), static_cast<int64_t>(rows[0].size())});
  float* out = logits.mutable_data_ptr<float>();
  for (const std::vector<float>& row : rows) out = std::copy(row.begin(), row.end(), out);
  return logits;
}

TEST_F(SamplingTest, GreedyTakesTheLargestLogitAndTheLowestOfEquals) {
  const at::Tensor logits = Logits({{1, 3, 2, 3, 0},
                                    {-1, -1, -1, -1, -1},
                                    {-kInfinity, -5, -kInfinity, -4, -9},
                                    {-1, -0.0f, 0.0f, -1, -1},
                                    {-kInfinity, -kInfinity, -kInfinity, -kInfinity, -kInfinity}});
  for (SamplingFeatures features : {SamplingFeatures::kGreedy, SamplingFeatures::kGeneral}) {
    Batch batch(logits, std::vector<SamplingParams>(5));
    batch.features = features;
    EXPECT_THAT(Tokens(batch), ElementsAre(1, 0, 3, 1, kNanRow));
  }
}

// Returns one set of parameters per kind of sampling: greedy, and each step of the general kernel.
std::vector<SamplingParams> EachKind(uint64_t seed) {
  return {{},
          {.temperature = 1, .seed = seed},
          {.temperature = 1, .top_k = 3, .seed = seed},
          {.temperature = 1, .top_p = 0.9f, .seed = seed},
          {.temperature = 1, .min_p = 0.1f, .seed = seed},
          {.temperature = 1, .top_k = 3, .top_p = 0.9f, .min_p = 1e-20f, .seed = seed}};
}

TEST_F(SamplingTest, ANanIsNeverChosen) {
  const at::Tensor logits = Logits({{kNan, 1, kNan, 2}, {kNan, kInfinity, kNan, 0}});
  for (const SamplingParams& params : EachKind(3)) {
    const std::vector<int32_t> tokens =
        Tokens(Batch(logits, std::vector<SamplingParams>(2, params)));
    EXPECT_EQ(tokens[0] % 2, 1);
    EXPECT_EQ(tokens[1], 1);
  }
}

TEST_F(SamplingTest, RowWithoutAChoiceIsReportedAndLeavesAValidToken) {
  const at::Tensor logits = Logits({{kNan, kNan, kNan, kNan},
                                    {-kInfinity, -kInfinity, -kInfinity, -kInfinity},
                                    {kNan, kNan, -kInfinity, kNan},
                                    {kNan, -3e38f, -kInfinity, kNan}});
  for (SamplingFeatures features : {SamplingFeatures::kGreedy, SamplingFeatures::kGeneral}) {
    for (const SamplingParams& params : EachKind(4)) {
      Batch batch(logits, std::vector<SamplingParams>(4, params));
      batch.features = features;
      const Result result = Run(batch);
      EXPECT_THAT(result.tokens, ElementsAre(kNanRow, kNanRow, kNanRow, 1));
      EXPECT_THAT(result.last_token, ElementsAre(1, 0, 0, 0));  // by slot: in reverse order
      EXPECT_THAT(result.sample_index, ElementsAre(1, 101, 201, 301));
    }
  }
}

TEST_F(SamplingTest, AdvancesOnlyTheSlotsThatSample) {
  Batch batch(Logits({{0, 1, 0}, {2, 1, 0}, {0, 0, 5}, {1, 0, 0}}), std::vector<SamplingParams>(4));
  batch.sample_slot = {2, -1, 0, 4};  // slot 4 does not exist
  const Result result = Run(batch);
  EXPECT_THAT(result.tokens, ElementsAre(1, kNotSampled, 2, kNotSampled));
  EXPECT_THAT(result.last_token, ElementsAre(2, -7, 1, -7));
  EXPECT_THAT(result.sample_index, ElementsAre(1, 100, 201, 300));
}

TEST_F(SamplingTest, OffsetsDrawFutureTokensWithoutChangingTheSlot) {
  constexpr int kPlaces = 6;
  constexpr int kVocabSize = 300;
  std::mt19937 random(8);
  const at::Tensor logits = RandomNormal(random, {kPlaces, kVocabSize}, at::kFloat);
  for (const SamplingParams& params : EachKind(6)) {
    // Draws one token after the other, each from one row of logits.
    std::vector<int32_t> in_turn;
    for (int place = 0; place < kPlaces; ++place) {
      Batch one(logits.slice(0, place, place + 1), {params});
      one.sample_index = {1000 + place};
      in_turn.push_back(Tokens(one)[0]);
    }
    Batch all(logits, {params});
    all.sample_index = {1000};
    all.sample_slot.assign(kPlaces, 0);
    all.sample_offset.resize(kPlaces);
    std::iota(all.sample_offset.begin(), all.sample_offset.end(), 0);
    const Result result = Run(all);
    EXPECT_EQ(result.tokens, in_turn);
    EXPECT_THAT(result.last_token, ElementsAre(-7));
    EXPECT_THAT(result.sample_index, ElementsAre(1000));
  }
}

TEST_F(SamplingTest, RowsThatOnlyDrawReportNansAndPadding) {
  Batch batch(Logits({{0, 1, 0}, {kNan, kNan, kNan}, {0, 0, 5}, {1, 0, 0}}),
              std::vector<SamplingParams>(4, {.temperature = 1, .top_k = 1}));
  batch.sample_slot = {2, 2, -1, 4};  // slot 4 does not exist
  batch.sample_offset = {0, 1, 0, 0};
  for (SamplingFeatures features : {SamplingFeatures::kGreedy, SamplingFeatures::kGeneral}) {
    batch.features = features;
    const Result result = Run(batch);
    EXPECT_THAT(result.tokens, ElementsAre(1, kNanRow, kNotSampled, kNotSampled));
    EXPECT_THAT(result.last_token, Each(-7));
    EXPECT_THAT(result.sample_index, ElementsAre(0, 100, 200, 300));
  }
}

TEST_F(SamplingTest, GreedyFeaturesIgnoreTheSlotsTemperature) {
  Batch batch(Logits({{0, 1, 0.9f}}), {{.temperature = 100, .seed = 5}});
  batch.features = SamplingFeatures::kGreedy;
  EXPECT_THAT(Tokens(batch), ElementsAre(1));
}

// Computes the definition of runner/sampling/sampling_params.h in float64, with a sort. `margin` is
// the smallest distance between the best and the second best score, and between a probability and
// the bound of min_p. If it is small, rounding may decide.
struct Expected {
  std::set<int32_t> kept;
  int32_t token = 0;
  double margin = 1e300;
};

Expected ByDefinition(const at::Tensor& row, const SamplingParams& params, int64_t sample_index) {
  const at::Tensor floats = row.to(at::kFloat).contiguous();
  const float* logits = floats.const_data_ptr<float>();
  const int vocab_size = static_cast<int>(row.numel());
  std::vector<int32_t> order(vocab_size);
  for (int v = 0; v < vocab_size; ++v) order[v] = v;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  size_t num_kept = order.size();
  const auto with_ties = [&](size_t n) {
    while (n < order.size() && logits[order[n]] == logits[order[n - 1]]) ++n;
    return n;
  };
  if (params.top_k > 0 && params.top_k < vocab_size) num_kept = with_ties(params.top_k);
  if (params.top_p < 1) {
    double total = 0;
    const auto probability = [&](size_t i) {
      return std::exp((double{logits[order[i]]} - logits[order[0]]) / params.temperature);
    };
    for (size_t i = 0; i < num_kept; ++i) total += probability(i);
    double sum = 0;
    for (size_t i = 0; i < num_kept; ++i) {
      sum += probability(i);
      if (sum >= params.top_p * total) {
        num_kept = std::min(num_kept, with_ties(i + 1));
        break;
      }
    }
  }
  Expected expected;
  double min_p_margin = 1e300;
  double best = -1e300;
  for (size_t i = 0; i < num_kept; ++i) {
    const int32_t v = order[i];
    if (params.min_p > 0) {
      const double of_largest =
          std::exp((double{logits[v]} - logits[order[0]]) / params.temperature);
      min_p_margin = std::min(min_p_margin, std::abs(of_largest / params.min_p - 1));
      if (of_largest < params.min_p) continue;
    }
    expected.kept.insert(v);
    const PhiloxBlock bits =
        Philox4x32({{static_cast<uint32_t>(v / 4), 0, static_cast<uint32_t>(sample_index), 0}},
                   PhiloxKeyOf(params.seed));
    const double u = 1 - (bits.word[v % 4] + 0.5) / 4294967296.0;
    const double score = double{logits[v]} / params.temperature - std::log(-std::log(u));
    if (score > best) {
      expected.margin = score - best;
      expected.token = v;
      best = score;
    } else {
      expected.margin = std::min(expected.margin, best - score);
    }
  }
  expected.margin = std::min(expected.margin, min_p_margin);
  return expected;
}

// Returns one set of parameters per row, of every kind, for logits with a realistic spread.
std::vector<SamplingParams> ManyParams(std::mt19937& random, int num_rows, int vocab_size) {
  std::vector<SamplingParams> params(num_rows);
  for (int row = 0; row < num_rows; ++row) {
    SamplingParams& p = params[row];
    p.temperature = row % 7 == 0 ? 0.0f : 0.3f * (1 + row % 5);
    if (row % 3 == 1) p.top_k = 1 + static_cast<int32_t>(random() % std::min(vocab_size, 300));
    if (row % 4 >= 2) p.top_p = 0.05f + 0.9f * static_cast<float>(random() % 1000) / 1000;
    if (row % 5 >= 3) p.min_p = std::pow(10.0f, -static_cast<float>(random() % 500) / 100);
    p.seed = (static_cast<uint64_t>(random()) << 32) | random();
  }
  return params;
}

TEST_F(SamplingTest, MatchesTheDefinitionForManySeeds) {
  std::mt19937 random(1);
  int num_compared = 0;
  for (int vocab_size : {1, 2, 5, 100, 1003, 4096}) {
    for (at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
      constexpr int kRows = 60;
      const at::Tensor logits = RandomNormal(random, {kRows, vocab_size}, at::kFloat) * 3;
      Batch batch(logits.to(dtype), ManyParams(random, kRows, vocab_size));
      const std::vector<int32_t> tokens = Tokens(batch);
      for (int row = 0; row < kRows; ++row) {
        const int slot = batch.sample_slot[row];
        const SamplingParams& params = batch.params[slot];
        SCOPED_TRACE(testing::Message()
                     << dtype << " vocabulary " << vocab_size << " row " << row << " temperature "
                     << params.temperature << " top_k " << params.top_k << " top_p " << params.top_p
                     << " min_p " << params.min_p);
        if (params.temperature == 0) {
          EXPECT_EQ(tokens[row], batch.logits[row].to(at::kFloat).argmax().item<int64_t>());
          continue;
        }
        const Expected expected = ByDefinition(batch.logits[row], params, batch.sample_index[slot]);
        if (expected.margin < 1e-4) continue;  // rounding may decide
        EXPECT_TRUE(expected.kept.contains(tokens[row]));
        EXPECT_EQ(tokens[row], expected.token);
        ++num_compared;
      }
    }
  }
  EXPECT_GT(num_compared, 800);
}

TEST_F(SamplingTest, HostAndDeviceChooseTheSameTokens) {
  if (device().is_cpu()) GTEST_SKIP() << "compares a GPU with the CPU";
  std::mt19937 random(2);
  for (int vocab_size : {3, 257, 32000, 50257, 128256}) {
    for (at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
      for (int num_rows : {1, 6, 70, 300}) {
        if (num_rows * vocab_size > 10000000) continue;
        SCOPED_TRACE(testing::Message() << dtype << " " << num_rows << " x " << vocab_size);
        const at::Tensor dense = RandomNormal(random, {num_rows, vocab_size}, at::kFloat) * 3;
        Batch batch(dense.to(dtype), ManyParams(random, num_rows, vocab_size));
        batch.gap = static_cast<int64_t>(random() % 3) * 4;  // 4 16-bit elements are half a vector
        for (int row = 0; dtype == at::kHalf && row < num_rows; ++row) {  // only draws
          batch.sample_offset.push_back(static_cast<int32_t>(random() % 17));
          batch.sample_slot[row] = static_cast<int32_t>(random() % num_rows);
        }
        const Result on_device = Run(batch);

        Result on_host = {std::vector<int32_t>(num_rows), std::vector<int32_t>(num_rows, -7),
                          batch.sample_index};
        SampleOnHost(
            {.dtype = *FromScalarType(dtype),
             .logits = batch.logits.const_data_ptr(),
             .logits_stride = batch.logits.stride(0),
             .num_rows = num_rows,
             .vocab_size = vocab_size,
             .slots = {.params = batch.params.data(),
                       .last_token = on_host.last_token.data(),
                       .sample_index = on_host.sample_index.data(),
                       .num_slots = num_rows},
             .sample_slot = batch.sample_slot.data(),
             .sample_offset = batch.sample_offset.empty() ? nullptr : batch.sample_offset.data(),
             .out = on_host.tokens.data(),
             .features = batch.features});
        EXPECT_EQ(on_device, on_host);
      }
    }
  }
}

TEST_F(SamplingTest, TokenDependsOnlyOnSeedAndIndex) {
  std::mt19937 random(3);
  const at::Tensor row = RandomNormal(random, {1, 500}, at::kFloat);
  const SamplingParams params = {.temperature = 1, .seed = 42};
  const int32_t alone = Tokens(Batch(row, {params}))[0];

  const at::Tensor others = RandomNormal(random, {9, 500}, at::kFloat);
  Batch batch(others, std::vector<SamplingParams>(9, {.temperature = 1, .top_p = 0.5f}));
  batch.logits.select(0, 4).copy_(row[0]);
  batch.params[4] = params;
  batch.sample_slot[4] = 4;
  batch.sample_index[4] = 0;
  EXPECT_EQ(Tokens(batch)[4], alone);

  std::set<int32_t> by_index;
  for (int64_t index = 0; index < 20; ++index) {
    Batch later(row, {params});
    later.sample_index = {index};
    by_index.insert(Tokens(later)[0]);
  }
  EXPECT_GT(by_index.size(), 15);
}

// Returns parameters for `num_draws` slots, with seeds 0, 1, ...
std::vector<SamplingParams> WithSeeds(SamplingParams params, int num_draws) {
  std::vector<SamplingParams> all(num_draws, params);
  for (int i = 0; i < num_draws; ++i) all[i].seed = i;
  return all;
}

TEST_F(SamplingTest, DrawsInProportionToTheProbabilities) {
  const std::vector<float> row = {2, 1.5f, 1, 0.5f, 0, -0.5f, -1, -1.5f};
  constexpr int kDraws = 40000;
  constexpr float kTemperature = 0.8f;
  const at::Tensor logits = Logits({row}).expand({kDraws, 8});
  std::vector<int> count(8);
  for (int32_t token : Tokens(Batch(logits, WithSeeds({.temperature = kTemperature}, kDraws)))) {
    ++count[token];
  }
  double total = 0;
  for (float logit : row) total += std::exp(logit / kTemperature);
  double chi_square = 0;
  for (int v = 0; v < 8; ++v) {
    const double expected = kDraws * std::exp(row[v] / kTemperature) / total;
    chi_square += (count[v] - expected) * (count[v] - expected) / expected;
  }
  EXPECT_LT(chi_square, 35);  // 7 degrees of freedom: one in 100,000 is above
}

TEST_F(SamplingTest, DrawsTokensKeptByMinPInProportion) {
  // At temperature 0.8, exp((row[v] - 2) / 0.8) is 1, 0.535, 0.287, 0.153, 0.082, 0.044, ...
  const std::vector<float> row = {2, 1.5f, 1, 0.5f, 0, -0.5f, -1, -1.5f};
  constexpr int kDraws = 40000;
  constexpr int kKept = 4;  // tokens with a relative probability of at least 0.1
  constexpr float kTemperature = 0.8f;
  const at::Tensor logits = Logits({row}).expand({kDraws, 8});
  std::vector<int> count(8);
  for (int32_t token :
       Tokens(Batch(logits, WithSeeds({.temperature = kTemperature, .min_p = 0.1f}, kDraws)))) {
    ++count[token];
  }
  double total = 0;
  for (int v = 0; v < kKept; ++v) total += std::exp(row[v] / kTemperature);
  double chi_square = 0;
  for (int v = 0; v < kKept; ++v) {
    const double expected = kDraws * std::exp(row[v] / kTemperature) / total;
    chi_square += (count[v] - expected) * (count[v] - expected) / expected;
  }
  EXPECT_LT(chi_square, 26);  // 3 degrees of freedom: one in 100,000 is above
  EXPECT_EQ(std::accumulate(count.begin() + kKept, count.end(), 0), 0);
}

TEST_F(SamplingTest, DrawsEachKeptTokenAndNoOtherToken) {
  // Probabilities 0.4, 0.2, 0.2, 0.1, 0.1, not in order.
  const float half = std::log(0.5f);
  const at::Tensor logits = Logits({{2 * half, 0, half, 2 * half, half}}).expand({400, 5});
  const struct {
    SamplingParams params;
    std::set<int32_t> kept;
  } cases[] = {
      {{.temperature = 1}, {0, 1, 2, 3, 4}},
      {{.temperature = 1, .top_k = 1}, {1}},
      {{.temperature = 1, .top_k = 2}, {1, 2, 4}},  // both tokens that equal the second
      {{.temperature = 1, .top_k = 3}, {1, 2, 4}},
      {{.temperature = 1, .top_k = 5}, {0, 1, 2, 3, 4}},
      {{.temperature = 1, .top_k = 99}, {0, 1, 2, 3, 4}},
      {{.temperature = 1, .top_p = 0.39f}, {1}},
      {{.temperature = 1, .top_p = 0.5f}, {1, 2, 4}},
      {{.temperature = 1, .top_p = 0.79f}, {1, 2, 4}},
      {{.temperature = 1, .top_p = 0.81f}, {0, 1, 2, 3, 4}},
      {{.temperature = 1, .top_p = 1e-20f}, {1}},
      // 0.4 is half of the probability of the three tokens that top_k keeps.
      {{.temperature = 1, .top_k = 3, .top_p = 0.49f}, {1}},
      {{.temperature = 1, .top_k = 3, .top_p = 0.51f}, {1, 2, 4}},
      {{.temperature = 1e-30f}, {1}},
      {{.temperature = 1, .min_p = 0.2f}, {0, 1, 2, 3, 4}},
      {{.temperature = 1, .min_p = 0.26f}, {1, 2, 4}},  // 0.1 / 0.4 is less
      {{.temperature = 1, .min_p = 0.49f}, {1, 2, 4}},
      {{.temperature = 1, .min_p = 0.51f}, {1}},
      {{.temperature = 1, .min_p = 1}, {1}},
      {{.temperature = 1, .min_p = 1e-30f}, {0, 1, 2, 3, 4}},
      {{.temperature = 2, .min_p = 0.49f}, {0, 1, 2, 3, 4}},  // scaled logits: sqrt(1/4)
      {{.temperature = 1, .top_k = 1, .min_p = 0.2f}, {1}},
      // top_p also counts tokens that min_p drops; without them, token 1 would already reach half.
      {{.temperature = 1, .top_p = 0.45f, .min_p = 0.26f}, {1, 2, 4}},
      {{.temperature = 1, .top_p = 0.79f, .min_p = 0.51f}, {1}},
      {{.temperature = 1, .top_p = 0.39f, .min_p = 0.2f}, {1}},
  };
  for (const auto& [params, kept] : cases) {
    const std::vector<int32_t> tokens = Tokens(Batch(logits, WithSeeds(params, 400)));
    EXPECT_EQ(std::set<int32_t>(tokens.begin(), tokens.end()), kept)
        << "top_k " << params.top_k << " top_p " << params.top_p << " min_p " << params.min_p;
  }
}

TEST_F(SamplingTest, TopPStopsAtTheTokenThatReachesTheTarget) {
  // The first two candidates have the same mass, 2^40, and different logits. One of them is exactly
  // half of the total.
  constexpr int kRows = 64;
  const at::Tensor logits = Logits({{-50, 0, -1e-14f, -50, -50}}).expand({kRows, 5}).contiguous();
  for (const int top_k : {0, 3}) {
    std::vector<SamplingParams> params;
    for (uint64_t seed = 0; seed < kRows; ++seed) {
      params.push_back({.temperature = 1, .top_k = top_k, .top_p = 0.5f, .seed = seed});
    }
    EXPECT_THAT(Tokens(Batch(logits, params)), Each(1));
    for (SamplingParams& p : params) p.top_p = 0.51f;
    const std::vector<int32_t> tokens = Tokens(Batch(logits, params));
    EXPECT_GT(std::count(tokens.begin(), tokens.end(), 2), kRows / 5);
  }
}

TEST_F(SamplingTest, MaskedTokensAreNeverDrawn) {
  at::Tensor logits = at::full({50, 1000}, -kInfinity);
  logits.narrow(1, 300, 3).fill_(1);
  for (const SamplingParams& params : {SamplingParams{.temperature = 2},
                                       {.temperature = 2, .top_p = 0.99f},
                                       {.temperature = 2, .min_p = 0.01f},
                                       {.temperature = 2, .top_k = 500}}) {
    EXPECT_THAT(Tokens(Batch(logits, WithSeeds(params, 50))), Each(testing::AnyOf(300, 301, 302)));
  }
}

TEST_F(SamplingTest, NamesTheArgumentThatIsWrong) {
  const at::TensorOptions options = at::TensorOptions(device()).dtype(at::kFloat);
  int32_t value = 0;
  SampleArgs args = {.logits = at::empty({2, 8}, options), .sample_slot = &value, .out = nullptr};
  EXPECT_EQ(Sample(args), absl::InvalidArgumentError("out must not be null"));
  args.logits = at::empty({2, 8}, options.dtype(at::kInt));
  EXPECT_FALSE(Sample(args).ok());
  args.logits = at::empty({2, 0}, options);
  EXPECT_FALSE(Sample(args).ok());
  args.logits = at::empty({8, 2}, options).t();
  EXPECT_FALSE(Sample(args).ok());
  args.logits = at::empty({0, 8}, options);
  EXPECT_TRUE(Sample(args).ok());
}

}  // namespace
}  // namespace reprise
