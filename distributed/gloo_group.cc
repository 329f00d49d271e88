#include "reprise/distributed/gloo_group.h"

#ifdef REPRISE_WITH_C10D

// Required by ProcessGroupGloo.hpp.
#define USE_C10D_GLOO

#include <ATen/core/Tensor.h>

#include <csignal>
#include <cstdlib>
#include <exception>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

// Views a contiguous tensor as bytes, so that tensors of any dtype can be gathered and broadcast.
at::Tensor Bytes(const at::Tensor& tensor) { return tensor.view({-1}).view(at::kByte); }

absl::Status CheckOnHost(const char* argument, const at::Tensor& tensor) {
  if (tensor.is_cpu()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(argument, " has the wrong device: expected cpu, got ", tensor.device().str()));
}

std::shared_ptr<::gloo::transport::Device> HostDevice(bool one_host) {
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME")) {
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  }
  if (one_host) return c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  return c10d::ProcessGroupGloo::createDefaultDevice();
}

// Gloo writes to the connection of an ended rank until it detects the end. SIGPIPE would then end
// this process, too.
void IgnoreBrokenPipes() {
  struct sigaction action = {};
  if (sigaction(SIGPIPE, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) return;
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
}

}  // namespace

GlooGroup::GlooGroup(std::unique_ptr<Peers> peers)
    : Collectives(peers->ranks()), peers_(std::move(peers)) {
  groups_->push_back(this);
}

GlooGroup::~GlooGroup() { std::erase(*groups_, this); }

absl::StatusOr<std::unique_ptr<GlooGroup>> GlooGroup::Connect(std::unique_ptr<Peers> peers,
                                                              absl::Duration timeout) {
  std::unique_ptr<GlooGroup> group(new GlooGroup(std::move(peers)));
  REPRISE_RETURN_IF_ERROR(group->ConnectGloo(timeout));
  return group;
}

absl::StatusOr<std::unique_ptr<GlooGroup>> GlooGroup::ConnectPart(const std::vector<int>& members,
                                                                  absl::Duration timeout) {
  REPRISE_RETURN_IF_ERROR(failure_);
  std::unique_ptr<GlooGroup> part(new GlooGroup(peers_->Part(members)));
  groups_->push_back(part.get());
  part->groups_ = groups_;
  REPRISE_RETURN_IF_ERROR(part->ConnectGloo(timeout));
  return part;
}

absl::Status GlooGroup::ConnectGloo(absl::Duration timeout) {
  IgnoreBrokenPipes();
  REPRISE_RETURN_IF_ERROR(Call("connecting", [&] {
    auto options = c10d::ProcessGroupGloo::Options::create(absl::ToChronoMilliseconds(timeout));
    options->devices.push_back(HostDevice(peers_->one_host()));
    group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<c10d::PrefixStore>(absl::StrCat("gloo", peers_->name()),
                                               peers_->store()),
        ranks().rank, ranks().world, options);
  }));
  return Barrier();
}

void GlooGroup::CloseAll() {
  for (GlooGroup* group : *groups_) group->group_.reset();
}

void GlooGroup::KeepForAll(const absl::Status& failure) {
  for (GlooGroup* group : *groups_) {
    if (group->failure_.ok()) group->failure_ = failure;
  }
}

absl::Status GlooGroup::FailedCall(const std::string& what, const std::string& error) {
  if (failure_.ok()) {
    // A failed call disconnects its own group, so a single group does not need CloseAll().
    if (groups_->size() > 1) CloseAll();
    KeepForAll(peers_->Explain(what, error));
  }
  return failure_;
}

absl::Status GlooGroup::Call(const char* name, absl::FunctionRef<void()> body) {
  ++num_calls_;
  std::string error;
  try {
    body();
    return absl::OkStatus();
  } catch (const std::exception& exception) {
    error = exception.what();
  }
  return FailedCall(absl::StrCat(name, " (call ", num_calls_, ")", peers_->name()),
                    error.substr(0, error.find('\n')));
}

std::string GlooGroup::Fingerprint() const { return absl::StrCat("gloo, ", ranks().world); }

void GlooGroup::Fail(const absl::Status& why) {
  if (!failure_.ok()) return;
  peers_->Fail(why);
  CloseAll();
  KeepForAll(why);
  peers_->AwaitHeard();
}

absl::Status GlooGroup::DoAllReduce(at::Tensor& tensor) {
  REPRISE_RETURN_IF_ERROR(CheckOnHost("tensor", tensor));
  return Call("AllReduce", [&] {
    std::vector<at::Tensor> tensors = {tensor.view({-1})};
    group_->allreduce(tensors)->wait();
  });
}

absl::Status GlooGroup::DoAllGather(const at::Tensor& in, at::Tensor& out) {
  REPRISE_RETURN_IF_ERROR(CheckOnHost("in", in));
  return Call("AllGather", [&] {
    at::Tensor from = Bytes(in), to = Bytes(out);
    group_->_allgather_base(to, from)->wait();
  });
}

absl::Status GlooGroup::DoReduceScatter(const at::Tensor& in, at::Tensor& out) {
  REPRISE_RETURN_IF_ERROR(CheckOnHost("in", in));
  // Uses all-reduce, because gloo's reduce-scatter supports fewer dtypes.
  at::Tensor sum = in.clone();
  REPRISE_RETURN_IF_ERROR(Call("ReduceScatter", [&] {
    std::vector<at::Tensor> tensors = {sum.view({-1})};
    group_->allreduce(tensors)->wait();
  }));
  out.copy_(sum.select(0, ranks().rank));
  return absl::OkStatus();
}

absl::Status GlooGroup::DoBroadcast(at::Tensor& tensor, int root) {
  REPRISE_RETURN_IF_ERROR(CheckOnHost("tensor", tensor));
  return Call("Broadcast", [&] {
    std::vector<at::Tensor> tensors = {Bytes(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    group_->broadcast(tensors, options)->wait();
  });
}

absl::Status GlooGroup::DoBarrier() {
  return Call("Barrier", [&] { group_->barrier()->wait(); });
}

}  // namespace reprise

#endif  // REPRISE_WITH_C10D
