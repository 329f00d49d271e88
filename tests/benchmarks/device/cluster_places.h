// How many clusters of CTAs run on the card at the same time, by CUDA's answer: for
// TileScheduleCosts::clusters_of of attention/device_profile.h. Thread safety: yes. Torch-free.

#ifndef TESTS_BENCHMARKS_DEVICE_CLUSTER_PLACES_H_
#define TESTS_BENCHMARKS_DEVICE_CLUSTER_PLACES_H_

#include <cuda_runtime_api.h>

namespace reprise {

// Of CTAs like those of a decode, of which two fit on a multiprocessor. `cluster`: CTAs, 1 to 8. On
// error, as on cards without clusters, `count` is 0.
cudaError_t CountClustersAtOnce(int cluster, int& count);

}  // namespace reprise

#endif  // TESTS_BENCHMARKS_DEVICE_CLUSTER_PLACES_H_
