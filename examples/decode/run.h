// A run of decode, from checked options to printed texts.
//
//   absl::Status status = RunDecode(options, {.out = std::cout, .err = std::cerr});

#ifndef EXAMPLES_DECODE_RUN_H_
#define EXAMPLES_DECODE_RUN_H_

#include <ostream>

#include "absl/status/status.h"
#include "examples/decode/loaded_model.h"
#include "examples/decode/options.h"
#include "examples/decode/progress_line.h"

namespace reprise {

struct DecodeStreams {
  std::ostream& out;  // texts, or JSON
  std::ostream& err;  // progress and summary
  ProgressLine::Mode progress = ProgressLine::Mode::kSilent;
};

// Loads the model, continues the prompts as one batch, and prints as README.md shows; or scores a
// text (DecodeOptions::perplexity). On the CPU,
// sets LibTorch's number of threads by the model's size, unless OMP_NUM_THREADS is set.
// Errors: a sentence for the user about the part that failed.
//
// All ranks call it with the same options; rank 0 generates, prints and writes files, the others
// follow its steps.
absl::Status RunDecode(const DecodeOptions& options, const DecodeStreams& streams,
                       RankOfRun rank = {});

}  // namespace reprise

#endif  // EXAMPLES_DECODE_RUN_H_
