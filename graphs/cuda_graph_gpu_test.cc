#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/base/testing/stream_gate.h"
#include "reprise/base/testing/test_seed.h"
#include "reprise/graphs/cuda_graph_backend.h"
#include "reprise/graphs/graph_backend.h"
#include "reprise/graphs/graph_set.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;
using Graph = std::unique_ptr<CapturedGraph>;

int64_t ReservedBytes() {
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return c10::cuda::CUDACachingAllocator::getDeviceStats(0).reserved_bytes[kAll].current;
}

at::TensorOptions OnGpu(at::ScalarType dtype = at::kFloat) {
  return at::TensorOptions(at::Device(at::kCUDA, 0)).dtype(dtype);
}

class CudaGraphTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int num_devices = 0;
    if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
      cudaGetLastError();
      GTEST_SKIP() << "no GPU on this machine";
    }
    ASSERT_EQ(c10::cuda::device_count(), num_devices) << "libtorch_cuda was dropped by the linker";
    absl::StatusOr<std::unique_ptr<CudaGraphBackend>> backend = CudaGraphBackend::Create({});
    ASSERT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
    on_stream_ = std::make_unique<c10::cuda::CUDAStreamGuard>(
        c10::cuda::getStreamFromExternal(backend_->stream(), 0));
  }

  void TearDown() override {
    if (backend_ == nullptr) return;
    Synchronize();
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "an earlier CUDA error is still pending";
    on_stream_.reset();
    backend_.reset();
    // emptyCache() throws while an allocator is in capture mode.
    EXPECT_NO_THROW(c10::cuda::CUDACachingAllocator::emptyCache());
  }

  void Synchronize() const { EXPECT_EQ(cudaStreamSynchronize(backend_->stream()), cudaSuccess); }

  // Whether all work on the backend's stream has completed.
  bool IsIdle() const {
    const cudaError_t error = cudaStreamQuery(backend_->stream());
    if (error != cudaSuccess) cudaGetLastError();
    return error == cudaSuccess;
  }

  Graph Captured(std::function<absl::Status()> step) const {
    absl::StatusOr<Graph> graph = backend_->Capture(std::move(step));
    EXPECT_TRUE(graph.ok()) << graph.status();
    return graph.ok() ? *std::move(graph) : nullptr;
  }

  // Checks that a capture still works after an error.
  void ExpectBackendIsUsable() const {
    const at::Tensor in = at::full({1000}, 3.0, OnGpu());
    const at::Tensor out = at::zeros({1000}, OnGpu());
    const Graph graph = Captured([&] {
      const at::Tensor doubled = in.add(in);  // from the graph's pool
      out.copy_(doubled);
      return absl::OkStatus();
    });
    ASSERT_NE(graph, nullptr);
    in.fill_(21.0);
    ASSERT_TRUE(graph->Replay().ok());
    EXPECT_TRUE(at::equal(out, at::full({1000}, 42.0, OnGpu())));
    EXPECT_NO_THROW(c10::cuda::CUDACachingAllocator::emptyCache());
  }

  std::unique_ptr<CudaGraphBackend> backend_;
  // The backend's stream is the current stream of each test, as in a runner.
  std::unique_ptr<c10::cuda::CUDAStreamGuard> on_stream_;
};

// A small feed-forward net over persistent buffers: out[:rows] = relu(in[:rows] w1) w2.
struct Net {
  explicit Net(int max_rows, int dim = 256)
      : w1(at::randn({dim, 2 * dim}, OnGpu())),
        w2(at::randn({2 * dim, dim}, OnGpu())),
        in(at::randn({max_rows, dim}, OnGpu())),
        out(at::zeros({max_rows, dim}, OnGpu())) {}

  at::Tensor Compute(int rows) const {
    return at::mm(at::relu(at::mm(in.narrow(0, 0, rows), w1)), w2);
  }

  std::function<absl::Status()> Step(int rows) const {
    return [net = *this, rows] {
      net.out.narrow(0, 0, rows).copy_(net.Compute(rows));
      return absl::OkStatus();
    };
  }

  at::Tensor w1, w2, in, out;
};

TEST_F(CudaGraphTest, ReplayReadsTheCurrentContentsOfTheBuffers) {
  const Net net(64);
  const Graph graph = Captured(net.Step(64));
  for (int round = 0; round < 5; ++round) {
    net.in.normal_();
    net.out.fill_(-1);
    ASSERT_TRUE(graph->Replay().ok());
    EXPECT_TRUE(at::equal(net.out, net.Compute(64))) << "round " << round;
  }
}

TEST_F(CudaGraphTest, CaptureRunsTheStepTwiceOnTheHostAndReplayNeverDoes) {
  const at::Tensor out = at::zeros({1}, OnGpu());
  int num_calls = 0;
  const Graph graph = Captured([&] {
    ++num_calls;
    out.add_(1);
    return absl::OkStatus();
  });
  EXPECT_EQ(num_calls, 2);
  EXPECT_EQ(out.item<float>(), 1);  // from the warm-up; a capture only records
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(graph->Replay().ok());
  EXPECT_EQ(num_calls, 2);
  EXPECT_EQ(out.item<float>(), 4);
}

TEST_F(CudaGraphTest, HostValuesAreFrozenAtCapture) {
  const at::Tensor out = at::zeros({4}, OnGpu());
  int rows = 2;
  const Graph graph = Captured([&] {
    out.narrow(0, 0, rows).fill_(rows);
    return absl::OkStatus();
  });
  rows = 4;
  out.fill_(-1);
  ASSERT_TRUE(graph->Replay().ok());
  EXPECT_TRUE(at::equal(out.narrow(0, 0, 2), at::full({2}, 2.0, OnGpu())));
  EXPECT_TRUE(at::equal(out.narrow(0, 2, 2), at::full({2}, -1.0, OnGpu())));
}

// Two GEMMs with work between them that cannot be captured, because it synchronises the stream.
TEST_F(CudaGraphTest, WorkBetweenGraphsRunsOnTheHostAtEachReplay) {
  const Net net(64);
  const at::Tensor out = at::zeros_like(net.out);
  int num_works = 0;
  const Graph graph = Captured([&]() -> absl::Status {
    const at::Tensor hidden = at::mm(net.in, net.w1);  // allocated from the pool
    const at::Tensor rectified = at::empty_like(hidden);
    // The step's tensors no longer exist at a replay, but their memory stays in the pool.
    const auto view = [](const at::Tensor& x) {
      return at::from_blob(x.data_ptr(), x.sizes(), x.options());
    };
    REPRISE_RETURN_IF_ERROR(backend_->RunBetweenGraphs(
        [&num_works, this, from = view(hidden), to = view(rectified)]() mutable {
          ++num_works;
          Synchronize();
          at::relu_out(to, from);
          return absl::OkStatus();
        }));
    at::mm_out(const_cast<at::Tensor&>(out), rectified, net.w2);
    return absl::OkStatus();
  });
  ASSERT_NE(graph, nullptr);
  EXPECT_EQ(graph->num_graphs(), 2);
  EXPECT_EQ(num_works, 1) << "run by the warm-up; a capture keeps the work without running it";
  for (int round = 0; round < 3; ++round) {
    net.in.normal_();
    out.fill_(-1);
    ASSERT_TRUE(graph->Replay().ok());
    EXPECT_TRUE(at::equal(out, net.Compute(64))) << "round " << round;
  }
  EXPECT_EQ(num_works, 4);
}

TEST_F(CudaGraphTest, ConsecutiveWorkHasNoGraphInBetween) {
  const at::Tensor out = at::zeros({1}, OnGpu());
  const auto add = [&out] {
    out.add_(1);
    return absl::OkStatus();
  };
  const Graph graph = Captured([&]() -> absl::Status {
    REPRISE_RETURN_IF_ERROR(backend_->RunBetweenGraphs(add));
    REPRISE_RETURN_IF_ERROR(backend_->RunBetweenGraphs(add));
    out.mul_(3);
    return backend_->RunBetweenGraphs(add);
  });
  ASSERT_NE(graph, nullptr);
  EXPECT_EQ(graph->num_graphs(), 1);
  out.zero_();
  ASSERT_TRUE(graph->Replay().ok());
  EXPECT_EQ(out.item<float>(), 7);
}

// A step that ignores the error of RunBetweenGraphs() with a forked stream that is not joined.
TEST_F(CudaGraphTest, CaptureFailsIfAGraphCannotEndBeforeWork) {
  const at::Tensor out = at::zeros({1}, OnGpu());
  const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool();
  bool warmed_up = false;
  const absl::StatusOr<Graph> graph = backend_->Capture([&] {
    out.add_(1);
    if (std::exchange(warmed_up, true)) {
      at::cuda::CUDAEvent forked;
      forked.record();
      forked.block(side);
      const c10::cuda::CUDAStreamGuard on_side(side);
      out.add_(1);
    }
    backend_->RunBetweenGraphs([] { return absl::OkStatus(); }).IgnoreError();
    return absl::OkStatus();
  });
  EXPECT_EQ(graph.status().code(), absl::StatusCode::kInternal) << graph.status();
  ExpectBackendIsUsable();
}

TEST_F(CudaGraphTest, SizesLargestFirstShareOnePoolAndReplayInAnyOrder) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const std::vector<int> sizes = {4096, 2048, 1024, 512, 256, 64, 16, 8, 4, 2, 1};
  const Net net(4096, 512);
  std::vector<Graph> graphs;
  int64_t later_bytes = 0;
  for (const int size : sizes) {
    graphs.push_back(Captured(net.Step(size)));
    ASSERT_NE(graphs.back(), nullptr);
    if (graphs.size() > 1) later_bytes += graphs.back()->bytes().pool;
  }
  // 4096 x 1024 x 4 bytes, twice (before and after relu), and the result.
  EXPECT_GE(graphs[0]->bytes().pool, 2 * 4096 * 1024 * 4);
  EXPECT_LT(later_bytes, graphs[0]->bytes().pool / 4) << "later graphs did not reuse the pool";

  std::vector<int> order;
  for (int repeat = 0; repeat < 6; ++repeat) {
    for (size_t i = 0; i < sizes.size(); ++i) order.push_back(static_cast<int>(i));
  }
  std::shuffle(order.begin(), order.end(), random);
  for (const int i : order) {
    net.in.normal_();
    net.out.fill_(-1);
    ASSERT_TRUE(graphs[i]->Replay().ok());
    ASSERT_TRUE(at::equal(net.out.narrow(0, 0, sizes[i]), net.Compute(sizes[i]))) << sizes[i];
    const at::Tensor beyond = net.out.narrow(0, sizes[i], 4096 - sizes[i]);
    ASSERT_TRUE(at::equal(beyond, at::full_like(beyond, -1))) << sizes[i];
  }
}

TEST_F(CudaGraphTest, EagerTensorsNeverUseTheMemoryOfAGraph) {
  const Net net(1024, 512);
  const Graph graph = Captured(net.Step(1024));
  std::vector<at::Tensor> eager;
  for (int i = 0; i < 40; ++i) eager.push_back(at::full({1024, 512}, i, OnGpu()));
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(graph->Replay().ok());
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(at::equal(eager[i], at::full({1024, 512}, i, OnGpu()))) << i;
  }
  EXPECT_TRUE(at::equal(net.out, net.Compute(1024)));
}

TEST_F(CudaGraphTest, MeasuresTheMemoryOfAGraph) {
  const at::Tensor out = at::zeros({1}, OnGpu());
  const int64_t bytes = int64_t{64} << 20;
  const Graph graph = Captured([&] {
    const at::Tensor large = at::zeros({bytes}, OnGpu(at::kByte));
    out.copy_(large.narrow(0, 0, 1));
    return absl::OkStatus();
  });
  EXPECT_GE(graph->bytes().pool, bytes);
  EXPECT_LT(graph->bytes().pool, 2 * bytes);
  EXPECT_GE(graph->bytes().driver, 0);
  EXPECT_EQ(graph->bytes().total(), graph->bytes().pool + graph->bytes().driver);
}

TEST_F(CudaGraphTest, TrialFreesTheMeasuredMemory) {
  const Net net(4096, 512);
  net.Compute(4096);  // allocates LibTorch's workspaces and the eager memory of this shape
  Synchronize();
  const int64_t reserved = ReservedBytes();
  const absl::StatusOr<GraphBytes> trial = backend_->TrialCapture(net.Step(4096));
  ASSERT_TRUE(trial.ok()) << trial.status();
  EXPECT_EQ(ReservedBytes(), reserved);

  const Graph graph = Captured(net.Step(4096));
  EXPECT_EQ(graph->bytes().pool, trial->pool);  // as measured by the trial
  EXPECT_GE(trial->pool, 2 * 4096 * 1024 * 4);
  // While graphs exist, a trial still measures its own temporary pool.
  EXPECT_EQ(backend_->TrialCapture(net.Step(4096))->pool, trial->pool);
  net.in.normal_();
  ASSERT_TRUE(graph->Replay().ok());
  EXPECT_TRUE(at::equal(net.out, net.Compute(4096)));
}

TEST_F(CudaGraphTest, DestroyingGraphsAndBackendFreesAllMemory) {
  const at::Tensor out = at::zeros({1}, OnGpu());
  const auto step = [&] {
    out.copy_(at::zeros({int64_t{64} << 20}, OnGpu(at::kByte)).narrow(0, 0, 1));
    return absl::OkStatus();
  };
  ASSERT_TRUE(step().ok());
  Synchronize();
  const int64_t reserved = ReservedBytes();
  auto backend = *CudaGraphBackend::Create({.stream = backend_->stream()});
  {
    std::vector<Graph> graphs;
    for (int i = 0; i < 3; ++i) graphs.push_back(*backend->Capture(step));
    EXPECT_GE(ReservedBytes(), reserved + (int64_t{64} << 20));
    for (const Graph& graph : graphs) EXPECT_TRUE(graph->Replay().ok());
  }
  backend.reset();
  EXPECT_EQ(ReservedBytes(), reserved);
}

TEST_F(CudaGraphTest, CapturesAgainAfterAllGraphsAreDestroyed) {
  const Net net(64);
  for (int round = 0; round < 3; ++round) {
    const Graph graph = Captured(net.Step(64));
    net.in.normal_();
    ASSERT_TRUE(graph->Replay().ok());
    EXPECT_TRUE(at::equal(net.out, net.Compute(64)));
  }
}

// Errors inside a capture, after a successful warm-up.
struct Accident {
  std::string name;
  std::function<absl::Status()> happens;
  absl::StatusCode code;
  std::string message;
};

TEST_F(CudaGraphTest, ErrorInsideACaptureEndsTheCaptureAndBackendStaysUsable) {
  const at::Tensor buffer = at::zeros({1000}, OnGpu());
  const at::Tensor other = at::zeros({7}, OnGpu());
  const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool();
  const std::vector<Accident> accidents = {
      {"status", [] { return absl::ResourceExhaustedError("no blocks left"); },
       absl::StatusCode::kResourceExhausted, "no blocks left"},
      {"exception", []() -> absl::Status { throw std::runtime_error("out of range"); },
       absl::StatusCode::kInternal, "out of range"},
      {"a thrown int", []() -> absl::Status { throw 42; }, absl::StatusCode::kInternal,
       "not a std::exception"},
      {"shapes",
       [&] {
         buffer.add_(other);
         return absl::OkStatus();
       },
       absl::StatusCode::kInternal, "size of tensor"},
      {"host read",
       [&] { return buffer.sum().item<float>() == 0 ? absl::OkStatus() : absl::UnknownError(""); },
       absl::StatusCode::kInternal, ""},
      {"synchronisation",
       [&] {
         c10::cuda::getCurrentCUDAStream().synchronize();
         return absl::OkStatus();
       },
       absl::StatusCode::kInternal, ""},
      {"synchronisation whose error is dropped",
       [&] {
         cudaStreamSynchronize(c10::cuda::getCurrentCUDAStream());
         cudaGetLastError();
         return absl::OkStatus();
       },
       absl::StatusCode::kInternal, "cudaStreamEndCapture"},
      {"a forked stream that is not joined",
       [&] {
         at::cuda::CUDAEvent event;
         event.record();
         event.block(side);
         const c10::cuda::CUDAStreamGuard on_side(side);
         buffer.add_(1);
         return absl::OkStatus();
       },
       absl::StatusCode::kInternal, "cudaStreamEndCapture"},
      {"random numbers of LibTorch",
       [&] {
         buffer.copy_(at::rand({1000}, OnGpu()));
         return absl::OkStatus();
       },
       absl::StatusCode::kInternal, ""},
      {"more memory than there is",
       [&] {
         at::empty({int64_t{1} << 50}, OnGpu(at::kByte));
         return absl::OkStatus();
       },
       absl::StatusCode::kResourceExhausted, ""},
  };
  const Net net(128);
  const Graph before = Captured(net.Step(128));
  for (const Accident& accident : accidents) {
    SCOPED_TRACE(accident.name);
    int num_calls = 0;
    const absl::StatusOr<Graph> graph = backend_->Capture([&] {
      const at::Tensor temporary = buffer.add(1);  // exists when the accident happens
      buffer.copy_(temporary);
      return ++num_calls == 1 ? absl::OkStatus() : accident.happens();
    });
    EXPECT_EQ(num_calls, 2);
    EXPECT_EQ(graph.status().code(), accident.code) << graph.status();
    EXPECT_THAT(std::string(graph.status().message()), HasSubstr(accident.message));
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    ExpectBackendIsUsable();
    net.in.normal_();
    ASSERT_TRUE(before->Replay().ok());
    ASSERT_TRUE(at::equal(net.out, net.Compute(128)));
  }
  Synchronize();
  EXPECT_EQ(cudaStreamSynchronize(side), cudaSuccess);
}

TEST_F(CudaGraphTest, BackendStaysUsableAfterAnErrorInATrial) {
  int num_calls = 0;
  const int64_t reserved = ReservedBytes();
  const at::Tensor out = at::zeros({1}, OnGpu());
  const absl::StatusOr<GraphBytes> bytes = backend_->TrialCapture([&]() -> absl::Status {
    out.add_(1);
    if (++num_calls == 1) return absl::OkStatus();
    const at::Tensor large = at::zeros({int64_t{64} << 20}, OnGpu(at::kByte));
    throw std::logic_error("half way");
  });
  EXPECT_EQ(bytes.status(), absl::InternalError("half way"));
  EXPECT_LE(ReservedBytes(), reserved + (int64_t{4} << 20));  // `out` may be the first tensor of a
                                                              // block
  ExpectBackendIsUsable();
}

TEST_F(CudaGraphTest, AFailingWarmUpIsReturnedAndNothingIsCaptured) {
  int num_calls = 0;
  const absl::StatusOr<Graph> graph = backend_->Capture([&] {
    ++num_calls;
    return absl::UnavailableError("not yet");
  });
  EXPECT_EQ(graph.status(), absl::UnavailableError("not yet"));
  EXPECT_EQ(num_calls, 1);
  ExpectBackendIsUsable();
}

TEST_F(CudaGraphTest, RejectsAStepThatEnqueuesNothing) {
  const absl::Status nothing = backend_->Capture([] { return absl::OkStatus(); }).status();
  EXPECT_EQ(nothing.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(nothing.message()), HasSubstr("must enqueue work"));
  EXPECT_EQ(backend_->Capture(nullptr).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(backend_->TrialCapture(nullptr).status().code(), absl::StatusCode::kInvalidArgument);
  ExpectBackendIsUsable();
}

TEST_F(CudaGraphTest, RejectsACaptureInsideACapture) {
  absl::Status inner;
  int num_calls = 0;
  const at::Tensor out = at::zeros({1}, OnGpu());
  const Graph graph = Captured([&] {
    out.add_(1);
    if (++num_calls == 2) inner = backend_->Capture([] { return absl::OkStatus(); }).status();
    return absl::OkStatus();
  });
  EXPECT_EQ(inner.code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_NE(graph, nullptr);
  EXPECT_TRUE(graph->Replay().ok());
}

TEST_F(CudaGraphTest, AForkedStreamThatIsJoinedIsCapturedWithItsMemory) {
  const c10::cuda::CUDAStream main = c10::cuda::getCurrentCUDAStream();
  const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool();
  const at::Tensor in = at::zeros({4096}, OnGpu());
  const at::Tensor out = at::zeros({4096}, OnGpu());
  const Graph graph = Captured([&] {
    at::cuda::CUDAEvent fork, join;
    fork.record(main);
    fork.block(side);
    {
      const c10::cuda::CUDAStreamGuard on_side(side);
      out.copy_(in.mul(2).add(1));  // its temporaries also come from the pool
      join.record(side);
    }
    join.block(main);
    out.add_(1);
    return absl::OkStatus();
  });
  std::vector<at::Tensor> eager;
  {
    const c10::cuda::CUDAStreamGuard on_side(side);
    for (int i = 0; i < 50; ++i) eager.push_back(at::full({4096}, i, OnGpu()));
    side.synchronize();
  }
  in.fill_(20);
  ASSERT_TRUE(graph->Replay().ok());
  EXPECT_TRUE(at::equal(out, at::full({4096}, 42.0, OnGpu())));
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(at::equal(eager[i], at::full({4096}, i, OnGpu()))) << i;
  }
}

TEST_F(CudaGraphTest, OtherThreadsMayAllocateAndSynchroniseDuringACapture) {
  const at::Tensor out = at::zeros({1}, OnGpu());
  int num_calls = 0;
  const Graph graph = Captured([&] {
    out.add_(1);
    if (++num_calls < 2) return absl::OkStatus();
    std::thread other([] {
      const at::Tensor tensor = at::full({1 << 20}, 1.0, OnGpu());  // on this thread's default
                                                                    // stream
      EXPECT_EQ(tensor.sum().item<float>(), 1 << 20);
      void* memory = nullptr;
      EXPECT_EQ(cudaMalloc(&memory, 1 << 20), cudaSuccess);
      EXPECT_EQ(cudaFree(memory), cudaSuccess);
    });
    other.join();
    return absl::OkStatus();
  });
  ASSERT_NE(graph, nullptr);
  EXPECT_TRUE(graph->Replay().ok());
  EXPECT_EQ(out.item<float>(), 2);
}

TEST_F(CudaGraphTest, ReplayIsEnqueuedAfterEarlierWorkWithoutWaiting) {
  const at::Tensor in = at::zeros({1000}, OnGpu());
  const at::Tensor out = at::zeros({1000}, OnGpu());
  const Graph graph = Captured([&] {
    out.copy_(in);
    return absl::OkStatus();
  });
  ASSERT_TRUE(graph->Replay().ok());
  in.fill_(1);  // loads the kernel
  Synchronize();
  {
    StreamGate gate(backend_->stream());
    in.fill_(42);
    const c10::cuda::CUDAStreamGuard elsewhere(c10::cuda::getDefaultCUDAStream(0));
    ASSERT_TRUE(graph->Replay().ok());  // does not wait, and does not use the current stream
    EXPECT_FALSE(IsIdle());
    EXPECT_EQ(cudaStreamSynchronize(c10::cuda::getDefaultCUDAStream(0)), cudaSuccess);
    EXPECT_FALSE(IsIdle());
  }
  EXPECT_TRUE(at::equal(out, at::full({1000}, 42.0, OnGpu())));
}

TEST_F(CudaGraphTest, ReplayAllocatesNothing) {
  const Net net(16);
  const Graph graph = Captured(net.Step(16));
  ASSERT_TRUE(graph->Replay().ok());
  const int64_t reserved = ReservedBytes();
  AllocationCounter allocations;
  bool ok = true;
  for (int i = 0; i < 10; ++i) ok &= graph->Replay().ok();
  EXPECT_EQ(allocations.count(), 0);
  EXPECT_TRUE(ok);
  EXPECT_EQ(ReservedBytes(), reserved);
}

TEST_F(CudaGraphTest, DestroyingAGraphWaitsForReplays) {
  const at::Tensor out = at::zeros({1000}, OnGpu());
  Graph graph = Captured([&] {
    out.add_(1);
    return absl::OkStatus();
  });
  ASSERT_TRUE(graph->Replay().ok());
  Synchronize();
  StreamGate gate(backend_->stream());
  ASSERT_TRUE(graph->Replay().ok());
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    gate.Open();
  });
  graph.reset();
  EXPECT_TRUE(IsIdle());
  opener.join();
  EXPECT_TRUE(at::equal(out, at::full({1000}, 3.0, OnGpu())));
}

TEST_F(CudaGraphTest, RejectsStreamsAndDevicesThatCannotCapture) {
  for (const cudaStream_t stream : {cudaStream_t{nullptr}, cudaStreamLegacy, cudaStreamPerThread}) {
    const absl::Status status = CudaGraphBackend::Create({.stream = stream}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("must not be a default stream"));
  }
  for (const int device : {-1, 1000}) {
    const absl::Status status = CudaGraphBackend::Create({.device = device}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("device must be one of the GPUs"));
  }
}

TEST_F(CudaGraphTest, UsesTheStreamOfTheOptions) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  {
    const auto backend = *CudaGraphBackend::Create({.stream = stream});
    EXPECT_EQ(backend->stream(), stream);
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromExternal(stream, 0));
    const at::Tensor out = at::zeros({10}, OnGpu());
    cudaStream_t seen = nullptr;
    const Graph graph = *backend->Capture([&] {
      seen = c10::cuda::getCurrentCUDAStream();
      out.add_(1);
      return absl::OkStatus();
    });
    EXPECT_EQ(seen, stream);
    ASSERT_TRUE(graph->Replay().ok());
    EXPECT_EQ(out.sum().item<float>(), 20);
  }
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

// GraphSet on a GPU: padding, all live counts, counters, fingerprint, measured cost.
class CudaGraphSetTest : public CudaGraphTest {
 protected:
  void SetUp() override {
    CudaGraphTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    net_ = std::make_unique<Net>(16);
    fingerprint_.AddAddress("in", net_->in.data_ptr());
    fingerprint_.AddAddress("out", net_->out.data_ptr());
  }

  void TearDown() override {
    set_.reset();
    net_.reset();
    CudaGraphTest::TearDown();
  }

  void Make(GraphSetOptions options) {
    options.max_num_seqs = 16;
    options.sizes = {1, 2, 4, 8, 16};
    options.max_seq_len = 1024;
    absl::StatusOr<std::unique_ptr<GraphSet>> set = GraphSet::Create(options, backend_.get());
    ASSERT_TRUE(set.ok()) << set.status();
    set_ = *std::move(set);
  }

  std::unique_ptr<Net> net_;
  Fingerprint fingerprint_;
  GraphSet::StepMaker make_step_ = [this](const GraphKey& key) {
    return net_->Step(key.padded_num_seqs);
  };
  std::unique_ptr<GraphSet> set_;
};

TEST_F(CudaGraphSetTest, ReplayMatchesEagerStepForEveryLiveCount) {
  for (const auto mode : {GraphSetOptions::Mode::kEager, GraphSetOptions::Mode::kLazy}) {
    Make({.mode = mode});
    ASSERT_TRUE(set_->CaptureAll(make_step_, fingerprint_).ok());
    for (int num_seqs = 1; num_seqs <= 17; ++num_seqs) {
      const StepShape shape{.num_seqs = num_seqs, .num_tokens = num_seqs, .max_seq_len = 100};
      GraphDecision decision = set_->Decide(shape);
      net_->in.normal_();
      net_->out.fill_(-1);
      if (decision.kind == GraphDecision::Kind::kReplay) {
        const auto outcome = set_->Replay(decision.key, make_step_, fingerprint_);
        ASSERT_TRUE(outcome.ok()) << outcome.status();
        decision = *outcome;
        const int rows = decision.key.padded_num_seqs;
        EXPECT_TRUE(at::equal(net_->out.narrow(0, 0, rows), net_->Compute(rows))) << num_seqs;
      }
      set_->Count(decision, shape);
    }
    const GraphReport& report = set_->report();
    EXPECT_EQ(report.num_replays(), 16);
    EXPECT_EQ(report.num_eager_steps(EagerReason::kTooManySeqs), 1);
    EXPECT_EQ(report.graphs().size(), 5u);
    // Graphs this small may fit into memory that is already reserved, so their bytes are not
    // checked.
    for (const GraphStats& graph : report.graphs()) EXPECT_GT(graph.capture_ms, 0) << graph.key;
    Synchronize();
    set_.reset();
  }
}

TEST_F(CudaGraphSetTest, RejectsAChangedAddressBeforeTheReplay) {
  Make({});
  ASSERT_TRUE(set_->CaptureAll(make_step_, fingerprint_).ok());
  const at::Tensor moved = net_->in.clone();
  Fingerprint current;
  current.AddAddress("in", moved.data_ptr());
  current.AddAddress("out", net_->out.data_ptr());
  net_->out.fill_(-1);
  const GraphKey key{.padded_num_seqs = 4, .padded_num_tokens = 4};
  const absl::Status status = set_->Replay(key, make_step_, current).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("in: expected 0x"));
  EXPECT_TRUE(at::equal(net_->out, at::full_like(net_->out, -1)));
  EXPECT_TRUE(set_->Replay(key, make_step_, fingerprint_).ok());
}

TEST_F(CudaGraphSetTest, EstimateIsAtLeastTheUsedMemory) {
  Make({});
  const absl::StatusOr<int64_t> estimate = set_->EstimateBytes(make_step_);
  ASSERT_TRUE(estimate.ok()) << estimate.status();
  ASSERT_TRUE(set_->CaptureAll(make_step_, fingerprint_).ok());
  EXPECT_GT(*estimate, 0);
  // The driver allocates memory in large blocks, so the two may differ by one block.
  EXPECT_LE(set_->report().graph_bytes(), *estimate + (int64_t{32} << 20));
}

TEST_F(CudaGraphSetTest, UndoesACaptureOverTheBudgetAndKeepsEarlierGraphs) {
  Make({.memory_budget_bytes = 0});
  ASSERT_TRUE(set_->CaptureAll(make_step_, fingerprint_).ok());
  const GraphDecision decision = set_->Decide({.num_seqs = 16, .num_tokens = 16});
  EXPECT_EQ(decision.reason, EagerReason::kOverBudget);
  EXPECT_EQ(set_->report().graph_bytes(), 0);
  ExpectBackendIsUsable();
}

}  // namespace
}  // namespace reprise
