// The form over host memory: LibTorch's ProcessGroupGloo. Private to the folder.

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

// Collectives of tensors in host memory. Contract: distributed/collectives.h.
class GlooGroup : public Collectives {
 public:
  // Connects with all peers; `timeout` is of that and of each call.
  static absl::StatusOr<std::unique_ptr<GlooGroup>> Connect(std::unique_ptr<Peers> peers,
                                                            absl::Duration timeout);
  // A group of some of these ranks, this one among them, which `members` names in their order; each of
  // them makes the call. REQUIRES: this is of all ranks. When this group, or one of its parts, has
  // failed, all have, and their connections are closed: the failure goes on to ranks that wait for
  // this one in other groups. All groups are used by one thread at a time.
  absl::StatusOr<std::unique_ptr<GlooGroup>> ConnectPart(const std::vector<int>& members,
                                                         absl::Duration timeout);
  ~GlooGroup() override;

  std::string Fingerprint() const override;
  absl::Status status() const override { return failure_; }
  void Fail(const absl::Status& why) override;

  Peers& peers() { return *peers_; }

  // A call that failed: asks the peers whose fault it was, and keeps that as status().
  absl::Status FailedCall(const std::string& what, const std::string& error);

 protected:
  absl::Status DoAllReduce(at::Tensor& tensor) override;
  absl::Status DoAllGather(const at::Tensor& in, at::Tensor& out) override;
  absl::Status DoReduceScatter(const at::Tensor& in, at::Tensor& out) override;
  absl::Status DoBroadcast(at::Tensor& tensor, int root) override;
  absl::Status DoBarrier() override;

 private:
  explicit GlooGroup(std::unique_ptr<Peers> peers);

  // Makes the process group.
  absl::Status ConnectGloo(absl::Duration timeout);

  // Closes the connections of all groups of this process, so that ranks that wait for this one fail at
  // once and tell what they know.
  void CloseAll();
  // Keeps a failure for all groups of this process.
  void KeepForAll(const absl::Status& failure);

  // Runs `body`, the collective called `name`; what it throws is explained by the peers.
  absl::Status Call(const char* name, absl::FunctionRef<void()> body);

  std::unique_ptr<Peers> peers_;
  c10::intrusive_ptr<c10d::Backend> group_;
  int64_t num_calls_ = 0;
  absl::Status failure_;
  // The groups of this process that have come of one another, this one among them.
  std::shared_ptr<std::vector<GlooGroup*>> groups_ = std::make_shared<std::vector<GlooGroup*>>();
};

}  // namespace reprise

#endif  // REPRISE_WITH_C10D

#endif  // REPRISE_DISTRIBUTED_GLOO_GROUP_H_
