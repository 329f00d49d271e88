// The command serve: loads the model, and serves clients until they are done (server.h).

#ifndef EXAMPLES_DECODE_SERVE_SERVE_H_
#define EXAMPLES_DECODE_SERVE_SERVE_H_

#include <ostream>

#include "absl/status/status.h"
#include "examples/decode/loaded_model.h"
#include "examples/decode/options.h"
#include "examples/decode/progress_line.h"

namespace reprise {

struct ServeStreams {
  int in;             // descriptors of requests and events, where there is no --socket
  int out;            // also said to be gone by SIGPIPE, unless the caller ignores that
  std::ostream& err;  // progress, and that clients can connect
  ProgressLine::Mode progress = ProgressLine::Mode::kSilent;
};

// All ranks call it with the same options: rank 0 serves, the others follow its steps.
// Errors: those of loading, of CreateEngine() and of server.h.
absl::Status RunServe(const DecodeOptions& options, const ServeStreams& streams, RankOfRun rank);

}  // namespace reprise

#endif  // EXAMPLES_DECODE_SERVE_SERVE_H_
