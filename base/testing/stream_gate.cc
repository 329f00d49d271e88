#include "reprise/base/testing/stream_gate.h"

#ifdef REPRISE_WITH_CUDA

#include <cuda_runtime_api.h>
#include <glog/logging.h>

#include <atomic>

#include "absl/synchronization/notification.h"

namespace reprise {

// Shared with the host function, which may still access it after the gate has been destroyed.
struct StreamGate::State {
  std::atomic<bool> is_open = false;
  absl::Notification opened;
};

StreamGate::StreamGate(CUstream_st* stream) : state_(std::make_shared<State>()) {
  auto* const held = new std::shared_ptr<State>(state_);
  const cudaError_t error = cudaLaunchHostFunc(
      stream,
      [](void* argument) {
        auto* const state = static_cast<std::shared_ptr<State>*>(argument);
        (*state)->opened.WaitForNotification();
        delete state;
      },
      held);
  CHECK_EQ(error, cudaSuccess) << cudaGetErrorString(error);
}

void StreamGate::Open() {
  if (!state_->is_open.exchange(true)) state_->opened.Notify();
}

}  // namespace reprise

#endif  // REPRISE_WITH_CUDA
