// The workers of one row: a loop on the host, the threads of a warp or a CTA on the device.
// Functions that are shared by host and device take the lanes as a template argument, so the work
// on a row is written only once.
//
//   lanes.ForEach(n, f)           calls f(i) for all i in [0, n), in any order
//   lanes.Any(n, f)               whether f(i) is true for some i in [0, n); same in all lanes
//   lanes.First(begin, end, f)    the smallest i in [begin, end) for which f(i) holds, or end; the
//                                 same in all lanes
//   lanes.Sync()                  makes earlier writes of all lanes visible to all lanes
//
// The device lanes are defined next to the kernels that use them.

#ifndef REPRISE_BASE_LANES_H_
#define REPRISE_BASE_LANES_H_

#include "reprise/base/host_device.h"

namespace reprise {

class SerialLanes {
 public:
  template <typename Body>
  REPRISE_HOST_DEVICE void ForEach(int n, Body body) const {
    for (int i = 0; i < n; ++i) body(i);
  }

  template <typename Predicate>
  REPRISE_HOST_DEVICE bool Any(int n, Predicate predicate) const {
    for (int i = 0; i < n; ++i) {
      if (predicate(i)) return true;
    }
    return false;
  }

  template <typename Predicate>
  REPRISE_HOST_DEVICE int First(int begin, int end, Predicate predicate) const {
    for (; begin < end; ++begin) {
      if (predicate(begin)) return begin;
    }
    return end;
  }

  REPRISE_HOST_DEVICE void Sync() const {}
};

}  // namespace reprise

#endif  // REPRISE_BASE_LANES_H_
