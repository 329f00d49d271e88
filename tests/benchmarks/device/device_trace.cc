#include "tests/benchmarks/device/device_trace.h"

#include <c10/cuda/CUDAFunctions.h>
#include <stdlib.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"

namespace reprise {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

// The trace is read from the JSON file that the profiler writes: the only documented form that has
// both kernels inside graphs and runtime calls.
absl::StatusOr<DeviceTrace> ParseTrace(const std::string& path) {
  std::ifstream file(path);
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("traceEvents")) {
    return absl::InternalError("the profiler wrote no trace");
  }
  DeviceTrace trace;
  for (const nlohmann::json& event : json["traceEvents"]) {
    const std::string category = event.value("cat", "");
    const std::string name = event.value("name", "");
    if (category == "cuda_runtime" || category == "cuda_driver") {
      ++trace.runtime_calls[name];
      trace.runtime_us[name] += event.value("dur", 0.0);
      continue;
    }
    DeviceEvent::Kind kind;
    if (category == "kernel") {
      kind = DeviceEvent::Kind::kKernel;
    } else if (category == "gpu_memcpy") {
      kind = DeviceEvent::Kind::kCopy;
    } else if (category == "gpu_memset") {
      kind = DeviceEvent::Kind::kSet;
    } else {
      continue;
    }
    trace.events.push_back({.kind = kind,
                            .name = name,
                            .start_us = event.value("ts", 0.0),
                            .duration_us = event.value("dur", 0.0)});
  }
  std::sort(trace.events.begin(), trace.events.end(),
            [](const DeviceEvent& a, const DeviceEvent& b) { return a.start_us < b.start_us; });
  return trace;
}

}  // namespace

int DeviceTrace::num_calls(std::string_view name) const {
  const auto it = runtime_calls.find(std::string(name));
  return it == runtime_calls.end() ? 0 : it->second;
}

int DeviceTrace::num_calls_like(std::string_view part) const {
  int count = 0;
  for (const auto& [name, n] : runtime_calls) {
    if (name.find(part) != std::string::npos) count += n;
  }
  return count;
}

absl::StatusOr<DeviceTrace> TraceDevice(absl::FunctionRef<absl::Status()> work) {
  return CatchTorchOr([&]() -> absl::StatusOr<DeviceTrace> {
    c10::cuda::device_synchronize();
    const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO);
    const std::set<ActivityType> activities = {ActivityType::CPU, ActivityType::CUDA};
    profiler::prepareProfiler(config, activities);
    profiler::enableProfiler(config, activities);
    const absl::Status status = work();
    const std::unique_ptr<profiler::ProfilerResult> result = profiler::disableProfiler();
    REPRISE_RETURN_IF_ERROR(status);

    std::string path = "/tmp/reprise_trace_XXXXXX";
    const int file = mkstemp(path.data());
    if (file < 0) return absl::InternalError("no file for the trace can be made in /tmp");
    close(file);
    result->save(path);
    absl::StatusOr<DeviceTrace> trace = ParseTrace(path);
    unlink(path.c_str());
    return trace;
  });
}

}  // namespace reprise
