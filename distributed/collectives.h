// Collective operations over the ranks of a group: sum, gather and broadcast of tensors.
//
// A rank is a process with one device. Every rank has one Collectives and makes the same calls in
// the same order, with tensors of the same sizes and dtypes. There are three implementations:
//
//   OneRank()        a world of one rank: copies the input if the result needs a copy
//   ConnectRanks()   on CPUs: LibTorch's process group over gloo (distributed/process_group.h)
//   ConnectRanks()   on GPUs: NCCL, and LibTorch's symmetric memory if that is faster; host
//                    tensors over gloo
//
// Device tensors: a call enqueues its work on LibTorch's current stream and returns. AllReduce,
// AllGather, ReduceScatter and Broadcast may be captured in a graph. Before the first capture, run
// each kind of call once on the capturing stream (a warm-up does this), synchronise the stream and
// call Barrier(). Two graphs with collectives of one group must not run at the same time. Every
// rank replays the same graphs in the same order.
//
// Host tensors: a call returns when its result is complete. It cannot be captured.
//
// Results are bitwise identical on all ranks. For a given world, size and dtype, sums are
// reproducible from run to run.
//
// Errors: InvalidArgument names an argument that violates the contract. Nothing is sent then, so
// the other ranks wait for this rank until their timeout. Unavailable if a rank has ended.
// DeadlineExceeded if a rank did not reach the call in time. Both name the rank and the cause.
// After the first failure that involves another rank, the group cannot be used any more: all
// further calls return the same Status.
//
// Thread safety: one thread at a time.

#ifndef REPRISE_DISTRIBUTED_COLLECTIVES_H_
#define REPRISE_DISTRIBUTED_COLLECTIVES_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "reprise/distributed/push_all_reduce_args.h"
#include "reprise/distributed/ranks.h"

namespace reprise {

class Collectives {
 public:
  explicit Collectives(const Ranks& ranks) : ranks_(ranks) {}
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;
  virtual ~Collectives() = default;

  const Ranks& ranks() const { return ranks_; }

  // Replaces `tensor` on every rank with the sum over all ranks, computed in the dtype of `tensor`.
  // Sums of bfloat16 are accumulated in float32 if the implementation supports it. Any shape;
  // contiguous; f32, f16, bf16, i32 or i64.
  absl::Status AllReduce(at::Tensor& tensor);

  // Returns the arguments with which the caller's kernel can perform the all-reduce of `tensor`
  // itself, together with other work in the same launch (distributed/push_lines.cuh). Returns
  // nullopt if AllReduce(tensor) would use another algorithm; then call AllReduce(). Enqueue
  // exactly one of the two, in the order of all calls. The kernel need not store the sum in
  // `tensor`. Other ranks may use AllReduce() for the same sum. Errors: as AllReduce().
  absl::StatusOr<std::optional<PushAllReduceArgs>> PushAllReduce(const at::Tensor& tensor);

  // Gathers `in` of all ranks on every rank: out[r] = `in` of rank r. in: [...]. out: [world, ...],
  // with the same dtype (any) and device. Both are contiguous and must not overlap, except that
  // `in` may be out[rank].
  absl::Status AllGather(const at::Tensor& in, at::Tensor& out);

  // Stores on rank r the sum of in[r] over all ranks in `out`. in: [world, ...]; out: [...]; dtypes
  // as for AllReduce(). Both are contiguous and must not overlap. Does not change `in`.
  absl::Status ReduceScatter(const at::Tensor& in, at::Tensor& out);

  // Replaces `tensor` on every rank with the tensor of rank `root`. Any shape and dtype;
  // contiguous.
  absl::Status Broadcast(at::Tensor& tensor, int root);

  // Blocks the host until every rank has called Barrier(). Does not wait for device work. Cannot be
  // captured.
  absl::Status Barrier();

  // Allocates a zeroed tensor on `device` that AllReduce() sums without copying it first (on GPUs:
  // in symmetric memory). Every rank calls it with the same arguments, and not during capture. The
  // memory is valid as long as both the tensor and this object exist.
  absl::StatusOr<at::Tensor> NewBuffer(at::IntArrayRef sizes, at::ScalarType dtype,
                                       at::Device device);

  // Maximum size in bytes for which AllReduce() of a NewBuffer() tensor is faster than of another
  // tensor. 0: there is no such size, and ordinary memory serves as well.
  virtual int64_t max_buffer_bytes() const { return 0; }

  // The properties that are fixed in captured graphs: the implementation, the world and the size
  // limits of the algorithms. Part of a graph's fingerprint.
  virtual std::string Fingerprint() const = 0;

  // OK, or the first failure of the group that this rank has detected.
  virtual absl::Status status() const { return absl::OkStatus(); }

  // Runs `wait`, which blocks on device work that contains collectives of this group. Returns its
  // result, or status() if the group has failed. A failure of another rank ends the wait if that
  // rank's process has ended (on the same machine), if it has called Fail(), or if `limit` has
  // passed (nullopt: the timeout of host calls). The failure is then reported like the failure of a
  // host call. Device work that waits for the rank is released; its results are undefined. Calls
  // may nest; the inner limit applies. Costs two mutex locks. Implementations without device work
  // only call `wait`.
  virtual absl::Status AwaitDevice(absl::FunctionRef<absl::Status()> wait,
                                   std::optional<absl::Duration> limit = std::nullopt) {
    static_cast<void>(limit);
    return wait();
  }

  // Reports to the other ranks that this rank cannot continue, because of `why`. Every call of the
  // other ranks then fails with Unavailable, and its message contains this rank and the text of
  // `why`. Calls of this rank fail with `why`. Without Fail(), the other ranks detect the failure
  // only when this process ends, or at their timeout. If this process serves the ranks' store,
  // blocks until the other ranks have read the report, at most for the grace period. REQUIRES:
  // `why` is not OK. The default does nothing; OneRank() keeps `why` as its status.
  virtual void Fail(const absl::Status& why) { static_cast<void>(why); }

 protected:
  // The arguments have been checked. By default, DoNewBuffer() allocates ordinary memory and
  // DoPushAllReduce() returns nullopt.
  virtual absl::Status DoAllReduce(at::Tensor& tensor) = 0;
  virtual std::optional<PushAllReduceArgs> DoPushAllReduce(const at::Tensor& tensor);
  virtual absl::Status DoAllGather(const at::Tensor& in, at::Tensor& out) = 0;
  virtual absl::Status DoReduceScatter(const at::Tensor& in, at::Tensor& out) = 0;
  virtual absl::Status DoBroadcast(at::Tensor& tensor, int root) = 0;
  virtual absl::Status DoBarrier() = 0;
  virtual absl::StatusOr<at::Tensor> DoNewBuffer(at::IntArrayRef sizes, at::ScalarType dtype,
                                                 at::Device device);

 private:
  Ranks ranks_;
};

// Returns the implementation for a world of one rank. Supports any device. Every call except
// Barrier() and NewBuffer() can be captured.
std::unique_ptr<Collectives> OneRank();

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_COLLECTIVES_H_
