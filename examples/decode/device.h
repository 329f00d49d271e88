// Chooses the device of a run, and the number of threads on the CPU.
//
//   REPRISE_ASSIGN_OR_RETURN(c10::Device device, ChooseDevice(DeviceChoice::kAuto, NumGpus()));
//   at::set_num_threads(SensibleCpuThreads(weight_bytes, at::get_num_threads()));
//
// A decode step reads all weights once, product by product, and its threads synchronise after each.
// If a product takes a few microseconds, synchronising costs more than sharing gains, and far more
// on a busy machine.
//
// Thread safety: pure functions.

#ifndef EXAMPLES_DECODE_DEVICE_H_
#define EXAMPLES_DECODE_DEVICE_H_

#include <c10/core/Device.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "examples/decode/options.h"

namespace reprise {

// The GPU `index`, of one rank of several on a machine. kAuto: if there is any GPU. Errors:
// FailedPrecondition if it is requested but not available, or others are.
absl::StatusOr<c10::Device> ChooseDevice(DeviceChoice choice, int num_gpus, int index = 0);

// At least 1 and at most `num_available`: one for every 16 MiB of weights, which a thread reads in
// about a millisecond.
int SensibleCpuThreads(int64_t weight_bytes, int num_available);

}  // namespace reprise

#endif  // EXAMPLES_DECODE_DEVICE_H_
