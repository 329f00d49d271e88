// The device activity and the CUDA calls of a piece of work: every kernel and copy with its times,
// every runtime call by name. From CUPTI, through LibTorch's profiler.
//
//   REPRISE_ASSIGN_OR_RETURN(const DeviceTrace trace, TraceDevice([&] { return steps(); }));
//   EXPECT_EQ(trace.num_calls("cudaStreamSynchronize"), 0);

#ifndef TESTS_BENCHMARKS_DEVICE_DEVICE_TRACE_H_
#define TESTS_BENCHMARKS_DEVICE_DEVICE_TRACE_H_

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace reprise {

struct DeviceEvent {
  enum class Kind { kKernel, kCopy, kSet } kind = Kind::kKernel;
  std::string name;  // of the kernel, demangled; "Memcpy DtoH (...)" and the like for copies
  double start_us = 0;
  double duration_us = 0;
};

struct DeviceTrace {
  std::vector<DeviceEvent> events;           // by start
  std::map<std::string, int> runtime_calls;  // "cudaLaunchKernel" -> how often
  std::map<std::string, double> runtime_us;  // total host time in them

  int num_calls(std::string_view name) const;
  // Calls whose name contains `part`: "Synchronize", "Malloc".
  int num_calls_like(std::string_view part) const;
};

// Runs `work`, and waits for the device before and after it (those waits are not in the trace).
// Errors: the work's; Internal if the profiler does not answer.
absl::StatusOr<DeviceTrace> TraceDevice(absl::FunctionRef<absl::Status()> work);

}  // namespace reprise

#endif  // TESTS_BENCHMARKS_DEVICE_DEVICE_TRACE_H_
