#include "examples/decode/serve/serve.h"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "examples/decode/requests.h"
#include "examples/decode/serve/server.h"
#include "examples/decode/signal_event.h"
#include "examples/decode/watch_view.h"
#include "reprise/base/status_macros.h"
#include "reprise/engine/async_engine.h"
#include "reprise/engine/create_engine.h"
#include "reprise/models/model_folder.h"

namespace reprise {
namespace {

ServeContext ContextOf(const DecodeOptions& options, const ModelFolder& folder) {
  return {
      .defaults = options,
      .tokenizer = folder.tokenizer.has_value() ? &*folder.tokenizer : nullptr,
      .make_request = [&options, &folder](const ServeRequest& request) -> absl::StatusOr<Request> {
        const bool is_of_flag = request.options.stops.texts == options.stops.texts;
        REPRISE_ASSIGN_OR_RETURN(std::vector<Request> requests,
                                 MakeRequests({&request.prompt, 1}, request.options, folder,
                                              is_of_flag ? "--stop" : "stop"));
        if (request.predicted.has_value()) {
          REPRISE_ASSIGN_OR_RETURN(requests.front().predicted_tokens,
                                   PredictedTokens(*request.predicted, folder));
        }
        return std::move(requests.front());
      }};
}

// Shows a view of the engine until its destructor, on a thread of its own.
class Watcher {
 public:
  Watcher(const AsyncEngine& engine, const ServeStreams& streams)
      : engine_(engine), view_(streams.err, streams.progress) {
    thread_ = std::thread([this] { Run(); });
  }
  ~Watcher() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stops_ = true;
    }
    changed_.notify_one();
    thread_.join();
    view_.Finish(engine_.metrics());
  }

 private:
  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!changed_.wait_for(lock, WatchView::kInterval, [this] { return stops_; })) {
      view_.Show(engine_.metrics());
    }
  }

  const AsyncEngine& engine_;
  WatchView view_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace

absl::Status RunServe(const DecodeOptions& options, const ServeStreams& streams, RankOfRun rank) {
  const auto options_of = [&](const ModelFolder& folder) -> absl::StatusOr<ModelEngineOptions> {
    return ServingEngineOptions(options, folder.max_seq_len());
  };
  DecodeModels loaded;
  std::unique_ptr<Engine> made;
  {
    ProgressLine progress(streams.err, streams.progress);
    REPRISE_ASSIGN_OR_RETURN(loaded, DecodeModels::Load(options, rank, progress, options_of));
    if (rank.follows()) return loaded.Follow();
    REPRISE_ASSIGN_OR_RETURN(made, loaded.MakeEngine());
  }
  AsyncEngine engine(std::move(made), IdleInterval(options));
  const ServeContext context = ContextOf(options, *loaded.folder);
  std::optional<Watcher> watcher;
  if (options.watches && !options.socket.has_value()) watcher.emplace(engine, streams);
  if (!options.socket.has_value()) return ServePipe(engine, context, streams.in, streams.out);
  const SignalEvent stop({SIGINT, SIGTERM});
  return ServeSocket(engine, context, *options.socket, stop.descriptor(), [&] {
    streams.err << "serving at " << *options.socket << std::endl;
    if (options.watches) watcher.emplace(engine, streams);  // below that line
  });
}

}  // namespace reprise
