// Counts the heap allocations of the calling thread, for tests that promise to make none.
//
//   AllocationCounter allocations;
//   set.Decide(shape);
//   EXPECT_EQ(allocations.count(), 0);
//
// A binary that links this replaces the global operator new (by malloc). Direct calls of malloc are
// not counted. Thread safety: an object belongs to the thread that made it.

#ifndef REPRISE_BASE_TESTING_ALLOCATION_COUNTER_H_
#define REPRISE_BASE_TESTING_ALLOCATION_COUNTER_H_

#include <cstdint>

namespace reprise {

class AllocationCounter {
 public:
  AllocationCounter();

  // Allocations of this thread since the object was made.
  int64_t count() const;

 private:
  int64_t start_;
};

}  // namespace reprise

#endif  // REPRISE_BASE_TESTING_ALLOCATION_COUNTER_H_
