#include "distributed/process_group.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/torch_status.h"

#ifdef REPRISE_WITH_C10D
#include "distributed/gloo_group.h"
#include "distributed/peers.h"
#ifdef REPRISE_WITH_CUDA
#include "distributed/nccl_group.h"
#endif
#endif

namespace reprise {
namespace {

absl::Status CheckDevice(at::Device device) {
  if (device.is_cpu()) return absl::OkStatus();
#ifdef REPRISE_WITH_CUDA
  if (device.is_cuda()) return absl::OkStatus();
#endif
  return absl::InvalidArgumentError(
      absl::StrCat("device must be one that this build has: got ", device.str()));
}

#ifdef REPRISE_WITH_C10D
absl::StatusOr<std::unique_ptr<Collectives>> Connect(const RankPlace& place, at::Device device,
                                                     const ConnectOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(auto store, Peers::OpenStore(place, options.timeout));
  REPRISE_ASSIGN_OR_RETURN(
      auto peers,
      Peers::Meet(std::move(store), place.ranks,
                  {.timeout = options.timeout,
                   .grace = options.grace,
                   // Ranks on unlike kinds of devices would wait for each other in unlike groups.
                   .config = absl::StrCat(
                       device.is_cuda() ? "cuda" : "cpu", ";", options.limits.max_symmetric_bytes,
                       ";", options.limits.max_push_bytes, ";", options.limits.max_one_shot_bytes,
                       ";", options.limits.min_copied_bytes, ";", options.config),
                   .serves_store = place.serves_store}));
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<GlooGroup> host,
                           GlooGroup::Connect(std::move(peers), options.timeout));
#ifdef REPRISE_WITH_CUDA
  if (device.is_cuda()) {
    return NcclGroup::Connect(std::move(host), device, options.limits, options.timeout);
  }
#endif
  return host;
}
#endif

}  // namespace

absl::StatusOr<std::unique_ptr<Collectives>> ConnectRanks(const RankPlace& place, at::Device device,
                                                          const ConnectOptions& options) {
  REPRISE_RETURN_IF_ERROR(CheckDevice(device));
  const Ranks& ranks = place.ranks;
  if (ranks.world < 1 || ranks.rank < 0 || ranks.rank >= ranks.world) {
    return absl::InvalidArgumentError(absl::StrCat("place must have 0 <= rank < world: got rank ",
                                                   ranks.rank, " of ", ranks.world));
  }
  if (ranks.world == 1) return OneRank();
#ifdef REPRISE_WITH_C10D
  return CatchTorchOr([&] { return Connect(place, device, options); });
#else
  return absl::UnimplementedError(
      "this build has no process groups: LibTorch has none, or libgloo-dev was not installed");
#endif
}

}  // namespace reprise
