// A client of decode serve: its lines become requests of the engine, whose events become its lines.
//
//   Outbox out(descriptor);
//   ServeClient client(&engine, &context, &out);
//   lines.Push(bytes, [&](const InputLine& line) { client.Take(line); });
//   client.AwaitEnd();   // of its requests
//   out.Close();
//
// A line that cannot be served gives one error event and changes nothing else. Ids are the client's
// own: other clients may use the same. An id may be used again once its request has ended.
//
// Thread safety: all methods from any thread. The destructor: when no other call is under way.

#ifndef EXAMPLES_DECODE_SERVE_CLIENT_H_
#define EXAMPLES_DECODE_SERVE_CLIENT_H_

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "examples/decode/options.h"
#include "examples/decode/serve/line_splitter.h"
#include "examples/decode/serve/outbox.h"
#include "examples/decode/serve/protocol.h"
#include "reprise/base/ids.h"
#include "reprise/engine/async_engine.h"
#include "reprise/engine/request.h"
#include "reprise/hf/tokenizer/tokenizer.h"

namespace reprise {

// What all clients share. Thread safety: as any const object; make_request is called by any thread.
struct ServeContext {
  DecodeOptions defaults = {};
  const Tokenizer* tokenizer = nullptr;  // null: requests and events have token ids only
  std::function<absl::StatusOr<Request>(const ServeRequest&)> make_request = {};
};

class ServeClient {
 public:
  // All must outlive the client.
  ServeClient(AsyncEngine* engine, const ServeContext* context, Outbox* out);
  ~ServeClient();  // CancelAll() and AwaitEnd()

  ServeClient(const ServeClient&) = delete;
  ServeClient& operator=(const ServeClient&) = delete;

  // Adds or cancels a request, or pushes an error. Blank lines are skipped.
  void Take(const InputLine& line);

  void CancelAll();

  // Returns when all requests have ended and all their events are pushed.
  void AwaitEnd();

 private:
  class Answer;

  void Add(int64_t line, std::string id, const ServeRequest& request);
  void Cancel(const std::string& id);
  // If the line could not be pushed, cancels all requests, since the client is gone.
  void Push(const std::string& line);
  void Forget(const std::string& id);  // may be used again
  void Ended();

  AsyncEngine* const engine_;
  const ServeContext* const context_;
  Outbox* const out_;
  std::mutex mutex_;
  std::condition_variable idle_;  // num_open_
  absl::flat_hash_map<std::string, SequenceId> running_;
  int num_open_ = 0;  // requests with events to come
};

}  // namespace reprise

#endif  // EXAMPLES_DECODE_SERVE_CLIENT_H_
