#include "tests/gpu/delayed_launches.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"
#include "tests/gpu/delay_kernels.h"

namespace reprise {
namespace {

thread_local DelayedLaunches* captured = nullptr;  // of the scope
thread_local bool is_delay = false;                // the launch is a delay itself

bool IsDependent(const cudaLaunchConfig_t& config) {
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization &&
        config.attrs[i].val.programmaticStreamSerializationAllowed != 0) {
      return true;
    }
  }
  return false;
}

bool IsCapturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
         status == cudaStreamCaptureStatusActive;
}

}  // namespace

DelayedLaunches::DelayedLaunches(int max_launches) : max_launches_(max_launches) {
  void* memory = nullptr;
  status_ =
      CudaStatus(cudaHostAlloc(&memory, max_launches * sizeof(*microseconds_), cudaHostAllocMapped),
                 "cudaHostAlloc");
  microseconds_ = static_cast<uint32_t*>(memory);
  for (int i = 0; status_.ok() && i < max_launches; ++i) microseconds_[i] = 0;
}

DelayedLaunches::~DelayedLaunches() { cudaFreeHost(microseconds_); }

DelayedLaunches::Scope::Scope(DelayedLaunches& delays) { captured = &delays; }
DelayedLaunches::Scope::~Scope() { captured = nullptr; }

void DelayedLaunches::Set(int launch, uint32_t microseconds) {
  CHECK_GE(launch, 0);
  CHECK_LT(launch, count_);
  *const_cast<volatile uint32_t*>(microseconds_ + launch) = microseconds;
}

absl::Status DelayedLaunches::Launch(CUstream_st* stream) {
  if (count_ == max_launches_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("max_launches: expected more than ", max_launches_));
  }
  is_delay = true;
  const absl::Status status = LaunchDelay(microseconds_ + count_, stream);
  is_delay = false;
  if (status.ok()) ++count_;
  return status;
}

}  // namespace reprise

// In place of CUDA's own, for all launches of the program's code: the linker finds this one first.
extern "C" cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                           void** arguments) {
  static const auto cuda =
      reinterpret_cast<decltype(&cudaLaunchKernelExC)>(dlsym(RTLD_NEXT, "cudaLaunchKernelExC"));
  if (cuda == nullptr) return cudaErrorSymbolNotFound;
  if (reprise::captured != nullptr && !reprise::is_delay && reprise::IsDependent(*config) &&
      reprise::IsCapturing(config->stream) && !reprise::captured->Launch(config->stream).ok()) {
    return cudaErrorUnknown;
  }
  return cuda(config, function, arguments);
}
