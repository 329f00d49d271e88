// The form over GPUs: NCCL by LibTorch's torch::cuda::nccl, on a communicator of its own, and sums
// through LibTorch's symmetric memory. Private to the folder. Only in builds with CUDA.
//
// Calls go to LibTorch's current stream and nowhere else: no side stream, no events and no thread
// that asks for them, as ProcessGroupNCCL has. So a call under capture is a few nodes of the graph.
// A thread watches the other ranks' processes; when one has failed, it ends what the device waits
// for: NCCL's kernels by ncclCommAbort(), those of symmetric memory by their signals.

#ifndef REPRISE_DISTRIBUTED_NCCL_GROUP_H_
#define REPRISE_DISTRIBUTED_NCCL_GROUP_H_

#if defined(REPRISE_WITH_CUDA) && defined(REPRISE_WITH_C10D)

#include <torch/custom_class.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "reprise/distributed/all_reduce_choice.h"
#include "reprise/distributed/collectives.h"
#include "reprise/distributed/gloo_group.h"
#include "reprise/distributed/peer_watch.h"
#include "reprise/distributed/symmetric_release.h"

namespace reprise {

class NcclGroup : public Collectives {
 public:
  // Joins `host`'s ranks on their devices. Host tensors, the barrier and failures remain with
  // `host`. Where not every rank reaches the memory of every other, or limits.max_symmetric_bytes
  // is 0, all sums go through NCCL.
  // `timeout`: of AwaitDevice(), and until all ranks must have joined.
  static absl::StatusOr<std::unique_ptr<Collectives>> Connect(std::unique_ptr<GlooGroup> host,
                                                              at::Device device,
                                                              const AllReduceLimits& limits,
                                                              absl::Duration timeout);
  ~NcclGroup() override;

  int64_t max_buffer_bytes() const override { return limits_.max_symmetric_bytes; }
  std::string Fingerprint() const override;
  absl::Status status() const override;
  void Fail(const absl::Status& why) override;
  absl::Status AwaitDevice(absl::FunctionRef<absl::Status()> wait,
                           std::optional<absl::Duration> limit) override;

 protected:
  absl::Status DoAllReduce(at::Tensor& tensor) override;
  std::optional<PushSumArgs> DoPushedSum(const at::Tensor& tensor) override;
  absl::Status DoAllGather(const at::Tensor& in, at::Tensor& out) override;
  absl::Status DoReduceScatter(const at::Tensor& in, at::Tensor& out) override;
  absl::Status DoBroadcast(at::Tensor& tensor, int root) override;
  absl::Status DoBarrier() override;
  absl::StatusOr<at::Tensor> DoNewBuffer(at::IntArrayRef sizes, at::ScalarType dtype,
                                         at::Device device) override;

 private:
  NcclGroup(std::unique_ptr<GlooGroup> host, at::Device device)
      : Collectives(host->ranks()), host_(std::move(host)), device_(device) {}

  absl::Status ConnectNccl(absl::Duration timeout);
  absl::Status ConnectSymmetric(const AllReduceLimits& limits);
  // On all ranks: whether each of them reaches the device memory of each other.
  absl::StatusOr<bool> AllReachAll();
  // Memory that the peers reach; collective.
  absl::StatusOr<at::Tensor> NewSymmetric(int64_t bytes);
  // Memory of all ranks into which each pushes its summands; collective.
  absl::Status ConnectInboxes();
  AllReduceWay WayOf(const at::Tensor& tensor) const;
  PushSumArgs PushArgs(const at::Tensor& tensor) const;
  // Calls NCCL unless the group has failed.
  absl::Status CallNccl(absl::FunctionRef<void()> call);
  // On the thread of the watch: ends what the device waits for.
  void Release();
  bool IsInBuffer(const at::Tensor& tensor) const;
  // That a tensor which is not on the host is on this rank's device.
  absl::Status CheckOnDevice(const char* argument, const at::Tensor& tensor) const;

  std::unique_ptr<GlooGroup> host_;
  at::Device device_;
  void* communicator_ = nullptr;
  std::timed_mutex calls_nccl_;  // held by who calls NCCL, or aborts
  bool is_released_ = false;     // written on the thread of the watch, read when that has ended
  std::unique_ptr<SymmetricRelease> symmetric_release_;
  std::string symmetric_group_;                           // its name, unique in the process
  c10::intrusive_ptr<torch::CustomClassHolder> members_;  // who is in it, as LibTorch wants to know
  AllReduceLimits limits_ = {.max_symmetric_bytes = 0};
  at::Tensor inbox_;            // u8, symmetric (distributed/push_sum.h)
  at::Tensor push_state_;       // [kPushStateSize] int32
  std::vector<void*> inboxes_;  // of all ranks, as mapped here
  at::Tensor scratch_;  // [max_symmetric_bytes] u8, symmetric: for sums of tensors elsewhere
  std::vector<at::Tensor> buffers_;
  std::unique_ptr<PeerWatch> watch_;  // the last: its thread uses the others
};

}  // namespace reprise

#endif  // REPRISE_WITH_CUDA && REPRISE_WITH_C10D

#endif  // REPRISE_DISTRIBUTED_NCCL_GROUP_H_
