// The command line of decode, as Abseil's flags.
//
//   int main(int argc, char** argv) {
//     absl::StatusOr<DecodeOptions> options = ParseDecodeFlags(argc, argv);
//
// Values that Abseil cannot parse, unknown flags and --help end the process, with its message.
// To be called once, before any thread is started.

#ifndef EXAMPLES_LLAMA_DECODE_FLAGS_H_
#define EXAMPLES_LLAMA_DECODE_FLAGS_H_

#include "absl/status/statusor.h"
#include "examples/llama/decode_options.h"

namespace reprise {

// Errors: those of MakeDecodeOptions().
absl::StatusOr<DecodeOptions> ParseDecodeFlags(int argc, char** argv);

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_DECODE_FLAGS_H_
