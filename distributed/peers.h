// Rendezvous of the ranks in a store, and detection of failed ranks.
//
// Meet() connects the ranks: each rank publishes its world size, configuration and process, and
// compares them with the data of all other ranks. If a later call to a peer fails, the rank calls
// Explain() to find the rank at fault. Each rank that detects a failure reports it in the store.
// The ranks that do not report have failed. The first finding is kept in the store, and all ranks
// return it.
//
// Thread safety: not thread-safe before Meet() has returned. After that, any thread may call, if
// the store is thread-safe. Every function blocks the host, at most until a timeout.

#ifndef REPRISE_DISTRIBUTED_PEERS_H_
#define REPRISE_DISTRIBUTED_PEERS_H_

#ifdef REPRISE_WITH_C10D

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "reprise/distributed/ranks.h"

namespace reprise {

// The argument `what` of Explain() if the rank is waiting for device work rather than in a call.
inline constexpr char kDeviceWork[] = "device work";

struct PeersOptions {
  // Time within which every rank must reach the rendezvous.
  absl::Duration timeout = absl::Seconds(60);
  // Grace period after a failure: the time that other ranks have to detect it, too.
  absl::Duration grace = absl::Seconds(2);
  // A text that must be equal on all ranks, such as a fingerprint of model and options.
  std::string config = {};
  // Whether this process serves the store. If it does, it waits after a failure until the other
  // ranks have read the finding, at most for `grace`.
  bool serves_store = false;
};

class Peers {
 public:
  // Opens the store at `place.store`. Errors: DeadlineExceeded if the store does not answer in
  // time. Unavailable if its port is in use, or if its file cannot be opened. InvalidArgument if
  // the address is malformed.
  static absl::StatusOr<c10::intrusive_ptr<c10d::Store>> OpenStore(const RankPlace& place,
                                                                   absl::Duration timeout);

  // Performs the rendezvous with the other ranks in `store`. On failure, every rank that took part
  // returns the same error:
  //   DeadlineExceeded    ranks that did not join in time
  //   InvalidArgument     a rank with a different world size, or a rank that joined twice
  //   FailedPrecondition  a rank with a different config: both are in the message
  static absl::StatusOr<std::unique_ptr<Peers>> Meet(c10::intrusive_ptr<c10d::Store> store,
                                                     const Ranks& ranks,
                                                     const PeersOptions& options);

  // Returns the peers of a subgroup: the ranks `members` of the world, in this order. This rank
  // must be a member. Both objects share the store, its reports and the processes, so a failure
  // found by one group is the failure of all. In a call of the subgroup, only its members can be
  // reported as late.
  std::unique_ptr<Peers> Part(const std::vector<int>& members) const;

  // Explains why the collective call `what` failed on this rank with `error`. Blocks for about
  // `grace`. Blocks for up to `grace` longer if ranks failed in calls of different groups, and
  // again if this process serves the store.
  //   Unavailable       a rank has ended, or has called Fail()
  //   DeadlineExceeded  a running rank did not reach the call in time, or is in kDeviceWork while
  //                     all other ranks wait in one call
  //   Internal          every rank reports a failure, of this call or of another: `error`
  absl::Status Explain(const std::string& what, const std::string& error);

  // Reports to the other ranks why this rank cannot continue.
  void Fail(const absl::Status& why);
  // Call after Fail(). If this process serves the store, blocks until the other ranks have read the
  // report, at most for `grace`: the store ends with this process.
  void AwaitHeard();

  // Returns a failure that another rank has detected or reported, or OK. Costs up to two requests
  // to the store if there is no failure.
  absl::Status Reported();

  // Returns Reported(), or the failure of a rank whose process has ended without calling Leave().
  // Detects only processes on this machine. Once rank 0 has left, the store may have ended with it:
  // if the store does not answer then, returns OK.
  absl::Status Lost();

  // Announces that this process may end from now on without having failed. If it serves the store,
  // blocks until all ranks of the group have left, at most for `grace`.
  void Leave();

  // The rank and world size within the group.
  const Ranks& ranks() const { return group_; }
  // The suffix of the group's calls and of some of its keys in the store: "" for all ranks, or " of
  // ranks 0, 2", for example.
  const std::string& name() const { return name_; }
  // Whether all ranks run on this machine.
  bool one_host() const { return one_host_; }
  c10::intrusive_ptr<c10d::Store> store() const { return store_; }

 private:
  // The process of a rank, as published in the store.
  struct Process {
    int world = 0;
    pid_t pid = 0;
    std::string start;  // start time from /proc, because process numbers are reused
    std::string host;   // machine and PID namespace
    std::string config;
  };

  Peers(c10::intrusive_ptr<c10d::Store> store, const Ranks& ranks, const PeersOptions& options)
      : store_(std::move(store)),
        ranks_(ranks),
        options_(options),
        group_(ranks),
        members_(ranks.world),
        processes_(ranks.world) {
    std::iota(members_.begin(), members_.end(), 0);
  }

  Process Own() const;
  std::string Describe(int rank) const;
  // Whether the process of `rank` has ended. False for processes on other machines.
  bool HasEnded(int rank) const;

  absl::Status MeetAll();
  absl::Status Compare(int rank) const;
  absl::Status FindCulprit(const std::string& what, const std::string& error);
  // Stores `finding` if it is the first finding of all ranks; `num_readers` other ranks are
  // expected to read it. Returns the stored finding.
  absl::Status Settle(const absl::Status& finding, int num_readers, absl::Duration patience);
  // Returns the stored finding, or nullopt.
  std::optional<absl::Status> Settled();
  // If this process serves the store, blocks until all readers have read the finding, at most for
  // `patience`.
  void Linger(absl::Duration patience);
  // Returns the failure of a rank whose process has ended: Lost() without the reports of other
  // ranks.
  absl::Status Ended();
  // Runs `body`, which accesses the store. Converts exceptions of the store to Unavailable.
  absl::Status Ask(absl::FunctionRef<absl::Status()> body);

  c10::intrusive_ptr<c10d::Store> store_;
  Ranks ranks_;  // in the world; used in all messages and keys
  PeersOptions options_;
  Ranks group_;
  std::vector<int> members_;  // the group's ranks in the world
  std::string name_;
  std::vector<Process> processes_;  // by rank of the world
  bool one_host_ = false;
  std::atomic<bool> first_has_left_ = false;   // rank 0 has left
  std::atomic<bool> store_has_ended_ = false;  // the store has stopped answering after that
};

}  // namespace reprise

#endif  // REPRISE_WITH_C10D

#endif  // REPRISE_DISTRIBUTED_PEERS_H_
