// The time of a decode step by part, from a device trace of several steps.

#ifndef TESTS_BENCHMARKS_DEVICE_STEP_TRACE_H_
#define TESTS_BENCHMARKS_DEVICE_STEP_TRACE_H_

#include <array>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/benchmarks/device/device_trace.h"
#include "tests/benchmarks/device/kernel_class.h"

namespace reprise {

// The kernels of a step that do the same, one a layer for most.
struct StepKernel {
  // Of matrix products "qkv", "o", "gate_up", "down" or "head", by their places between the other
  // kernels, or "products"; else the name of the class.
  std::string part;
  std::string name;  // of the longest of them, without arguments
  double count = 0;
  // Their share of the step: from when all kernels before had ended, or from their start if that is
  // later, to their end. With the gaps these are the step, also where kernels overlap.
  double us = 0;
};

// All values are per step, averaged over the steps of the trace.
struct StepParts {
  std::array<double, kNumKernelClasses> class_us = {};  // sums of kernel times
  double step_us = 0;         // from one step's first kernel to the next step's
  double gap_between_us = 0;  // the part of it when nothing runs between steps
  double gap_within_us = 0;   // the part of it when nothing runs within a step
  double kernels = 0;
  double copies = 0;                       // and fills of memory
  std::vector<StepKernel> by_kernel;       // in the order in which a step begins them
  std::map<std::string, double> other_us;  // kernels of no class, by name
  std::map<std::string, double> calls;     // of the CUDA runtime, by name
  std::map<std::string, double> calls_us;  // the host's time in them
};

// A step begins with its refill kernel; the last step of the trace only ends the one before.
// Errors: InvalidArgument if there are not at least 3 steps.
absl::StatusOr<StepParts> SplitSteps(const DeviceTrace& trace);

}  // namespace reprise

#endif  // TESTS_BENCHMARKS_DEVICE_STEP_TRACE_H_
