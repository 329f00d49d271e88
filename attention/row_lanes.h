// Who works on one row of a batch: on the host one after the other, on the device the lanes of a
// warp. A builder writes what it does to a row once, over either.
//
//   lanes.ForEach(n, f)   f(i) for i in [0, n)
//   lanes.Any(n, f)       whether f(i) holds for one of them; every lane gets the answer
//   lanes.Sync()          what was written before is read after
//   lanes.PathMasks(...)  of a tree of n <= 64 nodes, whose parents stand before them
//
// The device's are in attention/row_packing.cuh.

#ifndef ATTENTION_ROW_LANES_H_
#define ATTENTION_ROW_LANES_H_

#include <cstdint>

#include "attention/host_device.h"
#include "attention/token_tree.h"

namespace reprise {

class HostLanes {
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

  REPRISE_HOST_DEVICE void Sync() const {}

  REPRISE_HOST_DEVICE void PathMasks(int n, const int32_t* parents, uint64_t* masks) const {
    for (int node = 0; node < n; ++node) {
      masks[node] = NodeBit(node) | (parents[node] >= 0 ? masks[parents[node]] : 0);
    }
  }
};

}  // namespace reprise

#endif  // ATTENTION_ROW_LANES_H_
