// Serves clients over descriptors: one over a pair of them, or many over a Unix socket.
//
//   AsyncEngine engine(...);
//   REPRISE_RETURN_IF_ERROR(ServePipe(engine, context, STDIN_FILENO, STDOUT_FILENO));
//
//   SignalEvent stop({SIGINT, SIGTERM});
//   REPRISE_RETURN_IF_ERROR(ServeSocket(engine, context, path, stop.descriptor(), [] {}));
//
// A client that has closed its end for writing still gets all events of its requests. One that is
// gone, or lets more than Outbox::kMaxPendingBytes wait, has its requests cancelled.
//
// Thread safety: the functions use threads of their own, which have ended when they return.

#ifndef EXAMPLES_DECODE_SERVE_SERVER_H_
#define EXAMPLES_DECODE_SERVE_SERVER_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "examples/decode/serve/client.h"
#include "reprise/engine/async_engine.h"

namespace reprise {

// Reads lines until the end of `in`, and returns when all requests have ended and their events are
// written to `out`. Errors: Internal if reading fails; why the engine can run no more steps.
absl::Status ServePipe(AsyncEngine& engine, const ServeContext& context, int in, int out);

// Serves the clients of a socket at `path` until `stop` is readable, and then ends: requests are
// cancelled, clients have two seconds to read their last events. `on_ready` is called once clients
// can connect. Errors: those of UnixSocket; why the engine can run no more steps.
absl::Status ServeSocket(AsyncEngine& engine, const ServeContext& context, const std::string& path,
                         int stop, absl::FunctionRef<void()> on_ready);

}  // namespace reprise

#endif  // EXAMPLES_DECODE_SERVE_SERVER_H_
