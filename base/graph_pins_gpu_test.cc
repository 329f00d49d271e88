#include <cuda_runtime_api.h>

#include <chrono>
#include <thread>

#include "gtest/gtest.h"
#include "reprise/base/graph_pins.h"
#include "reprise/base/testing/stream_gate.h"

namespace reprise {
namespace {

class GraphPinsGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int num_devices = 0;
    if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
      cudaGetLastError();
      GTEST_SKIP() << "no GPU on this machine";
    }
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&memory_, kBytes), cudaSuccess);
  }
  void TearDown() override {
    if (stream_ == nullptr) return;
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(cudaFree(memory_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }

  // Captures a graph that uses the memory in `times` nodes.
  cudaGraph_t Capture(int times) {
    EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    for (int i = 0; i < times; ++i) {
      EXPECT_TRUE(pins_.PinIfCaptured(stream_).ok());
      EXPECT_EQ(cudaMemsetAsync(memory_, i, kBytes, stream_), cudaSuccess);
    }
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    return graph;
  }

  // Waits up to 5 s for the count, because CUDA releases pins on another thread.
  bool IsSoon(int64_t count) const {
    for (int wait = 0; wait < 500; ++wait) {
      if (pins_.count() == count) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  static constexpr size_t kBytes = 1 << 20;
  cudaStream_t stream_ = nullptr;
  void* memory_ = nullptr;
  GraphPins pins_;
};

TEST_F(GraphPinsGpuTest, WorkOutsideACaptureAddsNoPin) {
  EXPECT_TRUE(pins_.PinIfCaptured(stream_).ok());
  EXPECT_EQ(pins_.count(), 0);
}

TEST_F(GraphPinsGpuTest, GraphAddsOnePinUntilGraphClonesAndExecutablesAreDestroyed) {
  cudaGraph_t graph = Capture(/*times=*/5);
  EXPECT_EQ(pins_.count(), 1);
  cudaGraph_t clone = nullptr;
  ASSERT_EQ(cudaGraphClone(&clone, graph), cudaSuccess);
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(pins_.count(), 1);
  ASSERT_EQ(cudaGraphDestroy(clone), cudaSuccess);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(pins_.count(), 1);  // held by the executable
  ASSERT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_TRUE(IsSoon(0));
}

TEST_F(GraphPinsGpuTest, EachGraphAddsAPin) {
  cudaGraph_t a = Capture(1);
  cudaGraph_t b = Capture(2);
  EXPECT_EQ(pins_.count(), 2);
  ASSERT_EQ(cudaGraphDestroy(b), cudaSuccess);
  EXPECT_TRUE(IsSoon(1));
  ASSERT_EQ(cudaGraphDestroy(a), cudaSuccess);
  EXPECT_TRUE(IsSoon(0));
}

TEST_F(GraphPinsGpuTest, LaunchInFlightKeepsThePin) {
  cudaGraph_t graph = Capture(1);
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  StreamGate gate(stream_);
  ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
  ASSERT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(pins_.count(), 1);
  gate.Open();
  EXPECT_TRUE(IsSoon(0));
}

TEST_F(GraphPinsGpuTest, FailedCaptureReleasesThePin) {
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_TRUE(pins_.PinIfCaptured(stream_).ok());
  EXPECT_EQ(pins_.count(), 1);
  EXPECT_NE(cudaStreamSynchronize(stream_), cudaSuccess);  // breaks the capture
  cudaGraph_t graph = nullptr;
  EXPECT_NE(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  cudaGetLastError();
  EXPECT_TRUE(IsSoon(0));
}

}  // namespace
}  // namespace reprise
