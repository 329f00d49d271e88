#include "reprise/attention/contiguous_decode.h"

#include <algorithm>

#include "gtest/gtest.h"
#include "reprise/attention/testing/contiguous_case.h"

namespace reprise {
namespace {

// Repeats one call while the memory's contents change, as a graph would on the CPU.
void CheckCase(const ContiguousCaseOptions& options) {
  SCOPED_TRACE(testing::Message() << "q " << options.q_dtype << ", keys " << options.kv_dtype
                                  << (options.is_hnd ? ", HND, " : ", NHD, ")
                                  << options.max_query_len << " queries");
  ContiguousCase decode(options);
  const double limit = options.q_dtype == DType::kFloat32 ? 1e-5 : 2e-2;
  for (const int num_keys : {1, 2, 17, options.capacity, 3}) {
    decode.Write(num_keys, std::min(num_keys, options.max_query_len));
    ASSERT_EQ(decode.Run({}), absl::OkStatus());
    EXPECT_LT(decode.Error(), limit) << num_keys << " keys";
  }
}

TEST(ContiguousDecodeTest, FollowsTheNumberOfKeysInBothLayouts) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const bool is_hnd : {false, true}) {
      for (const int max_query_len : {1, 4}) {
        CheckCase({.q_dtype = dtype,
                   .kv_dtype = dtype,
                   .is_hnd = is_hnd,
                   .max_query_len = max_query_len});
      }
    }
  }
}

TEST(ContiguousDecodeTest, Fp8KeysFollowScalesInMemory) {
  for (const DType q_dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const DType kv_dtype : {DType::kFp8E4M3, DType::kFp8E5M2}) {
      for (const bool is_hnd : {false, true}) {
        for (const int max_query_len : {1, 4}) {
          CheckCase({.q_dtype = q_dtype,
                     .kv_dtype = kv_dtype,
                     .is_hnd = is_hnd,
                     .max_query_len = max_query_len});
        }
      }
    }
  }
}

}  // namespace
}  // namespace reprise
