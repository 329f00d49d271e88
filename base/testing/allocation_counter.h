// Counts heap allocations of the calling thread, for tests of code that must not allocate.
//
//   AllocationCounter allocations;
//   set.Decide(shape);
//   EXPECT_EQ(allocations.count(), 0);
//
// A binary that links this target replaces the global operator new with a version based on malloc.
// Direct calls of malloc are not counted. Thread safety: use an object only on the thread that
// created it.

#ifndef REPRISE_BASE_TESTING_ALLOCATION_COUNTER_H_
#define REPRISE_BASE_TESTING_ALLOCATION_COUNTER_H_

#include <cstdint>

namespace reprise {

class AllocationCounter {
 public:
  AllocationCounter();

  // Allocations of this thread since the construction of this object.
  int64_t count() const;

 private:
  int64_t start_;
};

}  // namespace reprise

#endif  // REPRISE_BASE_TESTING_ALLOCATION_COUNTER_H_
