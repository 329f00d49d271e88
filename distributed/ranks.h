// Which rank a process is, and where ranks meet. Plain data.

#ifndef REPRISE_DISTRIBUTED_RANKS_H_
#define REPRISE_DISTRIBUTED_RANKS_H_

#include <string>

namespace reprise {

// Which rank this process is.
struct Ranks {
  int rank = 0;   // in [0, world)
  int world = 1;  // number of ranks, >= 1

  friend bool operator==(const Ranks&, const Ranks&) = default;
};

// Where a process stands among the ranks, and where they meet: what a launcher tells it.
struct RankPlace {
  Ranks ranks;
  // Among the ranks of this machine: the number of its device.
  int local_rank = 0;
  // Where the ranks meet: "file:PATH" (a file that all ranks reach, and that did not exist before)
  // or "tcp:HOST:PORT". Empty: a world of one.
  std::string store = {};
  // tcp only: whether this process opens the port. Rank 0 does, unless the launcher has done so.
  bool serves_store = false;
  // Separates runs that meet in one store, such as restarts.
  std::string run = {};
};

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_RANKS_H_
