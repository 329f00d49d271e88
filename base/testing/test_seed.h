// The seed of a random test: fresh in each run, or what the environment variable REPRISE_SEED says.
//
//   const unsigned seed = TestSeed();
//   SCOPED_TRACE(testing::Message() << "seed " << seed);   // REPRISE_SEED=<that> repeats the run
//
//   for (const unsigned seed : TestSeeds({1, 2, 3})) ...   // a fixed list, or that seed alone
//
// REPRISE_SEED is a decimal number below 2^32; CHECK-fails if it is set to anything else. Under
// Bazel: --test_env=REPRISE_SEED=7.
//
// Thread safety: safe.

#ifndef REPRISE_BASE_TESTING_TEST_SEED_H_
#define REPRISE_BASE_TESTING_TEST_SEED_H_

#include <initializer_list>
#include <vector>

namespace reprise {

unsigned TestSeed();

std::vector<unsigned> TestSeeds(std::initializer_list<unsigned> otherwise);

}  // namespace reprise

#endif  // REPRISE_BASE_TESTING_TEST_SEED_H_
