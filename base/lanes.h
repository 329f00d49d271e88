// The workers on one row: on the host a loop, on the device the threads of a warp or of a CTA. A
// function of host and device takes the lanes as a template argument, so that what it does to a row
// is written once.
//
//   lanes.ForEach(n, f)           f(i) for i in [0, n), in any order
//   lanes.Any(n, f)               whether f(i) holds for one i of [0, n); all lanes get the answer
//   lanes.First(begin, end, f)    the smallest i of [begin, end) for which f(i) holds, else end; all
//                                 lanes get the answer
//   lanes.Sync()                  what was written before is read after
//
// The device's lanes are defined at the kernels that use them.

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
