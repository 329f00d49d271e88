// Which part of a step a kernel belongs to, by its name: for tables of the time per part.

#ifndef TESTS_BENCHMARKS_DEVICE_KERNEL_CLASS_H_
#define TESTS_BENCHMARKS_DEVICE_KERNEL_CLASS_H_

#include <array>
#include <string_view>

namespace reprise {

enum class KernelClass {
  kProducts,  // matrix products, split-k reductions included
  kAttention,
  kTileSchedule,
  kRotaryWrite,  // rotary embedding and the write into the cache
  kNorm,
  kActivation,
  kGather,
  kRefill,
  kSampling,
  kCollectives,  // sums and gathers over ranks, with what a rank waits for the others
  kOther,
};
inline constexpr int kNumKernelClasses = 11;

// "products", "attention", ...
std::string_view KernelClassName(KernelClass kernel_class);

// `name`: demangled, as CUPTI gives it.
KernelClass ClassOfKernel(std::string_view name);

}  // namespace reprise

#endif  // TESTS_BENCHMARKS_DEVICE_KERNEL_CLASS_H_
