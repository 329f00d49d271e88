#include "reprise/distributed/nccl_group.h"

#if defined(REPRISE_WITH_CUDA) && defined(REPRISE_WITH_C10D)

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <torch/csrc/cuda/nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"
#include "reprise/distributed/agreement.h"
#include "reprise/distributed/push_all_reduce.h"
#include "reprise/distributed/timed_call.h"

namespace reprise {
namespace {

namespace nccl = torch::cuda::nccl;
namespace symmetric = c10d::symmetric_memory;

// Buffer size for the text of cudaDeviceGetPCIBusId(), in bytes.
constexpr int kBusIdBytes = 16;

// Maximum time after a failure for which work in symmetric memory is released, including work that
// is launched within this time.
constexpr absl::Duration kReleaseLimit = absl::Seconds(30);

at::Tensor Flat(const at::Tensor& tensor) { return tensor.view({-1}); }
at::Tensor Bytes(const at::Tensor& tensor) { return Flat(tensor).view(at::kByte); }

// Calls an operator of LibTorch's symmetric memory. Uses the boxed call, because the C++ types of
// the arguments are internal to LibTorch.
void CallSymmetric(const char* name, std::initializer_list<c10::IValue> arguments) {
  const c10::OperatorHandle op =
      c10::Dispatcher::singleton().findSchemaOrThrow(name, /*overload_name=*/"");
  torch::jit::Stack stack(arguments);
  op.callBoxed(&stack);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Collectives>> NcclGroup::Connect(std::unique_ptr<GlooGroup> host,
                                                                at::Device device,
                                                                const AllReduceLimits& limits,
                                                                absl::Duration timeout) {
  if (!device.has_index()) device = at::Device(at::kCUDA, c10::cuda::current_device());
  if (device.index() >= c10::cuda::device_count()) {
    const absl::Status status = absl::InvalidArgumentError(
        absl::StrCat("device must be one of this machine: expected one of ",
                     c10::cuda::device_count(), ", got ", device.str()));
    host->Fail(status);
    return status;
  }
  const c10::cuda::CUDAGuard guard(device);
  std::unique_ptr<NcclGroup> group(new NcclGroup(std::move(host), device));
  const absl::Status status = CatchTorch([&]() -> absl::Status {
    REPRISE_RETURN_IF_ERROR(group->ConnectNccl(timeout));
    return group->ConnectSymmetric(limits);
  });
  if (!status.ok()) {
    group->Fail(status);
    return status;
  }
  group->watch_ =
      std::make_unique<PeerWatch>(&group->host_->peers(), PeerWatchOptions{.timeout = timeout},
                                  [group = group.get()](const absl::Status&) { group->Release(); });
  return group;
}

absl::Status NcclGroup::ConnectNccl(absl::Duration timeout) {
  // Detects an unusable device here. The other ranks would wait for it in NCCL.
  REPRISE_RETURN_IF_ERROR(StatusOverRanks(host_.get(), CatchTorch([&]() -> absl::Status {
                                            at::zeros({1}, at::TensorOptions(device_));
                                            return CudaStatus(cudaDeviceSynchronize(),
                                                              "cudaDeviceSynchronize");
                                          })));
  nccl::ncclUniqueId id = {};
  if (ranks().rank == 0) nccl::get_unique_id(id);
  at::Tensor bytes = at::empty({sizeof(id)}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), &id, sizeof(id));
  REPRISE_RETURN_IF_ERROR(host_->Broadcast(bytes, 0));
  std::memcpy(&id, bytes.const_data_ptr(), sizeof(id));
  struct Joined {
    void* communicator = nullptr;
    absl::Status status;
  };
  // comm_init_rank() waits without a timeout for ranks that do not join.
  const std::optional<Joined> joined =
      CallWithin<Joined>(timeout, [ranks = ranks(), id, device = device_]() -> Joined {
        Joined result;
        result.status = CatchTorch([&] {
          const c10::cuda::CUDAGuard guard(device);
          result.communicator = nccl::comm_init_rank(ranks.world, id, ranks.rank);
          return absl::OkStatus();
        });
        return result;
      });
  if (!joined.has_value()) {
    return host_->FailedCall("connecting NCCL", "ncclCommInitRank did not return in time");
  }
  REPRISE_RETURN_IF_ERROR(joined->status);
  communicator_ = joined->communicator;
  return host_->Barrier();
}

absl::StatusOr<bool> NcclGroup::AllReachAll() {
  // Processes may number devices differently. PCI bus ids are the same in all processes.
  at::Tensor own = at::zeros({kBusIdBytes}, at::kByte);
  REPRISE_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetPCIBusId(static_cast<char*>(own.mutable_data_ptr()), kBusIdBytes,
                                       device_.index()),
                 "cudaDeviceGetPCIBusId"));
  at::Tensor all = at::zeros({ranks().world, kBusIdBytes}, at::kByte);
  REPRISE_RETURN_IF_ERROR(host_->AllGather(own, all));
  bool reaches = host_->peers().one_host();
  for (int rank = 0; rank < ranks().world && reaches; ++rank) {
    if (rank == ranks().rank) continue;
    int peer = -1, can = 0;
    const std::string id(static_cast<const char*>(all[rank].const_data_ptr()));
    reaches = cudaDeviceGetByPCIBusId(&peer, id.c_str()) == cudaSuccess &&
              peer != device_.index() &&
              cudaDeviceCanAccessPeer(&can, device_.index(), peer) == cudaSuccess && can == 1;
  }
  cudaGetLastError();
  at::Tensor count = at::full({1}, reaches ? 1 : 0, at::kInt);
  REPRISE_RETURN_IF_ERROR(host_->AllReduce(count));
  return count.item<int>() == ranks().world;
}

absl::Status NcclGroup::ConnectSymmetric(const AllReduceLimits& limits) {
  static std::atomic<int> num_groups = 0;
  REPRISE_ASSIGN_OR_RETURN(const bool reach, AllReachAll());
  if (!reach || limits.max_symmetric_bytes <= 0) return absl::OkStatus();
  symmetric_group_ = absl::StrCat("reprise/", num_groups++);
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::PrefixStore>(
      absl::StrCat("symmetric", host_->peers().name()), host_->peers().store());
  symmetric::set_group_info(symmetric_group_, ranks().rank, ranks().world, store);
  // The rendezvous looks up a process group of this name to get its store and ranks. The registry
  // does not own the group.
  const auto members = c10::make_intrusive<c10d::ProcessGroup>(store, ranks().rank, ranks().world);
  c10d::register_process_group(symmetric_group_, members);
  members_ = members;
  limits_ = limits;
  REPRISE_ASSIGN_OR_RETURN(symmetric_release_, SymmetricRelease::Create(ranks(), device_));
  REPRISE_RETURN_IF_ERROR(ConnectInboxes());
  REPRISE_ASSIGN_OR_RETURN(scratch_, NewSymmetric((limits.max_symmetric_bytes + 15) / 16 * 16));
  return host_->Barrier();
}

absl::Status NcclGroup::ConnectInboxes() {
  const int world = ranks().world;
  // Each rank writes to every other rank.
  limits_.max_push_bytes =
      world > 1 && world <= kMaxPushRanks ? limits_.max_push_bytes / (world - 1) / 16 * 16 : 0;
  if (limits_.max_push_bytes <= 0) return absl::OkStatus();
  REPRISE_ASSIGN_OR_RETURN(inbox_, NewSymmetric(PushInboxBytes(world, limits_.max_push_bytes)));
  inboxes_ = symmetric::rendezvous(inbox_, symmetric_group_)->get_buffer_ptrs();
  // The inbox may start at an offset within its allocation. The offset is the same on all ranks.
  const std::ptrdiff_t offset = static_cast<const char*>(inbox_.const_data_ptr()) -
                                static_cast<const char*>(inboxes_[ranks().rank]);
  for (void*& inbox : inboxes_) inbox = static_cast<char*>(inbox) + offset;
  push_state_ = at::zeros({kPushStateSize}, inbox_.options().dtype(at::kInt));
  symmetric_release_->AddFlag(push_state_.mutable_data_ptr<int>() + kPushGivesUp);
  // No rank may write to an inbox before it has been cleared.
  c10::cuda::getCurrentCUDAStream(device_.index()).synchronize();
  return host_->Barrier();
}

PushAllReduceArgs NcclGroup::PushArgs(const at::Tensor& tensor) const {
  PushAllReduceArgs args = {
      .data = tensor.mutable_data_ptr(),
      .num_bytes = static_cast<int64_t>(tensor.nbytes()),
      .type = tensor.scalar_type() == at::kFloat ? PushType::kFloat32 : PushType::kBFloat16,
      .rank = ranks().rank,
      .world = ranks().world,
      .max_bytes = limits_.max_push_bytes,
      .state = static_cast<uint32_t*>(push_state_.mutable_data_ptr())};
  std::copy(inboxes_.begin(), inboxes_.end(), args.inboxes);
  return args;
}

absl::StatusOr<at::Tensor> NcclGroup::NewSymmetric(int64_t bytes) {
  at::Tensor memory = symmetric::empty_strided_p2p({bytes}, {1}, at::kByte, device_,
                                                   symmetric_group_, std::nullopt);
  memory.zero_();
  REPRISE_RETURN_IF_ERROR(symmetric_release_->Add(symmetric::rendezvous(memory, symmetric_group_)));
  return memory;
}

absl::Status NcclGroup::status() const {
  REPRISE_RETURN_IF_ERROR(host_->status());
  return watch_ == nullptr ? absl::OkStatus() : watch_->status();
}

void NcclGroup::Fail(const absl::Status& why) {
  host_->Fail(why);
  if (watch_ != nullptr) watch_->Fail(why);
}

absl::Status NcclGroup::AwaitDevice(absl::FunctionRef<absl::Status()> wait,
                                    std::optional<absl::Duration> limit) {
  REPRISE_RETURN_IF_ERROR(watch_->Await(wait, limit));
  return status();
}

absl::Status NcclGroup::CallNccl(absl::FunctionRef<void()> call) {
  const std::lock_guard lock(calls_nccl_);
  REPRISE_RETURN_IF_ERROR(status());
  call();
  return absl::OkStatus();
}

void NcclGroup::Release() {
  is_released_ = true;
  using Abort = int (*)(void*);
  const auto abort = reinterpret_cast<Abort>(dlsym(RTLD_DEFAULT, "ncclCommAbort"));
  if (abort != nullptr) {
    // Waits for an NCCL call in progress. A call that waits for the failed rank must be aborted as
    // well, so the wait is short.
    const bool locked = calls_nccl_.try_lock_for(std::chrono::seconds(1));
    // The abort stops NCCL's kernels immediately, but returns only when no graph contains them any
    // more.
    std::thread([abort, communicator = communicator_] { abort(communicator); }).detach();
    if (locked) calls_nccl_.unlock();
  }
  if (symmetric_release_ != nullptr) symmetric_release_->Run(kReleaseLimit);
}

NcclGroup::~NcclGroup() {
  const bool had_failed = !status().ok();
  if (symmetric_release_ != nullptr) symmetric_release_->Stop();
  watch_.reset();
  const bool failed = had_failed || is_released_;  // the watch may have failed since
  if (failed) {
    // Leaks this memory: freeing it would synchronise the device, which may wait for a failed rank.
    new std::vector<at::Tensor>(std::move(buffers_));
    new at::Tensor(std::move(scratch_));
    new at::Tensor(std::move(inbox_));
    new at::Tensor(std::move(push_state_));
  }
  if (members_) c10d::unregister_process_group(symmetric_group_);
  if (communicator_ == nullptr) return;
  // After a failure, comm_destroy() would wait for failed peers. If the group had been connected,
  // Release() has already started to abort the communicator.
  if (failed) return;
  CatchTorch([&] {
    nccl::comm_destroy(communicator_);
    return absl::OkStatus();
  }).IgnoreError();
}

std::string NcclGroup::Fingerprint() const {
  return absl::StrCat("nccl ", nccl::version(), ", ", ranks().world, ", symmetric up to ",
                      limits_.max_symmetric_bytes, ", pushed up to ", limits_.max_push_bytes,
                      ", fused up to ", limits_.max_fused_bytes, ", one shot up to ",
                      limits_.max_one_shot_bytes, ", copied from ", limits_.min_copied_bytes);
}

bool NcclGroup::IsInBuffer(const at::Tensor& tensor) const {
  const auto* data = static_cast<const char*>(tensor.const_data_ptr());
  return std::any_of(buffers_.begin(), buffers_.end(), [&](const at::Tensor& buffer) {
    const auto* begin = static_cast<const char*>(buffer.const_data_ptr());
    return data >= begin && data + tensor.nbytes() <= begin + buffer.nbytes();
  });
}

absl::Status NcclGroup::CheckOnDevice(const char* argument, const at::Tensor& tensor) const {
  if (tensor.device() == device_) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(argument, " has the wrong device: expected ",
                                                 device_.str(), " or cpu, got ",
                                                 tensor.device().str()));
}

AllReduceWay NcclGroup::WayOf(const at::Tensor& tensor) const {
  return ChooseAllReduce(
      {.bytes = static_cast<int64_t>(tensor.nbytes()),
       .has_kernel = tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16,
       .in_buffer = IsInBuffer(tensor),
       .aligned = reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0,
       .limits = limits_});
}

std::optional<PushAllReduceArgs> NcclGroup::DoPushAllReduce(const at::Tensor& tensor) {
  if (tensor.device() != device_ ||
      static_cast<int64_t>(tensor.nbytes()) > limits_.max_fused_bytes ||
      WayOf(tensor) != AllReduceWay::kPush) {
    return std::nullopt;
  }
  return PushArgs(tensor);
}

absl::Status NcclGroup::DoAllReduce(at::Tensor& tensor) {
  if (tensor.is_cpu()) return host_->AllReduce(tensor);
  REPRISE_RETURN_IF_ERROR(CheckOnDevice("tensor", tensor));
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  const AllReduceWay way = WayOf(tensor);
  if (way == AllReduceWay::kNccl) {
    std::vector<at::Tensor> tensors = {Flat(tensor)};
    return CallNccl([&] {
      nccl::all_reduce(tensors, tensors, static_cast<int32_t>(nccl::ncclRedOp::Sum), {},
                       {communicator_});
    });
  }
  if (way == AllReduceWay::kPush) {
    const c10::cuda::CUDAGuard guard(device_);
    return LaunchPushAllReduce(PushArgs(tensor), c10::cuda::getCurrentCUDAStream(device_.index()));
  }
  if (IsInBuffer(tensor)) {
    CallSymmetric("symm_mem::two_shot_all_reduce_", {Flat(tensor), "sum", symmetric_group_});
    return absl::OkStatus();
  }
  const at::Tensor scratch = scratch_.slice(0, 0, bytes).view(tensor.scalar_type());
  if (way == AllReduceWay::kOneShot) {
    CallSymmetric("symm_mem::one_shot_all_reduce_copy_out",
                  {scratch, Flat(tensor), "sum", symmetric_group_, Flat(tensor)});
    return absl::OkStatus();
  }
  scratch.copy_(Flat(tensor));
  CallSymmetric("symm_mem::two_shot_all_reduce_out",
                {scratch, "sum", symmetric_group_, Flat(tensor)});
  return absl::OkStatus();
}

absl::Status NcclGroup::DoAllGather(const at::Tensor& in, at::Tensor& out) {
  if (in.is_cpu()) return host_->AllGather(in, out);
  REPRISE_RETURN_IF_ERROR(CheckOnDevice("in", in));
  // torch::cuda::nccl assumes one rank per device of this process, so it expects an output as large
  // as the input. NCCL writes `world` inputs from its start.
  std::vector<at::Tensor> from = {Bytes(in)}, to = {Bytes(out).slice(0, 0, in.nbytes())};
  return CallNccl([&] { nccl::all_gather(from, to, {}, {communicator_}); });
}

absl::Status NcclGroup::DoReduceScatter(const at::Tensor& in, at::Tensor& out) {
  if (in.is_cpu()) return host_->ReduceScatter(in, out);
  REPRISE_RETURN_IF_ERROR(CheckOnDevice("in", in));
  // As in DoAllGather(), with input and output exchanged.
  std::vector<at::Tensor> from = {Flat(in).slice(0, 0, out.numel())}, to = {Flat(out)};
  return CallNccl([&] {
    nccl::reduce_scatter(from, to, static_cast<int32_t>(nccl::ncclRedOp::Sum), {}, {communicator_});
  });
}

absl::Status NcclGroup::DoBroadcast(at::Tensor& tensor, int root) {
  if (tensor.is_cpu()) return host_->Broadcast(tensor, root);
  REPRISE_RETURN_IF_ERROR(CheckOnDevice("tensor", tensor));
  at::Tensor bytes = Bytes(tensor);
  if (root == 0) {
    return CallNccl([&] { nccl::broadcast({bytes}, {}, {communicator_}); });
  }
  // torch::cuda::nccl supports only root 0.
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device_.index());
  if (ranks().rank != root) {
    return CallNccl([&] { nccl::recv(bytes, communicator_, stream, root); });
  }
  return CallNccl([&] {
    const nccl::AutoNcclGroup all_at_once;
    for (int rank = 0; rank < ranks().world; ++rank) {
      if (rank != root) nccl::send(bytes, communicator_, stream, rank);
    }
  });
}

absl::Status NcclGroup::DoBarrier() { return host_->Barrier(); }

absl::StatusOr<at::Tensor> NcclGroup::DoNewBuffer(at::IntArrayRef sizes, at::ScalarType dtype,
                                                  at::Device device) {
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  if (device.is_cpu() || limits_.max_symmetric_bytes == 0) return at::zeros(sizes, options);
  const c10::cuda::CUDAGuard guard(device_);
  const int64_t numel = c10::multiply_integers(sizes);
  const auto bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
  // Larger tensors use NCCL, which does not need symmetric memory.
  if (bytes == 0 || bytes > limits_.max_symmetric_bytes) return at::zeros(sizes, options);
  // The barrier fails and names a rank that does not join. The rendezvous would wait for it.
  REPRISE_RETURN_IF_ERROR(host_->Barrier());
  REPRISE_ASSIGN_OR_RETURN(const at::Tensor memory, NewSymmetric((bytes + 15) / 16 * 16));
  buffers_.push_back(memory);
  return memory.slice(0, 0, bytes).view(dtype).view(sizes);
}

}  // namespace reprise

#endif  // REPRISE_WITH_CUDA && REPRISE_WITH_C10D
