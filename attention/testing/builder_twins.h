// A builder captured in a CUDA graph, beside its twin on the host: for tests that replay it over
// many batches and hold every array against the host's. Without LibTorch.
//
//   BuilderTwins<ChainBatchArgs> twins(carve, LaunchChainBatch);
//   twins.Poison();
//   DrawChainBatch(random, shape, 0.1, twins.args());
//   ASSERT_EQ(twins.Compare(ChainBatchOnHost), "");
//
// The memory of both is the same before each run: inputs and state as drawn, outputs and the gaps
// between arrays poisoned; and it is compared as a whole. Sizes are those of the capture; what the
// arrays hold may change from run to run.
//
// Thread safety: none; one owner. CUDA's errors are CHECK failures.

#ifndef ATTENTION_TESTING_BUILDER_TWINS_H_
#define ATTENTION_TESTING_BUILDER_TWINS_H_

#include <cuda_runtime_api.h>
#include <glog/logging.h>

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "attention/testing/builder_memory.h"
#include "attention/testing/device_array.h"

namespace reprise {

template <typename Args>
class BuilderTwins {
 public:
  using Launch = std::function<cudaError_t(const Args&, cudaStream_t)>;

  BuilderTwins(typename BuilderMemory<Args>::Carve carve, Launch launch)
      : host_(std::move(carve)),
        device_(host_.num_bytes()),
        device_args_(host_.ArgsAt(device_.data())),
        work_([&](cudaStream_t stream) { CheckCuda(launch(device_args_, stream)); }) {}

  Args& args() { return host_.args(); }
  void Poison() { host_.Poison(); }

  // Runs both. Empty if their memory is the same, else where it is not: "seq_lens[3]".
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

#endif  // ATTENTION_TESTING_BUILDER_TWINS_H_
