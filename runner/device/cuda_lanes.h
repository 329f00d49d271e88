// Work that forks from a stream and joins it again, so that small kernels run side by side: in a
// captured graph, parallel branches.
//
//   REPRISE_ASSIGN_OR_RETURN(auto lanes, CudaLanes::Create(main_stream));
//   lanes->Run(3, [&](int lane) { return Launch(..., lanes->stream()); });
//
// Lane 0 is the main stream; the object owns the streams of the other lanes. Run() does not
// synchronise or allocate, and may be captured.
//
// Thread safety: none; one owner. The main stream must outlive it; graphs do not need it.

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
  static constexpr int kMaxLanes = 4;  // more share these, in turn

  // On the current device. Errors: Internal if CUDA fails; Unimplemented in builds without it.
  static absl::StatusOr<std::unique_ptr<CudaLanes>> Create(CUstream_st* main);
  ~CudaLanes();
  CudaLanes(const CudaLanes&) = delete;
  CudaLanes& operator=(const CudaLanes&) = delete;

  // Calls work(0) to work(num_lanes - 1), each with stream() set to its lane's; the main stream
  // continues when all that they enqueued has run. After an error, later lanes are not called, and
  // the lanes are joined anyway. Errors: the work's; Internal if CUDA fails.
  absl::Status Run(int num_lanes, absl::FunctionRef<absl::Status(int lane)> work);

  // The current lane's stream; outside of Run() the main stream.
  CUstream_st* stream() const { return stream_; }

 private:
  explicit CudaLanes(CUstream_st* main) : main_(main), stream_(main) {}

  // Without CUDA nothing uses those that may be unused: Create() fails.
  [[maybe_unused]] CUstream_st* main_;
  CUstream_st* stream_;
  [[maybe_unused]] CUevent_st* fork_ = nullptr;
  [[maybe_unused]] CUstream_st* sides_[kMaxLanes - 1] = {};
  [[maybe_unused]] CUevent_st* joins_[kMaxLanes - 1] = {};
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_DEVICE_CUDA_LANES_H_
