// What ranks say to each other: sums, gathers and broadcasts of tensors, over all ranks of a group.
//
// A rank is a process with one device. Every rank holds one Collectives and makes the same calls in
// the same order with tensors of the same sizes and dtypes. Three forms exist:
//
//   OneRank()        a world of one: copies where a result needs one, nothing else
//   ConnectRanks()   on CPUs: LibTorch's process group over gloo (distributed/process_group.h)
//   ConnectRanks()   on GPUs: NCCL, and LibTorch's symmetric memory where that is quicker; host
//                    tensors over gloo
//
// Device tensors: a call enqueues its work on LibTorch's current stream and returns. AllReduce,
// AllGather, ReduceScatter and Broadcast may be captured in a graph. Before the first capture each
// kind of call has to have run once on the stream of the capture (as a warm-up does), the stream
// has been awaited, and Barrier() has been passed. Two graphs with collectives of one group never
// run at once. Every rank replays the same graphs in the same order.
//
// Host tensors: a call returns when its result is there; it cannot be captured.
//
// Results are bitwise equal on all ranks. For a given world, size and dtype, sums do not depend on
// the run.
//
// Errors: InvalidArgument names an argument that no rank could serve (nothing is sent, and the
// peers then wait for this rank until their timeout). Unavailable: a rank has ended;
// DeadlineExceeded: a rank did not come in time; both name the rank and the cause. From the first
// failure that another rank sees, the group is of no more use, and all further calls return the
// same Status.
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
#include "reprise/distributed/push_sum_args.h"
#include "reprise/distributed/ranks.h"

namespace reprise {

class Collectives {
 public:
  explicit Collectives(const Ranks& ranks) : ranks_(ranks) {}
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;
  virtual ~Collectives() = default;

  const Ranks& ranks() const { return ranks_; }

  // Replaces `tensor` on every rank by the sum over the ranks' tensors, computed in its dtype
  // (float32 within a sum of bfloat16 where the form can). Any shape; contiguous; f32, f16, bf16,
  // i32 or i64.
  absl::Status AllReduce(at::Tensor& tensor);

  // For a kernel that does the sum of `tensor` itself, and more in the same launch
  // (distributed/push_lines.cuh): what it needs, or nullopt where AllReduce(tensor) would take another
  // way, which the caller then calls. One of the two is enqueued, in the order of all calls; `tensor`
  // need not become the sum. Other ranks may do the same sum by AllReduce(). Errors: those of
  // AllReduce().
  absl::StatusOr<std::optional<PushSumArgs>> PushedSum(const at::Tensor& tensor);

  // Copies `in` of all ranks to `out` of all ranks: out[r] = in of rank r. in: [...], out: [world,
  // ...], the same dtype (any) and device, both contiguous, not overlapping (or `in` is out[rank]
  // itself).
  absl::Status AllGather(const at::Tensor& in, at::Tensor& out);

  // Gives rank r the sum over the ranks' in[r]. in: [world, ...], out: [...]; dtypes as AllReduce;
  // contiguous, not overlapping. `in` is unchanged.
  absl::Status ReduceScatter(const at::Tensor& in, at::Tensor& out);

  // Replaces `tensor` on every rank by that of rank `root`. Any shape and dtype; contiguous.
  absl::Status Broadcast(at::Tensor& tensor, int root);

  // Returns when every rank has called it. The host waits; device work is not awaited. Not
  // capturable.
  absl::Status Barrier();

  // Zeros in memory of `device` that AllReduce sums without copying it first (on GPUs: symmetric
  // memory). Every rank calls it, with the same arguments; not under capture. The memory lives as
  // long as the tensor and this object.
  absl::StatusOr<at::Tensor> NewBuffer(at::IntArrayRef sizes, at::ScalarType dtype,
                                       at::Device device);

  // Up to how many bytes a tensor of NewBuffer() is summed more quickly than one elsewhere. 0: none
  // is, and ordinary memory does as well.
  virtual int64_t max_buffer_bytes() const { return 0; }

  // What a captured graph has fixed: the form, the world and the sizes at which algorithms change.
  // For the fingerprint of graphs.
  virtual std::string Fingerprint() const = 0;

  // OK, or the first failure of the group that this rank knows of.
  virtual absl::Status status() const { return absl::OkStatus(); }

  // Runs `wait`, in which the host waits for device work that has collectives of this group, and
  // returns its result; if the group has failed by then, status(). The failure of another rank ends
  // the wait: as soon as its process has ended (on the same machine) or it has called Fail(), or
  // when `limit` has passed (nullopt: the timeout of host calls), it is explained as that of a host
  // call is, and device work that waits for the rank is released, with results of no meaning.
  // Calls may nest; the inner limit counts. Costs two locks. Forms without device work call `wait`.
  virtual absl::Status AwaitDevice(absl::FunctionRef<absl::Status()> wait,
                                   std::optional<absl::Duration> limit = std::nullopt) {
    static_cast<void>(limit);
    return wait();
  }

  // Tells the other ranks that this one can go on no more, and why: their calls then fail with
  // Unavailable, "rank R: <why>", as all calls here do. Without it they find out by the end of the
  // process, or by their timeout. A process that serves the ranks' store waits until they have heard it,
  // at most for the grace. REQUIRES: `why` is not OK.
  // A form without other ranks to tell does nothing.
  virtual void Fail(const absl::Status& why) { static_cast<void>(why); }

 protected:
  // The arguments are checked. The default of DoNewBuffer is ordinary memory, that of DoPushedSum
  // nullopt.
  virtual absl::Status DoAllReduce(at::Tensor& tensor) = 0;
  virtual std::optional<PushSumArgs> DoPushedSum(const at::Tensor& tensor);
  virtual absl::Status DoAllGather(const at::Tensor& in, at::Tensor& out) = 0;
  virtual absl::Status DoReduceScatter(const at::Tensor& in, at::Tensor& out) = 0;
  virtual absl::Status DoBroadcast(at::Tensor& tensor, int root) = 0;
  virtual absl::Status DoBarrier() = 0;
  virtual absl::StatusOr<at::Tensor> DoNewBuffer(at::IntArrayRef sizes, at::ScalarType dtype,
                                                 at::Device device);

 private:
  Ranks ranks_;
};

// The form of a world of one: any device, every call capturable but Barrier.
std::unique_ptr<Collectives> OneRank();

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_COLLECTIVES_H_
