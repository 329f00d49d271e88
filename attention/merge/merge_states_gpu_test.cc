// Merged results of the device match the host form within a few float32 roundings and one rounding
// of the dtype of out. Converted lse are bitwise identical.

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "reprise/attention/merge/merge_states.h"
#include "reprise/attention/testing/random.h"
#include "reprise/base/element_access.h"
#include "reprise/base/testing/device_array.h"

namespace reprise {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

class MergeStatesGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasCudaDevice()) GTEST_SKIP() << "no GPU on this machine";
  }
};

class MergeStatesSmallGpuTest : public MergeStatesGpuTest {};

// Copies of host arrays on the device.
class Copies {
 public:
  template <typename T>
  T* Of(const std::vector<T>& host) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(host.data());
    arrays_.push_back(std::make_unique<DeviceArray<uint8_t>>(host.size() * sizeof(T)));
    arrays_.back()->Upload({bytes, host.size() * sizeof(T)});
    return reinterpret_cast<T*>(arrays_.back()->data());
  }
  template <typename T>
  static std::vector<T> Back(const T* device, size_t count) {
    std::vector<T> host(count);
    CheckCuda(cudaMemcpy(host.data(), device, count * sizeof(T), cudaMemcpyDefault));
    return host;
  }

 private:
  std::vector<std::unique_ptr<DeviceArray<uint8_t>>> arrays_;
};

void MergeOnBoth(uint64_t seed) {
  Random random(seed);
  const int num_parts = random.Pick({1, 2, 3, 33, 64});
  const int num_tokens = random.Pick({1, 5, 40});
  const int num_heads = random.Pick({1, 3, 8});
  const int head_dim = random.Pick({1, 31, 64, 128, 200});
  const DType part_dtype = random.Pick({DType::kFloat32, DType::kFloat16, DType::kBFloat16});
  const DType out_dtype = random.Pick({DType::kFloat32, DType::kFloat16, DType::kBFloat16});
  const int gap = random.Pick({0, 4, random.Int(0, 3)});
  const int64_t head_stride = head_dim + gap;
  const int64_t token_stride = num_heads * head_stride + gap;
  SCOPED_TRACE(testing::Message() << "seed " << seed << ", parts " << num_parts << ", tokens "
                                  << num_tokens << ", heads " << num_heads << " of " << head_dim
                                  << ", " << part_dtype << " into " << out_dtype);
  const int64_t size = num_tokens * token_stride;
  MergeStatesArgs host;
  host.num_parts = num_parts;
  host.num_tokens = num_tokens;
  host.num_heads = num_heads;
  host.head_dim = head_dim;
  host.part = {nullptr, part_dtype, token_stride, head_stride};
  host.part_lse_view =
      random.OneIn(2) ? TokensByHeads(nullptr, num_heads) : HeadsByTokens(nullptr, num_tokens);
  MergeStatesArgs device = host;
  Copies copies;
  std::vector<std::vector<uint8_t>> part_out(num_parts);
  std::vector<std::vector<float>> part_lse(num_parts);
  for (int part = 0; part < num_parts; ++part) {
    part_out[part].assign(size * SizeOf(part_dtype), 0xff);  // NaN
    part_lse[part].assign(num_tokens * num_heads, -kInf);
    for (int t = 0; t < num_tokens; ++t) {
      for (int h = 0; h < num_heads; ++h) {
        if (random.OneIn(3)) continue;  // a part without keys; its out stays NaN
        part_lse[part][t * host.part_lse_view.token_stride + h * host.part_lse_view.head_stride] =
            static_cast<float>(random.Real(-20, 20));
        for (int d = 0; d < head_dim; ++d) {
          StoreElement(part_out[part].data(), part_dtype, host.part.Offset(t, h) + d,
                       random.NearNormal());
        }
      }
    }
    host.part_out[part] = part_out[part].data();
    host.part_lse[part] = part_lse[part].data();
    device.part_out[part] = copies.Of(part_out[part]);
    device.part_lse[part] = copies.Of(part_lse[part]);
  }
  std::vector<float> sinks(num_heads);
  for (float& sink : sinks) sink = static_cast<float>(random.Real(-20, 20));
  if (random.OneIn(2)) {
    host.sinks = sinks.data();
    device.sinks = copies.Of(sinks);
  }
  std::vector<uint8_t> out(size * SizeOf(out_dtype), 0x7b);
  std::vector<float> lse(num_tokens * num_heads, kNan);
  host.out = device.out = {nullptr, out_dtype, token_stride, head_stride};
  host.out.data = out.data();
  uint8_t* device_out = copies.Of(out);
  device.out.data = device_out;
  host.lse = TokensByHeads(lse.data(), num_heads);
  device.lse = TokensByHeads(copies.Of(lse), num_heads);

  CapturedWork work([&](cudaStream_t stream) { CheckLaunch(LaunchMergeStates(device, stream)); });
  work.Replay();
  ASSERT_TRUE(MergeStates(host).ok());
  const std::vector<uint8_t> got = Copies::Back(device_out, out.size());
  const std::vector<float> got_lse = Copies::Back(device.lse.data, lse.size());
  // The tolerance covers float32 sums in a different order, and one rounding of out_dtype.
  const double step = out_dtype == DType::kFloat32   ? 3e-6
                      : out_dtype == DType::kFloat16 ? 2e-3
                                                     : 2e-2;
  for (int64_t i = 0; i < size; ++i) {
    const double expected = LoadElement<double>(out.data(), out_dtype, i);
    const double value = LoadElement<double>(got.data(), out_dtype, i);
    const int64_t in_token = i % token_stride;
    const bool is_gap = in_token / head_stride >= num_heads || in_token % head_stride >= head_dim;
    if (is_gap) {
      ASSERT_EQ(expected, value) << "the gap at " << i;
    } else {
      ASSERT_NEAR(expected, value, step) << i;
    }
  }
  for (size_t i = 0; i < lse.size(); ++i) {
    if (lse[i] == -kInf) {
      ASSERT_EQ(got_lse[i], -kInf) << i;
    } else {
      ASSERT_NEAR(got_lse[i], lse[i], 4e-6) << i;
    }
  }
}

TEST_F(MergeStatesGpuTest, MergesMatchTheHost) {
  for (uint64_t seed = 0; seed < 150 && !HasFatalFailure(); ++seed) MergeOnBoth(seed);
}

TEST_F(MergeStatesSmallGpuTest, MergesMatchTheHost) {
  for (uint64_t seed = 0; seed < 10 && !HasFatalFailure(); ++seed) MergeOnBoth(seed);
}

TEST_F(MergeStatesGpuTest, ReplaysConvertLseBetweenBasesAndOrders) {
  constexpr int kTokens = 37;
  constexpr int kHeads = 11;
  Random random(3);
  std::vector<float> from(kTokens * kHeads);
  std::vector<float> to(from.size(), kNan);
  ConvertLseArgs host = {.from = TokensByHeads(from.data(), kHeads),
                         .from_base = LogBase::kTwo,
                         .to = HeadsByTokens(to.data(), kTokens),
                         .num_tokens = kTokens,
                         .num_heads = kHeads};
  DeviceArray<float> device_from(from.size()), device_to(to.size());
  ConvertLseArgs device = host;
  device.from.data = device_from.data();
  device.to.data = device_to.data();
  CapturedWork work([&](cudaStream_t stream) { CheckLaunch(LaunchConvertLse(device, stream)); });
  for (int replay = 0; replay < 3; ++replay) {
    for (float& value : from) {
      value = random.OneIn(7) ? -kInf : static_cast<float>(random.Real(-30, 30));
    }
    device_from.Upload(from);
    device_to.Poison();
    work.Replay();
    ASSERT_EQ(ConvertLse(host), absl::OkStatus());
    EXPECT_EQ(device_to.Download(), to);  // a single multiplication: bitwise identical
  }
}

}  // namespace
}  // namespace reprise
