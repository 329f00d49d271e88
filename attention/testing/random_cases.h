// Tests of an operation over random cases: draws shapes, and compares the operation with its
// definition.
//
//   ForEachRandomShape(3000, DrawTreeShape, [](Random& random, const TreeShape& shape) {
//     DefinitionTwins<TreeTokensArgs> twins(
//         [&](ArrayCarver& carver) { return CarveTreeTokens(shape, carver); });
//     DrawTreeTokens(random, shape, /*hostility=*/0, twins.args());
//     ASSERT_EQ(twins.Compare(TreeTokensOnHost, TreeTokensByDefinition), "");
//   });
//
// Thread safety: not thread-safe; one owner.

#ifndef REPRISE_ATTENTION_TESTING_RANDOM_CASES_H_
#define REPRISE_ATTENTION_TESTING_RANDOM_CASES_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "gtest/gtest.h"
#include "reprise/attention/testing/random.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/base/testing/builder_memory.h"

namespace reprise {

// Calls test(random, shape) for the seeds 0 to num_seeds - 1, with shape = draw(random). Stops
// after the first shape with a failed expectation, and prints its seed and the shape.
template <typename Draw, typename Test>
void ForEachRandomShape(uint64_t num_seeds, const Draw& draw, const Test& test) {
  for (uint64_t seed = 0; seed < num_seeds; ++seed) {
    Random random(seed);
    const auto shape = draw(random);
    test(random, shape);
    if (!testing::Test::HasFailure()) continue;
    ADD_FAILURE() << "seed " << seed << ": " << shape;
    return;
  }
}

// The arrays of an operation, and a copy for its definition.
template <typename Args>
class DefinitionTwins {
 public:
  explicit DefinitionTwins(const typename BuilderMemory<Args>::Carve& carve)
      : memory_(carve), expected_(carve) {}

  Args& args() { return memory_.args(); }

  // Copies the arrays, runs the operation over args() and the definition over the copy. Returns the
  // first difference, such as "seq_lens[3]", or an empty string if they are equal. Expects that the
  // operation does not allocate.
  template <typename Operation, typename Definition>
  std::string Compare(const Operation& operation, const Definition& definition) {
    std::copy_n(memory_.base(), memory_.num_bytes(), expected_.base());
    const AllocationCounter allocations;
    operation(memory_.args());
    EXPECT_EQ(allocations.count(), 0);
    definition(expected_.args());
    return memory_.FirstDifference(expected_.base());
  }

 private:
  BuilderMemory<Args> memory_;
  BuilderMemory<Args> expected_;
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_RANDOM_CASES_H_
