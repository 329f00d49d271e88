#include "examples/llama/loading_bar.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace reprise {
namespace {

constexpr int kWidth = 20;
constexpr double kGigabyte = 1e9;
// Below this a speed says more about the clock than about the disk.
constexpr double kMinSeconds = 0.1;

}  // namespace

std::string LoadingBar(int64_t num_bytes, int64_t total_bytes, double seconds) {
  const double fraction =
      total_bytes > 0 ? static_cast<double>(num_bytes) / static_cast<double>(total_bytes) : 1;
  const int filled = static_cast<int>(fraction * kWidth);
  std::string bar = absl::StrFormat("loading weights [%s%s] %.1f of %.1f GB",
                                    std::string(filled, '#'), std::string(kWidth - filled, '.'),
                                    num_bytes / kGigabyte, total_bytes / kGigabyte);
  if (seconds >= kMinSeconds) {
    absl::StrAppendFormat(&bar, ", %.1f GB/s", num_bytes / kGigabyte / seconds);
  }
  return bar;
}

}  // namespace reprise
