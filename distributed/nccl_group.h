// The form over GPUs: NCCL by LibTorch's torch::cuda::nccl, on a communicator of its own, and sums
// through LibTorch's symmetric memory. Private to the folder. Only in builds with CUDA.
//
// Calls go to LibTorch's current stream and nowhere else: no side stream, no events and no thread
// that asks for them, as ProcessGroupNCCL has. So a call under capture is a few nodes of the graph.

#ifndef DISTRIBUTED_NCCL_GROUP_H_
#define DISTRIBUTED_NCCL_GROUP_H_

#if defined(REPRISE_WITH_CUDA) && defined(REPRISE_WITH_C10D)

#include <torch/custom_class.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "distributed/all_reduce_choice.h"
#include "distributed/collectives.h"
#include "distributed/gloo_group.h"

namespace reprise {

class NcclGroup : public Collectives {
 public:
  // Joins `host`'s ranks on their devices. Host tensors, the barrier and failures remain with
  // `host`. Where not every rank reaches the memory of every other, or limits.max_symmetric_bytes
  // is 0, all sums go through NCCL.
  static absl::StatusOr<std::unique_ptr<Collectives>> Connect(std::unique_ptr<GlooGroup> host,
                                                              at::Device device,
                                                              const AllReduceLimits& limits);
  ~NcclGroup() override;

  std::string Fingerprint() const override;
  absl::Status status() const override { return host_->status(); }
  void Fail(const absl::Status& why) override { host_->Fail(why); }

 protected:
  absl::Status DoAllReduce(at::Tensor& tensor) override;
  absl::Status DoAllGather(const at::Tensor& in, at::Tensor& out) override;
  absl::Status DoReduceScatter(const at::Tensor& in, at::Tensor& out) override;
  absl::Status DoBroadcast(at::Tensor& tensor, int root) override;
  absl::Status DoBarrier() override;
  absl::StatusOr<at::Tensor> DoNewBuffer(at::IntArrayRef sizes, at::ScalarType dtype,
                                         at::Device device) override;

 private:
  NcclGroup(std::unique_ptr<GlooGroup> host, at::Device device)
      : Collectives(host->ranks()), host_(std::move(host)), device_(device) {}

  absl::Status ConnectNccl();
  absl::Status ConnectSymmetric(const AllReduceLimits& limits);
  // On all ranks: whether each of them reaches the device memory of each other.
  absl::StatusOr<bool> AllReachAll();
  // Memory that the peers reach; collective.
  at::Tensor NewSymmetric(int64_t bytes);
  bool IsInBuffer(const at::Tensor& tensor) const;
  // That a tensor which is not on the host is on this rank's device.
  absl::Status CheckOnDevice(const char* argument, const at::Tensor& tensor) const;

  std::unique_ptr<GlooGroup> host_;
  at::Device device_;
  void* communicator_ = nullptr;
  std::string symmetric_group_;                           // its name, unique in the process
  c10::intrusive_ptr<torch::CustomClassHolder> members_;  // who is in it, as LibTorch wants to know
  AllReduceLimits limits_ = {.max_symmetric_bytes = 0};
  at::Tensor scratch_;  // [max_symmetric_bytes] u8, symmetric: for sums of tensors elsewhere
  std::vector<at::Tensor> buffers_;
};

}  // namespace reprise

#endif  // REPRISE_WITH_CUDA && REPRISE_WITH_C10D

#endif  // DISTRIBUTED_NCCL_GROUP_H_
