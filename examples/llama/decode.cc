// Continues texts with a model: see --help, and README.md.

#include <unistd.h>

#include <iostream>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/llama/decode_flags.h"
#include "examples/llama/decode_options.h"
#include "examples/llama/decode_run.h"
#include "examples/llama/progress_line.h"

int main(int argc, char** argv) {
  const absl::StatusOr<reprise::DecodeOptions> options = reprise::ParseDecodeFlags(argc, argv);
  absl::Status status = options.status();
  if (status.ok()) {
    status = reprise::RunDecode(*options,
                                {.out = std::cout,
                                 .err = std::cerr,
                                 .progress = reprise::ProgressLine::ForTerminal(STDERR_FILENO)});
  }
  if (status.ok()) return 0;
  std::cerr << "decode: " << status.message() << std::endl;
  return 1;
}
