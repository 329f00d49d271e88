#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/graphs/graph_pool.h"
#include "reprise/graphs/stream_capture.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

class StreamCaptureTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int num_devices = 0;
    if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
      cudaGetLastError();
      GTEST_SKIP() << "no GPU on this machine";
    }
    at::globalContext().lazyInitDevice(at::kCUDA);
    stream_ = c10::cuda::getStreamFromPool();
    guard_ = std::make_unique<c10::cuda::CUDAStreamGuard>(*stream_);
    pool_ = std::make_unique<GraphPool>(0);
    out_ = at::zeros({1000}, at::TensorOptions(at::kCUDA));
    out_.add_(0);  // loads the kernel
    Synchronize();
  }

  void TearDown() override {
    if (pool_ == nullptr) return;
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "an earlier CUDA error is still pending";
    EXPECT_NO_THROW(c10::cuda::CUDACachingAllocator::emptyCache());
    guard_.reset();
    pool_.reset();
  }

  void Synchronize() const { EXPECT_EQ(cudaStreamSynchronize(*stream_), cudaSuccess); }

  bool IsCapturing() const {
    cudaStreamCaptureStatus status;
    EXPECT_EQ(cudaStreamIsCapturing(*stream_, &status), cudaSuccess);
    return status != cudaStreamCaptureStatusNone;
  }

  std::unique_ptr<StreamCapture> Begin() const {
    absl::StatusOr<std::unique_ptr<StreamCapture>> capture = StreamCapture::Begin(*stream_, *pool_);
    EXPECT_TRUE(capture.ok()) << capture.status();
    return *std::move(capture);
  }

  std::optional<c10::cuda::CUDAStream> stream_;
  std::unique_ptr<c10::cuda::CUDAStreamGuard> guard_;
  std::unique_ptr<GraphPool> pool_;
  at::Tensor out_;
};

TEST_F(StreamCaptureTest, ReturnsTheGraphOfTheEnqueuedWork) {
  const auto capture = Begin();
  EXPECT_TRUE(IsCapturing());
  out_.add_(1);
  const absl::StatusOr<cudaGraph_t> graph = capture->End();
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_FALSE(IsCapturing());
  size_t num_nodes = 0;
  EXPECT_EQ(cudaGraphGetNodes(*graph, nullptr, &num_nodes), cudaSuccess);
  EXPECT_EQ(num_nodes, 1u);
  EXPECT_EQ(cudaGraphDestroy(*graph), cudaSuccess);
  EXPECT_EQ(out_.sum().item<float>(), 0);  // recorded, not run
}

TEST_F(StreamCaptureTest, DestructorDiscardsACaptureThatHasNotEnded) {
  for (int round = 0; round < 3; ++round) {
    {
      const auto capture = Begin();
      out_.add_(at::full({1000}, 5.0, out_.options()));
    }
    EXPECT_FALSE(IsCapturing());
  }
  out_.add_(1);  // the stream runs again
  EXPECT_EQ(out_.sum().item<float>(), 1000);
}

TEST_F(StreamCaptureTest, RejectsAStreamThatIsBeingCaptured) {
  const auto capture = Begin();
  const absl::Status again = StreamCapture::Begin(*stream_, *pool_).status();
  EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(IsCapturing());  // the first continues
  out_.add_(1);
  const absl::StatusOr<cudaGraph_t> graph = capture->End();
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(cudaGraphDestroy(*graph), cudaSuccess);
}

TEST_F(StreamCaptureTest, NextCaptureSucceedsAfterABrokenCapture) {
  {
    const auto capture = Begin();
    out_.add_(1);
    EXPECT_NE(cudaStreamSynchronize(*stream_), cudaSuccess);
    cudaGetLastError();
    const absl::StatusOr<cudaGraph_t> graph = capture->End();
    EXPECT_EQ(graph.status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(graph.status().message()), HasSubstr("cudaStreamEndCapture"));
  }
  EXPECT_FALSE(IsCapturing());
  const auto capture = Begin();
  out_.add_(1);
  const absl::StatusOr<cudaGraph_t> graph = capture->End();
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(cudaGraphDestroy(*graph), cudaSuccess);
}

TEST_F(StreamCaptureTest, MemoryOfTheCaptureComesFromItsPool) {
  const auto reserved = [] {
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return c10::cuda::CUDACachingAllocator::getDeviceStats(0).reserved_bytes[kAll].current;
  };
  constexpr int64_t kBytes = int64_t{32} << 20;
  const at::TensorOptions options = at::TensorOptions(at::kCUDA).dtype(at::kByte);
  at::zeros({kBytes}, options);  // leaves a cached block for the stream, outside the pool
  const int64_t before = reserved();
  cudaGraph_t graph = nullptr;
  {
    const auto capture = Begin();
    at::zeros({kBytes}, options);
    graph = *capture->End();
  }
  EXPECT_GE(reserved(), before + kBytes);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  pool_ = std::make_unique<GraphPool>(0);  // destroys the old pool
  EXPECT_EQ(reserved(), before);
}

}  // namespace
}  // namespace reprise
