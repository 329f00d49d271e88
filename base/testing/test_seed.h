// The seed of a random test: random for each run, or the value of the environment variable
// REPRISE_SEED.
//
//   const unsigned seed = TestSeed();
//   SCOPED_TRACE(testing::Message() << "seed " << seed);   // REPRISE_SEED=<seed> repeats the run
//
//   for (const unsigned seed : TestSeeds({1, 2, 3})) ...   // the list, or only REPRISE_SEED
//
// REPRISE_SEED is a decimal number below 2^32; other values are CHECK failures. With Bazel, use
// --test_env=REPRISE_SEED=7.
//
// Thread safety: thread-safe.

#ifndef REPRISE_BASE_TESTING_TEST_SEED_H_
#define REPRISE_BASE_TESTING_TEST_SEED_H_

#include <initializer_list>
#include <vector>

namespace reprise {

unsigned TestSeed();

std::vector<unsigned> TestSeeds(std::initializer_list<unsigned> otherwise);

}  // namespace reprise

#endif  // REPRISE_BASE_TESTING_TEST_SEED_H_
