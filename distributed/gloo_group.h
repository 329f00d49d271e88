// The implementation for host memory, over LibTorch's ProcessGroupGloo. Private to the folder.

#ifndef REPRISE_DISTRIBUTED_GLOO_GROUP_H_
#define REPRISE_DISTRIBUTED_GLOO_GROUP_H_

#ifdef REPRISE_WITH_C10D

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "reprise/distributed/collectives.h"
#include "reprise/distributed/peers.h"

namespace c10d {
class Backend;
}

namespace reprise {

// Collectives of tensors in host memory. See distributed/collectives.h for the contract.
class GlooGroup : public Collectives {
 public:
  // Connects to all peers. `timeout` limits the connection and each later call.
  static absl::StatusOr<std::unique_ptr<GlooGroup>> Connect(std::unique_ptr<Peers> peers,
                                                            absl::Duration timeout);
  // Connects a subgroup: the ranks `members`, in this order. This rank must be a member, and every
  // member makes the call. REQUIRES: this group contains all ranks. If this group or one of its
  // subgroups fails, all of them fail and close their connections, so that ranks which wait for
  // this rank in another group fail, too. All groups of a process must be used by one thread at a
  // time.
  absl::StatusOr<std::unique_ptr<GlooGroup>> ConnectPart(const std::vector<int>& members,
                                                         absl::Duration timeout);
  ~GlooGroup() override;

  std::string Fingerprint() const override;
  absl::Status status() const override { return failure_; }
  void Fail(const absl::Status& why) override;

  Peers& peers() { return *peers_; }

  // Handles a failed call: determines the rank at fault through the peers, and keeps the result as
  // status().
  absl::Status FailedCall(const std::string& what, const std::string& error);

 protected:
  absl::Status DoAllReduce(at::Tensor& tensor) override;
  absl::Status DoAllGather(const at::Tensor& in, at::Tensor& out) override;
  absl::Status DoReduceScatter(const at::Tensor& in, at::Tensor& out) override;
  absl::Status DoBroadcast(at::Tensor& tensor, int root) override;
  absl::Status DoBarrier() override;

 private:
  explicit GlooGroup(std::unique_ptr<Peers> peers);

  // Creates the process group.
  absl::Status ConnectGloo(absl::Duration timeout);

  // Closes the connections of all groups of this process. Ranks that wait for this rank then fail
  // immediately and report what they detected.
  void CloseAll();
  // Sets `failure` as the status of all groups of this process that have not failed yet.
  void KeepForAll(const absl::Status& failure);

  // Runs `body`, the collective `name`. Converts an exception to a Status through Peers::Explain().
  absl::Status Call(const char* name, absl::FunctionRef<void()> body);

  std::unique_ptr<Peers> peers_;
  c10::intrusive_ptr<c10d::Backend> group_;
  int64_t num_calls_ = 0;
  absl::Status failure_;
  // The group of all ranks and its subgroups in this process, including this group. Shared by all
  // of them.
  std::shared_ptr<std::vector<GlooGroup*>> groups_ = std::make_shared<std::vector<GlooGroup*>>();
};

}  // namespace reprise

#endif  // REPRISE_WITH_C10D

#endif  // REPRISE_DISTRIBUTED_GLOO_GROUP_H_
