// Blocks a CUDA stream until a test opens the gate. Work that is enqueued after a closed gate
// cannot have run.
//
//   StreamGate gate(stream);                  // closed from here
//   LaunchSomething(stream);
//   EXPECT_FALSE(fence->Passed());
//   gate.Open();
//
// While the gate is closed, avoid calls that wait for the whole device, because the test would wait
// forever: cudaFree, cudaDeviceSynchronize, and the first launch of a kernel (CUDA loads kernels
// lazily). Run the work once before you close a gate in front of it.
//
// For tests in builds with CUDA. Thread safety: Open() may be called on any thread.

#ifndef REPRISE_BASE_TESTING_STREAM_GATE_H_
#define REPRISE_BASE_TESTING_STREAM_GATE_H_

#include <memory>

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

class StreamGate {
 public:
  // CHECK-fails if CUDA returns an error.
  explicit StreamGate(CUstream_st* stream);
  StreamGate(const StreamGate&) = delete;
  StreamGate& operator=(const StreamGate&) = delete;
  // Opens the gate.
  ~StreamGate() { Open(); }

  void Open();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace reprise

#endif  // REPRISE_BASE_TESTING_STREAM_GATE_H_
