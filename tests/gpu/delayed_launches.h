// Delays in the kernels of a captured graph, for tests: each kernel that starts while the kernel
// before it ends (base/dependent_launch.cuh) gets one, whose length is set before each replay.
//
//   DelayedLaunches delays(1000);
//   {
//     DelayedLaunches::Scope captured(delays);
//     capture();
//   }
//   delays.Set(3, 40);   // the fourth such kernel waits 40 us longer for the kernel before
//   replay();
//
// A delay is a kernel in front of the delayed one K. It lets K in at once, waits for the kernel P
// before, sleeps, and ends. So K begins when P has begun, earlier than without it, and what it reads
// before its wait it reads while P still runs; its memory accesses after the wait come late, while
// the kernel behind K, which K has let in, is already there: that one must not depend on them
// before its own wait. Thus the delay is in P between its trigger and its end, as what waits for P
// sees it, and in K between its start and its work.
//
// Works by taking the place of cudaLaunchKernelExC() in the program: launches go to CUDA's own
// otherwise unchanged. cuBLASLt launches past it; its kernels are full stops.
//
// Thread safety: none; scopes are of the thread that captures.

#ifndef TESTS_GPU_DELAYED_LAUNCHES_H_
#define TESTS_GPU_DELAYED_LAUNCHES_H_

#include <cstdint>

#include "absl/status/status.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

class DelayedLaunches {
 public:
  // Memory for so many delays, of no length. Check status() next.
  explicit DelayedLaunches(int max_launches);
  // Graphs with the delays must not be replayed any more.
  ~DelayedLaunches();
  DelayedLaunches(const DelayedLaunches&) = delete;
  DelayedLaunches& operator=(const DelayedLaunches&) = delete;

  const absl::Status& status() const { return status_; }

  // While it lives, launches to streams that are being captured get delays.
  class Scope {
   public:
    explicit Scope(DelayedLaunches& delays);
    ~Scope();
  };

  // Launches so far that have a delay.
  int count() const { return count_; }

  // The length from the next replay on. `launch` below count(), in the order of the launches.
  // Nothing that has the delay may be running.
  void Set(int launch, uint32_t microseconds);

  // Called before the launch that it delays.
  absl::Status Launch(CUstream_st* stream);

 private:
  absl::Status status_;
  int max_launches_;
  int count_ = 0;
  uint32_t* microseconds_ = nullptr;  // [max_launches], of the host and mapped
};

}  // namespace reprise

#endif  // TESTS_GPU_DELAYED_LAUNCHES_H_
