#include "reprise/distributed/process_group.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"

#ifdef REPRISE_WITH_C10D
#include "reprise/distributed/gloo_group.h"
#include "reprise/distributed/peers.h"
#ifdef REPRISE_WITH_CUDA
#include "reprise/distributed/nccl_group.h"
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
      absl::StrCat("device must be supported by this build: got ", device.str()));
}

absl::Status CheckPlace(const RankPlace& place) {
  const Ranks& ranks = place.ranks;
  if (ranks.world >= 1 && ranks.rank >= 0 && ranks.rank < ranks.world) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("place must have 0 <= rank < world: got rank ",
                                                 ranks.rank, " of ", ranks.world));
}

#ifdef REPRISE_WITH_C10D
// Connects the group of all ranks for host tensors.
absl::StatusOr<std::unique_ptr<GlooGroup>> ConnectHosts(const RankPlace& place, at::Device device,
                                                        const ConnectOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(auto store, Peers::OpenStore(place, options.timeout));
  REPRISE_ASSIGN_OR_RETURN(
      auto peers,
      Peers::Meet(std::move(store), place.ranks,
                  {.timeout = options.timeout,
                   .grace = options.grace,
                   // Ranks with different kinds of devices would wait for each other in different
                   // groups.
                   .config = absl::StrCat(
                       device.is_cuda() ? "cuda" : "cpu", ";", options.limits.max_symmetric_bytes,
                       ";", options.limits.max_push_bytes, ";", options.limits.max_fused_bytes, ";",
                       options.limits.max_one_shot_bytes, ";", options.limits.min_copied_bytes, ";",
                       options.config),
                   .serves_store = place.serves_store}));
  return GlooGroup::Connect(std::move(peers), options.timeout);
}

// Connects the ranks of `host` for tensors on `device`.
absl::StatusOr<std::unique_ptr<Collectives>> OnDevice(std::unique_ptr<GlooGroup> host,
                                                      at::Device device,
                                                      const ConnectOptions& options) {
#ifdef REPRISE_WITH_CUDA
  if (device.is_cuda()) {
    return NcclGroup::Connect(std::move(host), device, options.limits, options.timeout);
  }
#else
  static_cast<void>(device);
  static_cast<void>(options);
#endif
  return host;
}

absl::StatusOr<std::unique_ptr<Collectives>> Connect(const RankPlace& place, at::Device device,
                                                     const ConnectOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<GlooGroup> host, ConnectHosts(place, device, options));
  return OnDevice(std::move(host), device, options);
}

// Connects a grid with several ranks in both dimensions.
absl::StatusOr<std::unique_ptr<RankGrid>> ConnectGroups(const RankPlace& place, at::Device device,
                                                        int context_ranks,
                                                        const ConnectOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<GlooGroup> host, ConnectHosts(place, device, options));
  const std::vector<int> weights_group = WeightsGroup(place.ranks, context_ranks);
  const std::vector<int> context_group = ContextGroup(place.ranks, context_ranks);
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<GlooGroup> weights_host,
                           host->ConnectPart(weights_group, options.timeout));
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<GlooGroup> context_host,
                           host->ConnectPart(context_group, options.timeout));
  ConnectOptions of_all = options;
  of_all.limits.max_symmetric_bytes = 0;
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<Collectives> all,
                           OnDevice(std::move(host), device, of_all));
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<Collectives> weights,
                           OnDevice(std::move(weights_host), device, options));
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<Collectives> context,
                           OnDevice(std::move(context_host), device, options));
  return std::make_unique<RankGrid>(std::move(all), context_ranks, std::move(weights),
                                    std::move(context));
}
#endif

}  // namespace

absl::StatusOr<std::unique_ptr<Collectives>> ConnectRanks(const RankPlace& place, at::Device device,
                                                          const ConnectOptions& options) {
  REPRISE_RETURN_IF_ERROR(CheckDevice(device));
  REPRISE_RETURN_IF_ERROR(CheckPlace(place));
  if (place.ranks.world == 1) return OneRank();
#ifdef REPRISE_WITH_C10D
  return CatchTorchOr([&] { return Connect(place, device, options); });
#else
  return absl::UnimplementedError(
      "this build has no process groups: LibTorch has none, or libgloo-dev was not installed");
#endif
}

absl::StatusOr<std::unique_ptr<RankGrid>> ConnectGrid(const RankPlace& place, at::Device device,
                                                      int context_ranks,
                                                      const ConnectOptions& options) {
  REPRISE_RETURN_IF_ERROR(CheckPlace(place));
  REPRISE_RETURN_IF_ERROR(CheckGrid(place.ranks.world, context_ranks));
  ConnectOptions own = options;
  own.config = absl::StrCat("context_ranks ", context_ranks, ";", options.config);
#ifdef REPRISE_WITH_C10D
  if (context_ranks > 1 && context_ranks < place.ranks.world) {
    REPRISE_RETURN_IF_ERROR(CheckDevice(device));
    return CatchTorchOr([&] { return ConnectGroups(place, device, context_ranks, own); });
  }
#endif
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<Collectives> all, ConnectRanks(place, device, own));
  return std::make_unique<RankGrid>(std::move(all), context_ranks);
}

}  // namespace reprise
