#include "examples/decode/ranks.h"

#include <c10/core/Device.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <ostream>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "examples/decode/bench/bench.h"
#include "examples/decode/chat/chat.h"
#include "examples/decode/device.h"
#include "examples/decode/loaded_model.h"
#include "examples/decode/serve/serve.h"
#include "reprise/base/status_macros.h"
#include "reprise/distributed/launch.h"
#include "reprise/distributed/process_group.h"
#include "reprise/distributed/rank_grid.h"
#include "reprise/distributed/ranks.h"
#include "reprise/models/devices.h"

namespace reprise {
namespace {

absl::Status RunCommand(const DecodeOptions& options, const DecodeStreams& streams,
                        RankOfRun rank) {
  switch (options.command) {
    case DecodeCommand::kChat:
      return RunChat(options,
                     {.in = STDIN_FILENO,
                      .out = streams.out,
                      .err = streams.err,
                      .progress = streams.progress,
                      .terminal = stderr},
                     rank);
    case DecodeCommand::kServe:
      return RunServe(options,
                      {.in = STDIN_FILENO,
                       .out = STDOUT_FILENO,
                       .err = streams.err,
                       .progress = streams.progress},
                      rank);
    case DecodeCommand::kBench:
      return RunBench(options,
                      {.out = streams.out, .err = streams.err, .progress = streams.progress}, rank);
    case DecodeCommand::kRun:
    case DecodeCommand::kPerplexity:
      break;
  }
  return RunDecode(options, streams, rank);
}

// While it lives, Ctrl-C of a terminal, which all processes of a command get, is for rank 0 alone.
class InterruptsOfRank0 {
 public:
  explicit InterruptsOfRank0(const DecodeOptions& options)
      : is_on_(options.command == DecodeCommand::kChat ||
               (options.command == DecodeCommand::kServe && options.socket.has_value())) {
    if (is_on_) before_ = std::signal(SIGINT, SIG_IGN);
  }
  ~InterruptsOfRank0() {
    if (is_on_) std::signal(SIGINT, before_);
  }
  InterruptsOfRank0(const InterruptsOfRank0&) = delete;
  InterruptsOfRank0& operator=(const InterruptsOfRank0&) = delete;

  // In the process of a rank: until rank 0 takes interrupts itself, they end it.
  void Begin(int rank) const {
    if (is_on_ && rank == 0) std::signal(SIGINT, before_);
  }

 private:
  const bool is_on_;
  void (*before_)(int) = SIG_DFL;
};

absl::Status RunAsRank(const RankPlace& place, const DecodeOptions& options,
                       const DecodeStreams& streams) {
  if (place.ranks.world == 1) return RunCommand(options, streams, {});
  REPRISE_ASSIGN_OR_RETURN(const c10::Device device,
                           ChooseDevice(options.device, NumGpus(), place.local_rank));
  int context_ranks = options.engine.runner.ranks.context_ranks;
  if (context_ranks == RankOptions::kAllRanks) context_ranks = place.ranks.world;
  REPRISE_ASSIGN_OR_RETURN(
      const std::unique_ptr<RankGrid> grid,
      ConnectGrid(place, device, context_ranks, {.timeout = options.rank_timeout}));
  std::ostream nowhere(nullptr);
  const bool prints = place.ranks.rank == 0;
  return RunCommand(options,
                    {.out = prints ? streams.out : nowhere,
                     .err = prints ? streams.err : nowhere,
                     .progress = prints ? streams.progress : ProgressLine::Mode::kSilent},
                    {.grid = grid.get(), .local_rank = place.local_rank});
}

}  // namespace

absl::Status RunDecodeOverRanks(const DecodeOptions& options, const DecodeStreams& streams) {
  REPRISE_ASSIGN_OR_RETURN(const RankPlace place, RanksFromEnvironment());
  const int world = place.ranks.world;
  const int wanted = options.num_ranks.value_or(world);
  if (world > 1 && wanted != world) {
    return absl::InvalidArgumentError(absl::StrCat("--ranks: expected none, or ", world,
                                                   " as a launcher has started, got ", wanted));
  }
  if (world == 1 && wanted == 1) return RunAsRank(place, options, streams);
  const InterruptsOfRank0 interrupts(options);
  const auto run = [&](const RankPlace& started) {
    interrupts.Begin(started.ranks.rank);
    return RunAsRank(started, options, streams);
  };
  return world > 1 ? run(place) : RunRanks(wanted, run);
}

}  // namespace reprise
