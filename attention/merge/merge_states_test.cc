#include "reprise/attention/merge/merge_states.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/testing/random.h"
#include "reprise/base/element_access.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// Two parts of one token and one head with 2 dims.
class TwoParts : public ::testing::Test {
 protected:
  TwoParts() {
    args.part_out[0] = out_0;
    args.part_out[1] = out_1;
    args.part_lse[0] = &lse_0;
    args.part_lse[1] = &lse_1;
    args.num_parts = 2;
    args.part = {.token_stride = 2, .head_stride = 2};
    args.part_lse_view = {.token_stride = 1, .head_stride = 1};
    args.out = {.data = out, .token_stride = 2, .head_stride = 2};
    args.lse = {.data = &lse, .token_stride = 1, .head_stride = 1};
    args.num_tokens = 1;
    args.num_heads = 1;
    args.head_dim = 2;
  }

  float out_0[2] = {1, 2};
  float out_1[2] = {5, 6};
  float lse_0 = std::log(3.0f);  // weights 3 : 1
  float lse_1 = 0;
  float out[2] = {kNan, kNan};
  float lse = kNan;
  MergeStatesArgs args;
};

TEST_F(TwoParts, WeightsPartsByTheExponentialOfTheirLse) {
  ASSERT_TRUE(MergeStates(args).ok());
  EXPECT_FLOAT_EQ(out[0], 2);
  EXPECT_FLOAT_EQ(out[1], 3);
  EXPECT_FLOAT_EQ(lse, std::log(4.0f));
}

TEST_F(TwoParts, IgnoresPartsWithoutKeys) {
  lse_1 = -kInf;
  out_1[0] = out_1[1] = kNan;
  ASSERT_TRUE(MergeStates(args).ok());
  EXPECT_FLOAT_EQ(out[0], 1);
  EXPECT_FLOAT_EQ(out[1], 2);
  EXPECT_FLOAT_EQ(lse, std::log(3.0f));
}

TEST_F(TwoParts, OutIsZeroWithoutKeysWithOrWithoutSinks) {
  const float sink = 3;
  for (const float* sinks : {static_cast<const float*>(nullptr), &sink}) {
    args.sinks = sinks;
    lse_0 = lse_1 = -kInf;
    out_0[0] = kNan;
    out[0] = out[1] = kNan;
    ASSERT_TRUE(MergeStates(args).ok());
    EXPECT_EQ(out[0], 0);
    EXPECT_EQ(out[1], 0);
    EXPECT_EQ(lse, -kInf);
  }
}

TEST_F(TwoParts, ASinkCountsOnce) {
  const float sink = std::log(4.0f);
  args.sinks = &sink;
  ASSERT_TRUE(MergeStates(args).ok());
  EXPECT_FLOAT_EQ(out[0], 1);  // (3 * 1 + 1 * 5) / (4 + 4)
  EXPECT_FLOAT_EQ(lse, std::log(8.0f));
}

TEST_F(TwoParts, HugeLogitsDoNotOverflow) {
  lse_0 = 30000;
  lse_1 = 30000;
  ASSERT_TRUE(MergeStates(args).ok());
  EXPECT_FLOAT_EQ(out[0], 3);
  EXPECT_FLOAT_EQ(lse, 30000 + std::log(2.0f));
  const float sink = 1e30f;
  args.sinks = &sink;
  ASSERT_TRUE(MergeStates(args).ok());
  EXPECT_EQ(out[0], 0);
  EXPECT_EQ(lse, 1e30f);
}

TEST_F(TwoParts, SupportsWritingIntoAPart) {
  args.out.data = out_0;
  args.lse.data = &lse_0;
  ASSERT_TRUE(MergeStates(args).ok());
  EXPECT_FLOAT_EQ(out_0[1], 3);
  EXPECT_FLOAT_EQ(lse_0, std::log(4.0f));
}

TEST_F(TwoParts, RejectsInvalidArgumentsByNameInBothForms) {
  const auto refusal = [&] {
    const absl::Status status = MergeStates(args);
#ifdef REPRISE_WITH_CUDA
    EXPECT_EQ(LaunchMergeStates(args, nullptr), status);
#endif
    return std::string(status.message());
  };
  args.num_parts = 0;
  EXPECT_EQ(refusal(), "num_parts: expected 1 to 64, got 0");
  args.num_parts = 3;
  EXPECT_EQ(refusal(), "part_out[2], part_lse[2]: expected addresses, got none");
  args.num_parts = 2;
  args.out.dtype = DType::kFp8E4M3;
  EXPECT_EQ(MergeStates(args).code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(refusal(), HasSubstr("out.dtype: expected float32, float16 or bfloat16, got float8"));
  args.out.dtype = DType::kFloat32;
  args.out.data = nullptr;
  EXPECT_EQ(refusal(), "out: expected an address, got none");
  args.num_tokens = 0;
  EXPECT_EQ(refusal(), "");
}

// Softmax over all keys in float64, compared with merged parts; any strides and dtypes.
TEST(MergeStatesTest, MatchesTheSoftmaxOverAllKeys) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const int num_parts = random.Pick({1, 2, 3, 4, 40});
    const int num_tokens = random.Int(1, 4);
    const int num_heads = random.Int(1, 3);
    const int head_dim = random.Pick({1, 8, 33});
    const DType dtype = random.Pick({DType::kFloat32, DType::kFloat16, DType::kBFloat16});
    const int64_t head_stride = head_dim + random.Int(0, 2);
    const int64_t token_stride = num_heads * head_stride + random.Int(0, 2);
    const bool heads_first = random.OneIn(2);
    std::vector<std::vector<char>> part_out(num_parts);
    std::vector<std::vector<float>> part_lse(num_parts);
    std::vector<float> sinks(num_heads), out(num_tokens * token_stride, kNan);
    std::vector<float> lse(num_tokens * num_heads, kNan);
    MergeStatesArgs args;
    args.num_parts = num_parts;
    args.part = {nullptr, dtype, token_stride, head_stride};
    args.out = {out.data(), DType::kFloat32, token_stride, head_stride};
    args.lse = TokensByHeads(lse.data(), num_heads);
    args.num_tokens = num_tokens;
    args.num_heads = num_heads;
    args.head_dim = head_dim;
    const bool has_sinks = random.OneIn(2);
    for (float& sink : sinks) sink = static_cast<float>(random.Real(-3, 3));
    if (has_sinks) args.sinks = sinks.data();
    for (int part = 0; part < num_parts; ++part) {
      part_out[part].resize(num_tokens * token_stride * SizeOf(dtype));
      part_lse[part].assign(num_tokens * num_heads, kNan);
      args.part_out[part] = part_out[part].data();
      args.part_lse[part] = part_lse[part].data();
    }
    args.part_lse_view =
        heads_first ? HeadsByTokens(nullptr, num_tokens) : TokensByHeads(nullptr, num_heads);
    for (int t = 0; t < num_tokens; ++t) {
      for (int h = 0; h < num_heads; ++h) {
        double total = has_sinks ? std::exp(static_cast<double>(sinks[h])) : 0;
        std::vector<double> sum(head_dim, 0.0);
        bool has_keys = false;
        for (int part = 0; part < num_parts; ++part) {
          double part_total = 0;
          std::vector<double> part_sum(head_dim, 0.0);
          const int num_keys = random.OneIn(3) ? 0 : random.Int(1, 5);
          for (int key = 0; key < num_keys; ++key) {
            const double weight = std::exp(random.Real(-4, 4));
            part_total += weight;
            for (double& value : part_sum) value += weight * random.Real(-1, 1);
          }
          const int64_t at = args.part.Offset(t, h);
          for (int d = 0; d < head_dim; ++d) {
            const double value = num_keys == 0 ? kNan : part_sum[d] / part_total;
            StoreElement(part_out[part].data(), dtype, at + d, value);
            const double stored = LoadElement<double>(part_out[part].data(), dtype, at + d);
            if (num_keys > 0) sum[d] += part_total * stored;
          }
          part_lse[part][t * args.part_lse_view.token_stride + h * args.part_lse_view.head_stride] =
              static_cast<float>(std::log(part_total));
          total += part_total;
          has_keys = has_keys || num_keys > 0;
        }
        ASSERT_TRUE(MergeStates(args).ok());
        const float got_lse = lse[t * num_heads + h];
        for (int d = 0; d < head_dim; ++d) {
          const float got = out[args.out.Offset(t, h) + d];
          ASSERT_NEAR(got, has_keys ? sum[d] / total : 0, 4e-6);
        }
        if (has_keys) {
          ASSERT_NEAR(got_lse, std::log(total), 4e-6);
        } else {
          ASSERT_EQ(got_lse, -kInf);
        }
      }
    }
  }
}

TEST(ConvertLseTest, BasesAndOrdersRoundTrip) {
  // 2 tokens, 3 heads: from base 2, token-major, to natural, head-major.
  std::vector<float> theirs = {0, 1, 2, -kInf, 4, 5};
  std::vector<float> ours(6, kNan), back(6, kNan);
  ASSERT_TRUE(ConvertLse({.from = TokensByHeads(theirs.data(), 3),
                          .from_base = LogBase::kTwo,
                          .to = HeadsByTokens(ours.data(), 2),
                          .num_tokens = 2,
                          .num_heads = 3})
                  .ok());
  EXPECT_FLOAT_EQ(ours[2], std::log(2.0f));   // token 0, head 1: log2 is 1
  EXPECT_FLOAT_EQ(ours[3], std::log(16.0f));  // token 1, head 1
  EXPECT_EQ(ours[1], -kInf);                  // token 1, head 0
  ASSERT_TRUE(ConvertLse({.from = HeadsByTokens(ours.data(), 2),
                          .to = TokensByHeads(back.data(), 3),
                          .to_base = LogBase::kTwo,
                          .num_tokens = 2,
                          .num_heads = 3})
                  .ok());
  for (int i = 0; i < 6; ++i) EXPECT_FLOAT_EQ(back[i], theirs[i]) << i;
}

TEST(ConvertLseTest, RejectsInvalidArgumentsByNameInBothForms) {
  const auto refusal = [](const ConvertLseArgs& args) {
    const absl::Status status = ConvertLse(args);
#ifdef REPRISE_WITH_CUDA
    EXPECT_EQ(LaunchConvertLse(args, nullptr), status);
#endif
    return std::string(status.message());
  };
  float lse = 0;
  EXPECT_EQ(refusal({.num_tokens = -1}), "num_tokens: expected at least 0, got -1");
  EXPECT_EQ(refusal({.num_heads = -1}), "num_heads: expected at least 0, got -1");
  EXPECT_EQ(refusal({.to = {&lse, 1, 1}, .num_tokens = 1, .num_heads = 1}),
            "from: expected an array, got none");
  EXPECT_EQ(refusal({.from = {&lse, 1, 1}, .num_tokens = 1, .num_heads = 1}),
            "to: expected an array, got none");
  EXPECT_EQ(refusal({.num_tokens = 0, .num_heads = 1}), "");
}

}  // namespace
}  // namespace reprise
