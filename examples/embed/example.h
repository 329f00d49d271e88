// What the programs of this folder share: an error ends the program with its message, and the
// device is a GPU if the build and the machine have one.

#ifndef EXAMPLE_H_
#define EXAMPLE_H_

#include <ATen/Context.h>
#include <c10/core/Device.h>

#include <cstdlib>
#include <iostream>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

inline void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << std::endl;
  std::exit(1);
}

template <typename T>
T Check(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

// Ends the program unless `holds`.
inline void Expect(bool holds, const char* what) {
  if (holds) return;
  std::cerr << "expected " << what << std::endl;
  std::exit(1);
}

inline c10::Device ExampleDevice() {
#ifdef REPRISE_WITH_CUDA
  if (at::hasCUDA()) return c10::Device(c10::kCUDA, 0);
#endif
  return c10::kCPU;
}

#endif  // EXAMPLE_H_
