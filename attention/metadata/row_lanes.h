// The lanes of base/lanes.h with one more function, for tree builders:
//
//   lanes.PathMasks(n, parents, masks)   the path masks of a tree (attention/metadata/token_tree.h)
//                                        of n <= 64 nodes, each of which follows its parent
//
// The device's lanes are in attention/metadata/row_packing.cuh.

#ifndef ATTENTION_METADATA_ROW_LANES_H_
#define ATTENTION_METADATA_ROW_LANES_H_

#include <cstdint>

#include "attention/metadata/token_tree.h"
#include "base/host_device.h"
#include "base/lanes.h"

namespace reprise {

class SerialTreeLanes : public SerialLanes {
 public:
  REPRISE_HOST_DEVICE void PathMasks(int n, const int32_t* parents, uint64_t* masks) const {
    for (int node = 0; node < n; ++node) {
      masks[node] = NodeBit(node) | (parents[node] >= 0 ? masks[parents[node]] : 0);
    }
  }
};

}  // namespace reprise

#endif  // ATTENTION_METADATA_ROW_LANES_H_
