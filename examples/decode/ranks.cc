#include "examples/decode/ranks.h"

#include <c10/core/Device.h>
#include <unistd.h>

#include <memory>
#include <ostream>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "distributed/collectives.h"
#include "distributed/launch.h"
#include "distributed/process_group.h"
#include "distributed/ranks.h"
#include "examples/decode/bench/bench.h"
#include "examples/decode/chat/chat.h"
#include "examples/decode/device.h"
#include "examples/decode/loaded_model.h"
#include "examples/decode/serve/serve.h"

namespace reprise {
namespace {

absl::Status RunCommand(const DecodeOptions& options, const DecodeStreams& streams,
                        RankOfRun rank) {
  switch (options.command) {
    case DecodeCommand::kChat:
      return RunChat(options, {.in = STDIN_FILENO,
                               .out = streams.out,
                               .err = streams.err,
                               .progress = streams.progress});
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
  return RunDecode(options, streams, rank.collectives, rank.local_rank);
}

absl::Status RunAsRank(const RankPlace& place, const DecodeOptions& options,
                       const DecodeStreams& streams) {
  if (place.ranks.world == 1) return RunCommand(options, streams, {});
  REPRISE_ASSIGN_OR_RETURN(const c10::Device device,
                           ChooseDevice(options.device, NumGpus(), place.local_rank));
  REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<Collectives> collectives,
                           ConnectRanks(place, device));
  std::ostream nowhere(nullptr);
  const bool prints = place.ranks.rank == 0;
  return RunCommand(options,
                    {.out = prints ? streams.out : nowhere,
                     .err = prints ? streams.err : nowhere,
                     .progress = prints ? streams.progress : ProgressLine::Mode::kSilent},
                    {.collectives = collectives.get(), .local_rank = place.local_rank});
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
  if (world > 1 || wanted == 1) return RunAsRank(place, options, streams);
  return RunRanks(wanted,
                  [&](const RankPlace& started) { return RunAsRank(started, options, streams); });
}

}  // namespace reprise
