// Random KV reads for tests: layouts, dtypes, scales, slots and rows of every kind, in hostile
// memory, held against an element-by-element reference.
//
//   EXPECT_EQ(RandomReadDifference(random, at::kCPU), "");

#ifndef CACHE_READ_KV_CASE_H_
#define CACHE_READ_KV_CASE_H_

#include <c10/core/Device.h>

#include <random>
#include <string>

namespace reprise {

// Reads once by slots and once by rows on `device`, from a cache of random bits. Returns what
// differs from the reference, or nothing. Destinations stand in memory of NaN that must stay so
// around them.
std::string RandomReadDifference(std::mt19937& random, at::Device device);

}  // namespace reprise

#endif  // CACHE_READ_KV_CASE_H_
