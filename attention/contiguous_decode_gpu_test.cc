// Decodes a single sequence without a block table on a GPU: one captured graph, replayed while the
// sequence grows and shrinks, and while its keys and their scales change.

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "gtest/gtest.h"
#include "reprise/attention/testing/contiguous_case.h"
#include "reprise/attention/testing/gpu_memory.h"
#include "reprise/attention/tile_schedule/tile_schedule_build.h"
#include "reprise/base/testing/device_array.h"

namespace reprise {
namespace {

class ContiguousDecodeGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "no GPU on this machine";
  }
};

// Small cases, for compute-sanitizer.
class ContiguousDecodeSmallGpuTest : public ContiguousDecodeGpuTest {};

void DecodeInAGraph(ContiguousCaseOptions options) {
  options.device = at::kCUDA;
  SCOPED_TRACE(testing::Message() << "q " << options.q_dtype << ", keys " << options.kv_dtype
                                  << (options.is_hnd ? ", HND, " : ", NHD, ")
                                  << options.max_query_len << " queries");
  ContiguousCase decode(options);
  GpuTileSchedule work(decode.tile_schedule_options());
  decode.Write(1, 1);
  CheckCuda(cudaDeviceSynchronize());
  CapturedWork graph([&](cudaStream_t stream) {
    const c10::cuda::CUDAStreamGuard guard(
        c10::cuda::getStreamFromExternal(stream, c10::cuda::current_device()));
    const absl::StatusOr<BatchSchedule> built =
        LaunchTileSchedule(decode.batch(), WindowOf(decode.layer()), work.schedule(), stream);
    ASSERT_TRUE(built.ok()) << built.status();
    ASSERT_EQ(decode.Run(*built), absl::OkStatus());
  });
  const double limit = options.q_dtype == DType::kFloat32 ? 1e-5 : 2e-2;
  for (const int num_keys : {1, 2, 17, 64, 65, options.capacity, options.capacity / 2, 3}) {
    decode.Write(num_keys, std::min(num_keys, options.max_query_len));
    work.Poison();
    graph.Replay();
    EXPECT_LT(decode.Error(), limit) << num_keys << " keys";
  }
}

TEST_F(ContiguousDecodeGpuTest, ReplaysFollowTheNumberOfKeysInBothLayouts) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const bool is_hnd : {false, true}) {
      for (const int max_query_len : {1, 4}) {
        DecodeInAGraph({.q_dtype = dtype,
                        .kv_dtype = dtype,
                        .is_hnd = is_hnd,
                        .capacity = 700,
                        .max_query_len = max_query_len});
      }
    }
  }
}

TEST_F(ContiguousDecodeGpuTest, ReplaysFollowTheScalesOfFp8Keys) {
  for (const DType q_dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const DType kv_dtype : {DType::kFp8E4M3, DType::kFp8E5M2}) {
      for (const bool is_hnd : {false, true}) {
        for (const int max_query_len : {1, 4}) {
          DecodeInAGraph({.q_dtype = q_dtype,
                          .kv_dtype = kv_dtype,
                          .is_hnd = is_hnd,
                          .capacity = 700,
                          .max_query_len = max_query_len});
        }
      }
    }
  }
}

TEST_F(ContiguousDecodeSmallGpuTest, ReplaysFollowTheScalesOfFp8Keys) {
  for (const int max_query_len : {1, 4}) {
    DecodeInAGraph({.q_dtype = DType::kBFloat16,
                    .kv_dtype = DType::kFp8E4M3,
                    .is_hnd = max_query_len > 1,
                    .capacity = 130,
                    .max_query_len = max_query_len});
  }
}

}  // namespace
}  // namespace reprise
