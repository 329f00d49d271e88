#include "examples/llama/cpu_threads.h"

#include <algorithm>

namespace reprise {

int SensibleCpuThreads(int64_t weight_bytes, int num_available) {
  constexpr int64_t kBytesPerThread = int64_t{16} << 20;
  const int64_t at_most = std::max(num_available, 1);
  return static_cast<int>(std::clamp<int64_t>(weight_bytes / kBytesPerThread, 1, at_most));
}

}  // namespace reprise
