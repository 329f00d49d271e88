// Forks work from a stream and joins it again, so that small kernels run concurrently. In a
// captured graph, the lanes become parallel branches.
//
//   REPRISE_ASSIGN_OR_RETURN(auto lanes, CudaLanes::Create(main_stream));
//   lanes->Run(3, [&](int lane) { return Launch(..., lanes->stream()); });
//
// Lane 0 is the main stream; the object owns the streams of the other lanes. Run() does not
// synchronise or allocate, and may be captured.
//
// Thread safety: none; one owner. The main stream must outlive this object. Graphs do not depend on
// it.

#ifndef REPRISE_RUNNER_DEVICE_CUDA_LANES_H_
#define REPRISE_RUNNER_DEVICE_CUDA_LANES_H_

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct CUevent_st;
struct CUstream_st;

namespace reprise {

class CudaLanes {
 public:
  static constexpr int kMaxLanes = 4;  // further lanes reuse these in turn

  // Creates the streams on the current device. Errors: Internal if CUDA fails; Unimplemented in
  // builds without CUDA.
  static absl::StatusOr<std::unique_ptr<CudaLanes>> Create(CUstream_st* main);
  ~CudaLanes();
  CudaLanes(const CudaLanes&) = delete;
  CudaLanes& operator=(const CudaLanes&) = delete;

  // Calls work(0) to work(num_lanes - 1), each with stream() set to its lane's stream. Later work
  // on the main stream waits for the work of all lanes. After an error, later lanes are not called,
  // but the lanes are still joined. Errors: as `work`; Internal if CUDA fails.
  absl::Status Run(int num_lanes, absl::FunctionRef<absl::Status(int lane)> work);

  // Returns the current lane's stream; the main stream outside of Run().
  CUstream_st* stream() const { return stream_; }

 private:
  explicit CudaLanes(CUstream_st* main) : main_(main), stream_(main) {}

  // Unused in builds without CUDA, where Create() fails.
  [[maybe_unused]] CUstream_st* main_;
  CUstream_st* stream_;
  [[maybe_unused]] CUevent_st* fork_ = nullptr;
  [[maybe_unused]] CUstream_st* sides_[kMaxLanes - 1] = {};
  [[maybe_unused]] CUevent_st* joins_[kMaxLanes - 1] = {};
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_DEVICE_CUDA_LANES_H_
