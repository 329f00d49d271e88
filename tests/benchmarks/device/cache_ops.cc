// Times the operations that move keys and values on a GPU (write, read, block copies, swaps), each
// against a plain copy of the same bytes in the same run. Also times a layer's prologue (the write
// and the operations before it) in one launch against several.
//
//   cache_ops [--only write,read,copy,swap,prologue]
//
// Prints a JSON line a point, then a table. Writes and reads are timed with cold caches: a replayed
// graph holds many calls that rotate among sources and slots of several times the L2, or, for the
// ones of few tokens, follow one another as the layers of a step do.

#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "tests/benchmarks/device/cache_cases.h"
#include "tests/benchmarks/device/memory_rates.h"
#include "tests/benchmarks/device/prologue_cases.h"

ABSL_FLAG(std::vector<std::string>, only,
          std::vector<std::string>({"write", "read", "copy", "swap", "prologue"}), "what to time");

namespace reprise {
namespace {

std::string Row(const CachePoint& p) {
  return absl::StrFormat("%-8s %-44s %10.1f %9.2f %9.3f %9.1f %9.2f", p.operation, p.shape,
                         p.bytes / 1e6, p.timing.median_us, p.timing.spread(),
                         p.bytes / p.timing.median_us / 1e3, p.plain_us / p.timing.median_us);
}

absl::Status RunAll() {
  REPRISE_ASSIGN_OR_RETURN(const MemoryRates limits, MeasureMemoryRates());
  std::vector<std::string> rows;
  for (const std::string& operation : absl::GetFlag(FLAGS_only)) {
    REPRISE_ASSIGN_OR_RETURN(
        const std::vector<CachePoint> points,
        operation == "prologue" ? MeasurePrologues() : MeasureCacheOperation(operation, limits));
    for (const CachePoint& p : points) {
      std::cout << nlohmann::json{{"operation", p.operation},  {"shape", p.shape},
                                  {"bytes", p.bytes},          {"us", p.timing.median_us},
                                  {"min_us", p.timing.min_us}, {"max_us", p.timing.max_us},
                                  {"plain_us", p.plain_us},    {"plain", p.plain}}
                       .dump()
                << std::endl;
      rows.push_back(Row(p));
    }
  }
  std::cout << absl::StrFormat("\ncopy %.2f TB/s (read + written), read %.2f TB/s\n",
                               limits.copy_tb_per_s, limits.read_tb_per_s)
            << absl::StrFormat("%-8s %-44s %10s %9s %9s %9s %9s\n", "what", "shape", "MB moved",
                               "us", "spread", "GB/s", "of plain");
  for (const std::string& row : rows) std::cout << row << "\n";
  return absl::OkStatus();
}

}  // namespace
}  // namespace reprise

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Times what moves keys and values on a GPU.");
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = reprise::RunAll();
  if (status.ok()) return 0;
  std::cerr << "cache_ops: " << status.message() << "\n";
  return 1;
}
