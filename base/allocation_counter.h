// Counts the heap allocations of the calling thread, for tests that promise to make none.
//
//   AllocationCounter allocations;
//   set.Decide(shape);
//   EXPECT_EQ(allocations.count(), 0);
//
// A binary that links it has its global operator new replaced (by malloc); malloc called directly
// is not seen. Thread safety: an object belongs to the thread that made it.

#ifndef BASE_ALLOCATION_COUNTER_H_
#define BASE_ALLOCATION_COUNTER_H_

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

#endif  // BASE_ALLOCATION_COUNTER_H_
