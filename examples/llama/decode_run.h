// A run of decode, from checked options to printed texts.
//
//   absl::Status status = RunDecode(options, {.out = std::cout, .err = std::cerr});

#ifndef EXAMPLES_LLAMA_DECODE_RUN_H_
#define EXAMPLES_LLAMA_DECODE_RUN_H_

#include <ostream>

#include "absl/status/status.h"
#include "examples/llama/decode_options.h"
#include "examples/llama/progress_line.h"

namespace reprise {

struct DecodeStreams {
  std::ostream& out;  // texts, or JSON
  std::ostream& err;  // progress and summary
  ProgressLine::Mode progress = ProgressLine::Mode::kSilent;
};

// Loads the model, continues the prompts as one batch, and prints as README.md shows. On the CPU,
// sets LibTorch's number of threads to what the model is worth, unless OMP_NUM_THREADS is set.
// Errors: a sentence for the user, for whatever part fails.
absl::Status RunDecode(const DecodeOptions& options, const DecodeStreams& streams);

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_DECODE_RUN_H_
