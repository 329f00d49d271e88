// How ranks find each other in a store, and find out which of them has failed.
//
// Meet() joins the ranks: each publishes its world, configuration and process, and compares those
// of all others with its own. After it, a rank whose call to a peer fails asks Explain() whose
// fault that was. Each rank that sees a failure reports it in the store; the ranks that do not
// report are those that have failed. One rank's finding is kept in the store and returned by all.
//
// Thread safety: none before Meet() has returned; then any thread may call, as the store allows it.
// Every function blocks the host, at most until a timeout.

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

// What Explain() is asked about by a rank that waits for its device and not in a call.
inline constexpr char kDeviceWork[] = "device work";

struct PeersOptions {
  // Of meeting: until when every rank must have come.
  absl::Duration timeout = absl::Seconds(60);
  // After a failure: how long other ranks may take to see it, too.
  absl::Duration grace = absl::Seconds(2);
  // What must be equal on all ranks, such as a fingerprint of model and options.
  std::string config = {};
  // Whether this process serves the store: after a failure it then waits, at most for the grace,
  // until the others know it, too.
  bool serves_store = false;
};

class Peers {
 public:
  // Opens the store that `place` names. DeadlineExceeded: it does not answer in time. Unavailable:
  // its port is in use.
  static absl::StatusOr<c10::intrusive_ptr<c10d::Store>> OpenStore(const RankPlace& place,
                                                                   absl::Duration timeout);

  // Meets the other ranks in `store`. On failure every rank that has come returns:
  //   DeadlineExceeded    ranks that did not come
  //   InvalidArgument     a rank of another world size, or a rank that came twice
  //   FailedPrecondition  a rank with another config: both are in the message
  static absl::StatusOr<std::unique_ptr<Peers>> Meet(c10::intrusive_ptr<c10d::Store> store,
                                                     const Ranks& ranks,
                                                     const PeersOptions& options);

  // The peers of a group of these ranks: `members` of the world, this one among them, in their order,
  // without those. They share the store, what is reported there and the processes, so a failure that
  // one group finds is that of all. Of a call of the group, only its members can be late.
  std::unique_ptr<Peers> Part(const std::vector<int>& members) const;

  // Whose fault it is that `what`, a call that all ranks make, has failed here with `error`. Takes
  // at most about the grace.
  //   Unavailable       a rank has ended, or has called Fail()
  //   DeadlineExceeded  a rank lives, but has not come, or is in kDeviceWork while all others wait in
  //                     one call
  //   Internal          all ranks report a failure of the same call: `error`
  absl::Status Explain(const std::string& what, const std::string& error);

  // Tells the others why this rank gives up.
  void Fail(const absl::Status& why);
  // After Fail(), where this process serves the store: waits, at most for the grace, until the others
  // have heard it, as the store ends with the process.
  void AwaitHeard();

  // A failure that another rank has found or has told of; OK if none. One request to the store.
  absl::Status Reported();

  // Reported(), or the failure of a rank whose process has ended, as far as this machine can know,
  // and that had not called Leave(). Once rank 0 has left, the store may have ended with it: then no
  // more can be known, and OK is returned.
  absl::Status Lost();

  // Tells the others that this process may end from now on without having failed. Where it serves the
  // store, waits, at most for the grace, until all of the group have left.
  void Leave();

  // Of the group.
  const Ranks& ranks() const { return group_; }
  // What its keys in the store begin with, and how its calls are named: "" for all ranks, else
  // " of ranks 0, 2".
  const std::string& name() const { return name_; }
  // Whether all ranks run on this machine.
  bool one_host() const { return one_host_; }
  c10::intrusive_ptr<c10d::Store> store() const { return store_; }

 private:
  // A rank's process, as it has published it.
  struct Process {
    int world = 0;
    pid_t pid = 0;
    std::string start;  // when it has started, as /proc has it: numbers are used again
    std::string host;   // its machine, and what its number is valid in
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
  // Whether the process of `rank` has ended, as far as this machine can know.
  bool HasEnded(int rank) const;

  absl::Status MeetAll();
  absl::Status Compare(int rank) const;
  absl::Status FindCulprit(const std::string& what, const std::string& error);
  // Keeps the first of all ranks' findings, which `num_readers` other ranks will want to read, and
  // returns it.
  absl::Status Settle(const absl::Status& finding, int num_readers, absl::Duration patience);
  // The finding, if there is one.
  std::optional<absl::Status> Settled();
  // Where this process serves the store: waits, at most for `patience`, until all have read the
  // finding.
  void Linger(absl::Duration patience);
  // The failure of a rank whose process has ended; as Lost() without what others have told.
  absl::Status Ended();
  // Runs `body`, which asks the store; what the store throws becomes a Status.
  absl::Status Ask(absl::FunctionRef<absl::Status()> body);

  c10::intrusive_ptr<c10d::Store> store_;
  Ranks ranks_;  // of the world, as in all texts and keys
  PeersOptions options_;
  Ranks group_;
  std::vector<int> members_;  // of the group
  std::string name_;
  std::vector<Process> processes_;  // by rank of the world
  bool one_host_ = false;
  std::atomic<bool> first_has_left_ = false;   // rank 0
  std::atomic<bool> store_has_ended_ = false;  // after that
};

}  // namespace reprise

#endif  // REPRISE_WITH_C10D

#endif  // REPRISE_DISTRIBUTED_PEERS_H_
