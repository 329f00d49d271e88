// Continues texts with a model: see --help, and README.md.

#include <unistd.h>

#include <iostream>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/decode/options.h"
#include "examples/decode/progress_line.h"
#include "examples/decode/ranks.h"
#include "examples/decode/run.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

absl::Status Decode(int argc, char** argv) {
  REPRISE_ASSIGN_OR_RETURN(const ParsedFlags flags, ParseDecodeFlags(argc, argv));
  if (flags.help.has_value()) {
    std::cout << *flags.help;
    return absl::OkStatus();
  }
  REPRISE_ASSIGN_OR_RETURN(const DecodeOptions options, MakeDecodeOptions(flags.arguments));
  return RunDecodeOverRanks(
      options,
      {.out = std::cout, .err = std::cerr, .progress = ProgressLine::ForTerminal(STDERR_FILENO)});
}

}  // namespace
}  // namespace reprise

int main(int argc, char** argv) {
  const absl::Status status = reprise::Decode(argc, argv);
  if (status.ok()) return 0;
  std::cerr << "decode: " << status.message() << std::endl;
  return 1;
}
