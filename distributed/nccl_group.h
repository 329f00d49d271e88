// The implementation for GPUs: NCCL through LibTorch's torch::cuda::nccl, with a separate
// communicator, and all-reduces in LibTorch's symmetric memory. Private to the folder. Only in
// builds with CUDA.
//
// Calls use only LibTorch's current stream. Unlike ProcessGroupNCCL, they use no side streams, no
// events and no thread that queries events, so a captured call adds only a few nodes to the graph.
// A watch thread monitors the processes of the other ranks. If one fails, it ends the work that the
// device waits for: NCCL's kernels by ncclCommAbort(), symmetric-memory kernels by writing their
// signals.

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
  // Connects the ranks of `host` on their devices. `host` keeps host tensors, the barrier and
  // failures. All sums use NCCL if some rank cannot access the memory of another rank, or if
  // limits.max_symmetric_bytes is 0. `timeout` is the default limit of AwaitDevice(), and the time
  // within which all ranks must connect.
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
  std::optional<PushAllReduceArgs> DoPushAllReduce(const at::Tensor& tensor) override;
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
  // Returns, with the same result on all ranks, whether every rank can access the device memory of
  // every other rank.
  absl::StatusOr<bool> AllReachAll();
  // Allocates memory that the peers can access. Collective.
  absl::StatusOr<at::Tensor> NewSymmetric(int64_t bytes);
  // Allocates the inboxes into which each rank pushes its data. Collective.
  absl::Status ConnectInboxes();
  AllReduceWay WayOf(const at::Tensor& tensor) const;
  PushAllReduceArgs PushArgs(const at::Tensor& tensor) const;
  // Calls NCCL unless the group has failed.
  absl::Status CallNccl(absl::FunctionRef<void()> call);
  // Ends the work that the device waits for. Runs on the watch thread.
  void Release();
  bool IsInBuffer(const at::Tensor& tensor) const;
  // Checks that a tensor which is not in host memory is on this rank's device.
  absl::Status CheckOnDevice(const char* argument, const at::Tensor& tensor) const;

  std::unique_ptr<GlooGroup> host_;
  at::Device device_;
  void* communicator_ = nullptr;
  std::timed_mutex calls_nccl_;  // held during NCCL calls and the start of the abort
  bool is_released_ = false;     // written on the watch thread, read after it has ended
  std::unique_ptr<SymmetricRelease> symmetric_release_;
  std::string symmetric_group_;                           // the group's name, unique in the process
  c10::intrusive_ptr<torch::CustomClassHolder> members_;  // the group, as registered with LibTorch
  AllReduceLimits limits_ = {.max_symmetric_bytes = 0};
  at::Tensor inbox_;            // u8, symmetric (distributed/push_all_reduce.h)
  at::Tensor push_state_;       // [kPushStateSize] int32
  std::vector<void*> inboxes_;  // one per rank, mapped into this process
  at::Tensor scratch_;  // u8, symmetric, max_symmetric_bytes; for tensors in ordinary memory
  std::vector<at::Tensor> buffers_;
  std::unique_ptr<PeerWatch> watch_;  // last member, because its thread uses the members above
};

}  // namespace reprise

#endif  // REPRISE_WITH_CUDA && REPRISE_WITH_C10D

#endif  // REPRISE_DISTRIBUTED_NCCL_GROUP_H_
