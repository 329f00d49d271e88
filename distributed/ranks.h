// The rank of a process and the address of the rendezvous. Plain data.

#ifndef REPRISE_DISTRIBUTED_RANKS_H_
#define REPRISE_DISTRIBUTED_RANKS_H_

#include <string>

namespace reprise {

// The rank of this process and the number of ranks.
struct Ranks {
  int rank = 0;   // in [0, world)
  int world = 1;  // number of ranks, >= 1

  friend bool operator==(const Ranks&, const Ranks&) = default;
};

// The rank of a process and the address of the rendezvous, as provided by a launcher.
struct RankPlace {
  Ranks ranks;
  // Rank among the processes of this machine; selects the device.
  int local_rank = 0;
  // Address of the rendezvous: "file:PATH" (a file that all ranks can access and that did not exist
  // before) or "tcp:HOST:PORT". Empty: a world of one rank.
  std::string store = {};
  // tcp only: whether this process opens the port. Set for rank 0, unless the launcher has opened
  // the port.
  bool serves_store = false;
  // Separates runs that use the same store, such as restarts.
  std::string run = {};
};

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_RANKS_H_
