// Random KV reads for tests: layouts, dtypes, scales, slots and rows of every kind, surrounded by
// NaN memory, compared with an element-by-element reference.
//
//   EXPECT_EQ(RandomReadDifference(random, at::kCPU), "");

#ifndef REPRISE_CACHE_TESTING_READ_KV_CASE_H_
#define REPRISE_CACHE_TESTING_READ_KV_CASE_H_

#include <c10/core/Device.h>

#include <random>
#include <string>

namespace reprise {

// Reads once by slots and once by rows on `device`, from a cache of random values. Returns the
// difference from the reference, or "". The memory around destinations is NaN, and must stay NaN.
std::string RandomReadDifference(std::mt19937& random, at::Device device);

}  // namespace reprise

#endif  // REPRISE_CACHE_TESTING_READ_KV_CASE_H_
