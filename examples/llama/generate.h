// Runs a list of requests through an engine, to their ends.
//
//   REPRISE_RETURN_IF_ERROR(Generate(*engine, requests, [&](int request, const TokenEvent& event) {
//     tokens[request].push_back(event.token);
//     return absl::OkStatus();
//   }));
//
// All requests are added before the first step, so that they run as one batch, as far as the engine
// has rows.

#ifndef EXAMPLES_LLAMA_GENERATE_H_
#define EXAMPLES_LLAMA_GENERATE_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runner/engine.h"
#include "runner/request.h"

namespace reprise {

// Called for every token, in the order in which the engine reports them, right after the step that
// reported it: with one step in flight, row `event.row` of engine.runner().logits() is what the
// token was chosen from. An error ends the run.
using TokenListener = absl::FunctionRef<absl::Status(int request, const TokenEvent& event)>;

// REQUIRES: the engine has no work. Errors: those of Engine::Add(), naming the request by number if
// there are several, before any step has run; those of Engine::Step() and of the listener.
absl::Status Generate(Engine& engine, absl::Span<const Request> requests, TokenListener on_token);

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_GENERATE_H_
