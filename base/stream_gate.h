// Stops a CUDA stream until a test lets it go on: what is enqueued behind a closed gate provably
// has not run.
//
//   StreamGate gate(stream);                  // closed from here on
//   LaunchSomething(stream);
//   EXPECT_FALSE(fence->Passed());
//   gate.Open();
//
// While it is closed, avoid whatever waits for the whole device, since the test would wait for
// ever: cudaFree, cudaDeviceSynchronize, the first launch of a kernel (CUDA loads it lazily). Run
// the work once before closing a gate in front of it.
//
// For tests, in builds with CUDA. Thread safety: Open() may be called on any thread.

#ifndef BASE_STREAM_GATE_H_
#define BASE_STREAM_GATE_H_

#include <memory>

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

class StreamGate {
 public:
  // CHECK-fails if CUDA refuses.
  explicit StreamGate(CUstream_st* stream);
  StreamGate(const StreamGate&) = delete;
  StreamGate& operator=(const StreamGate&) = delete;
  // Opens it.
  ~StreamGate() { Open(); }

  void Open();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace reprise

#endif  // BASE_STREAM_GATE_H_
