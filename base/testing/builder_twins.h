// A builder captured in a CUDA graph, and its host form. Tests replay the graph over many batches
// and compare every array with the result of the host form. Does not use LibTorch.
//
//   BuilderTwins<BatchGatherArgs> twins(carve, LaunchBatchGather);
//   twins.Poison();
//   DrawChainBatch(random, shape, 0.1, twins.args());
//   ASSERT_EQ(twins.Compare(BatchGatherOnHost), "");
//
// Before each run, both have the same memory: inputs and state as drawn, outputs and the gaps
// between arrays poisoned. The comparison covers all the memory. Sizes are fixed at the capture;
// the contents of the arrays may change between runs.
//
// Thread safety: not thread-safe; one owner. CUDA errors are CHECK failures.

#ifndef REPRISE_BASE_TESTING_BUILDER_TWINS_H_
#define REPRISE_BASE_TESTING_BUILDER_TWINS_H_

#include <cuda_runtime_api.h>
#include <glog/logging.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "reprise/base/testing/builder_memory.h"
#include "reprise/base/testing/device_array.h"

namespace reprise {

template <typename Args>
class BuilderTwins {
 public:
  // `launch` takes the arguments and a stream, and returns a Status or a cudaError_t.
  template <typename Launch>
  BuilderTwins(typename BuilderMemory<Args>::Carve carve, Launch launch)
      : host_(std::move(carve)),
        device_(host_.num_bytes()),
        device_args_(host_.ArgsAt(device_.data())),
        work_([&](cudaStream_t stream) { CheckLaunch(launch(device_args_, stream)); }) {}

  Args& args() { return host_.args(); }
  void Poison() { host_.Poison(); }

  // Runs both forms. Returns the first difference of their memory, such as "seq_lens[3]", or an
  // empty string if they are equal.
  template <typename OnHost>
  std::string Compare(OnHost on_host) {
    const auto num_bytes = static_cast<size_t>(host_.num_bytes());
    device_.Upload({host_.base(), num_bytes});
    work_.Replay();
    on_host(host_.args());
    const std::vector<std::byte> got = device_.Download();
    return host_.FirstDifference(got.data());
  }

 private:
  BuilderMemory<Args> host_;
  DeviceArray<std::byte> device_;
  Args device_args_;
  CapturedWork work_;
};

}  // namespace reprise

#endif  // REPRISE_BASE_TESTING_BUILDER_TWINS_H_
