// Plans from the host and from the device, eagerly and in graphs; workspaces that existing graphs
// use.

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/planned_attention.h"
#include "reprise/attention/testing/gpu_memory.h"
#include "reprise/attention/testing/random.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

constexpr int kMaxRows = 6;
constexpr int kMaxSeqLen = 2000;
constexpr int kBlockSize = 16;
constexpr int kMaxBlocks = kMaxSeqLen / kBlockSize;
constexpr int kNumBlocks = kMaxRows * kMaxBlocks + 1;

at::TensorOptions Gpu(at::ScalarType type) {
  return at::TensorOptions().dtype(type).device(at::kCUDA);
}

// A batch on the host, with a padded and a packed block table.
struct Rows {
  at::Tensor seq_lens, block_table;                        // padded
  at::Tensor block_indptr, block_indices, last_block_len;  // packed

  PlanInputs Padded(at::Device device) const {
    return {.seq_lens = seq_lens.to(device), .block_table = block_table.to(device)};
  }
  PlanInputs Packed(at::Device device) const {
    return {.block_indptr = block_indptr.to(device),
            .block_indices = block_indices.to(device),
            .last_block_len = last_block_len.to(device)};
  }
};

Rows MakeRows(const std::vector<int>& lens, Random& random) {
  std::vector<int32_t> blocks(kNumBlocks - 1), table, indptr = {0}, indices, last;
  for (int i = 0; i < kNumBlocks - 1; ++i) blocks[i] = i + 1;
  random.Shuffle(blocks);
  auto next = blocks.begin();
  for (int len : lens) {
    const int num_blocks = (len + kBlockSize - 1) / kBlockSize;
    for (int column = 0; column < kMaxBlocks; ++column) {
      table.push_back(column < num_blocks ? *next : -77);
      if (column < num_blocks) indices.push_back(*next++);
    }
    indptr.push_back(static_cast<int32_t>(indices.size()));
    last.push_back(len == 0 ? 0 : len - (num_blocks - 1) * kBlockSize);
  }
  return {.seq_lens = at::tensor(lens, at::kInt),
          .block_table = at::tensor(table, at::kInt).view({-1, kMaxBlocks}),
          .block_indptr = at::tensor(indptr, at::kInt),
          .block_indices = at::tensor(indices, at::kInt),
          .last_block_len = at::tensor(last, at::kInt)};
}

class PlannedAttentionGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "no GPU on this machine";
    stream_ = c10::cuda::getStreamFromPool();
    k_ = at::randn({kNumBlocks, kBlockSize, 2, 64}, Gpu(at::kBFloat16));
    v_ = at::randn({kNumBlocks, kBlockSize, 2, 64}, Gpu(at::kBFloat16));
    q_ = at::randn({kMaxRows, 8, 64}, Gpu(at::kBFloat16));
    out_ = at::full({kMaxRows, 8, 64}, NAN, Gpu(at::kBFloat16));
    lse_ = at::full({kMaxRows, 8}, NAN, Gpu(at::kFloat));
    attention_ = Make();
  }

  static std::unique_ptr<PlannedAttention> Make(int64_t max_custom_mask_bytes = 0,
                                                LayerWindow window = {}) {
    auto made = PlannedAttention::Create({.work = {.num_q_heads = 8,
                                                   .num_kv_heads = 2,
                                                   .head_dim_qk = 64,
                                                   .head_dim_v = 64,
                                                   .max_rows = kMaxRows,
                                                   .max_tokens = kMaxRows,
                                                   .max_seq_len = kMaxSeqLen},
                                          .block_size = kBlockSize,
                                          .max_custom_mask_bytes = max_custom_mask_bytes,
                                          .window = window,
                                          .device = at::kCUDA});
    EXPECT_TRUE(made.ok()) << made.status();
    SetWorkspaces(**made);
    return *std::move(made);
  }

  static void SetWorkspaces(PlannedAttention& attention) {
    EXPECT_GT(attention.partial_bytes(), 0);
    EXPECT_TRUE(attention.SetScheduleWorkspace(Poison(attention.schedule_bytes())).ok());
    EXPECT_TRUE(attention.SetPartialWorkspace(Poison(attention.partial_bytes())).ok());
  }
  static at::Tensor Poison(int64_t bytes) { return at::full({bytes}, 0x7f, Gpu(at::kByte)); }

  absl::Status Run(PlannedAttention& attention, std::optional<int> window_left = {}) {
    const auto view = [](const at::Tensor& tensor) {
      return KvView{.data = tensor.data_ptr(),
                    .block_stride = tensor.stride(0),
                    .token_stride = tensor.stride(1),
                    .head_stride = tensor.stride(2),
                    .dim_chunk = 64};
    };
    const KvLayer kv = {.k = view(k_),
                        .v = view(v_),
                        .dtype = DType::kBFloat16,
                        .num_blocks = kNumBlocks,
                        .block_size = kBlockSize,
                        .num_kv_heads = 2,
                        .head_dim_qk = 64,
                        .head_dim_v = 64};
    const AttentionParams layer = {.num_q_heads = 8,
                                   .num_kv_heads = 2,
                                   .head_dim_qk = 64,
                                   .head_dim_v = 64,
                                   .window_left = window_left};
    return attention.Run(layer, q_, kv, {out_, &lse_});
  }

  // Returns the expected out of the rows, from a separate PlannedAttention.
  at::Tensor Expected(const Rows& rows) {
    const std::unique_ptr<PlannedAttention> other = Make();
    out_.fill_(NAN);
    EXPECT_TRUE(other->Plan(rows.Padded(at::kCUDA)).ok());
    EXPECT_TRUE(Run(*other).ok());
    return out_.clone();
  }

  // Captures `step` on a separate stream.
  cudaGraphExec_t Capture(const std::function<absl::Status()>& step) {
    const c10::cuda::CUDAStreamGuard guard(*stream_);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaStreamBeginCapture(*stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    const absl::Status status = step();
    EXPECT_TRUE(status.ok()) << status;
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(*stream_, &graph), cudaSuccess);
    cudaGraphExec_t exec = nullptr;
    EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return exec;
  }

  at::Tensor Replay(cudaGraphExec_t exec) {
    out_.fill_(NAN);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaGraphLaunch(exec, *stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(*stream_), cudaSuccess);
    return out_.clone();
  }

  // CUDA releases a destroyed graph on a separate thread.
  static bool IsSoonOk(const std::function<absl::Status()>& call) {
    for (int wait = 0; wait < 500; ++wait) {
      if (call().ok()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  at::Tensor k_, v_, q_, out_, lse_;
  std::optional<c10::cuda::CUDAStream> stream_;  // null without a GPU
  Random random_{11};
  std::unique_ptr<PlannedAttention> attention_;
};

TEST_F(PlannedAttentionGpuTest, AllFormsOfInputsGiveBitwiseIdenticalResults) {
  for (const std::vector<int>& lens : {std::vector<int>{1500, 0, 17, 16, 2000}, {1}, {700, 700}}) {
    const Rows rows = MakeRows(lens, random_);
    const at::Tensor expected = Expected(rows);
    PlanInputs mixed = rows.Packed(at::kCUDA);
    mixed.block_indptr = rows.block_indptr;
    for (const PlanInputs& inputs : {rows.Padded(at::kCPU), rows.Padded(at::kCUDA),
                                     rows.Packed(at::kCPU), rows.Packed(at::kCUDA), mixed}) {
      ASSERT_TRUE(attention_->Reset().ok());
      SetWorkspaces(*attention_);
      out_.fill_(NAN);
      const absl::Status planned = attention_->Plan(inputs);
      ASSERT_TRUE(planned.ok()) << planned;
      ASSERT_TRUE(Run(*attention_).ok());
      EXPECT_TRUE(at::equal(out_, expected));
    }
  }
}

TEST_F(PlannedAttentionGpuTest, HostArraysMayBeOverwrittenAfterPlanReturns) {
  std::vector<at::Tensor> outs, expected;
  std::vector<Rows> steps;
  for (int i = 0; i < 40; ++i) steps.push_back(MakeRows({random_.Int(1, 2000), 33}, random_));
  for (const Rows& rows : steps) expected.push_back(Expected(rows));
  PlanInputs inputs = steps[0].Padded(at::kCPU);
  inputs.seq_lens = inputs.seq_lens->clone();
  inputs.block_table = inputs.block_table->clone();
  for (const Rows& rows : steps) {
    inputs.seq_lens->copy_(rows.seq_lens);
    inputs.block_table->copy_(rows.block_table);
    ASSERT_TRUE(attention_->Plan(inputs).ok());
    ASSERT_TRUE(Run(*attention_).ok());
    outs.push_back(out_.clone());
    inputs.seq_lens->fill_(-1);
    inputs.block_table->fill_(-1);
  }
  for (size_t i = 0; i < outs.size(); ++i) {
    EXPECT_TRUE(at::equal(outs[i].slice(0, 0, 2), expected[i].slice(0, 0, 2))) << "step " << i;
  }
}

// A layer's window may be narrower than the planned window. A plan for the narrower window would
// run the kernel in clusters, which have fewer queues than the schedule.
TEST_F(PlannedAttentionGpuTest, LayersMayHaveNarrowerWindowsThanThePlan) {
  const Rows rows = MakeRows(std::vector<int>(kMaxRows, kMaxSeqLen), random_);
  for (const int window_left : {0, 100, 200, 400, 900}) {
    const std::unique_ptr<PlannedAttention> narrow = Make(0, {.left = window_left});
    out_.fill_(NAN);
    ASSERT_TRUE(narrow->Plan(rows.Padded(at::kCUDA)).ok());
    ASSERT_TRUE(Run(*narrow, window_left).ok());
    const at::Tensor expected = out_.to(at::kFloat);
    ASSERT_FALSE(expected.isnan().any().item<bool>());
    out_.fill_(NAN);
    ASSERT_TRUE(attention_->Plan(rows.Padded(at::kCUDA)).ok());
    ASSERT_TRUE(Run(*attention_, window_left).ok());
    EXPECT_TRUE(at::allclose(out_.to(at::kFloat), expected, 0.02, 0.01)) << window_left;
  }
}

// As in FlashInfer: Run() is captured, and Plan() is called before each replay.
TEST_F(PlannedAttentionGpuTest, CapturedRunFollowsPlansFromHostAndDevice) {
  ASSERT_TRUE(attention_->Plan(MakeRows({3, 3, 3}, random_).Padded(at::kCPU)).ok());
  const cudaGraphExec_t exec = Capture([&] { return Run(*attention_); });
  int turn = 0;
  for (const std::vector<int>& lens :
       {std::vector<int>{2000, 1900, 1800}, {5, 0, 1}, {2000, 1, 64}, {0, 0, 0}, {15, 16, 17}}) {
    const Rows rows = MakeRows(lens, random_);
    const at::Tensor expected = Expected(rows);
    const at::Device device = turn % 2 == 0 ? at::kCPU : at::kCUDA;
    ASSERT_TRUE(attention_->Plan(turn % 3 == 0 ? rows.Packed(device) : rows.Padded(device)).ok());
    EXPECT_TRUE(at::equal(Replay(exec), expected)) << "turn " << turn;
    ++turn;
  }
  // The graph has a fixed size.
  EXPECT_THAT(std::string(attention_->Plan(MakeRows({4, 4}, random_).Padded(at::kCPU)).message()),
              HasSubstr("expected 3 rows and 3 tokens (pad with rows of seq_len 0), got 2 and 2"));
  ASSERT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_TRUE(IsSoonOk([&] {
    return attention_->Plan(MakeRows({4, 4}, random_).Padded(at::kCPU));
  }));
}

TEST_F(PlannedAttentionGpuTest, EveryReplayRebuildsACapturedPlan) {
  std::vector<Rows> held;
  std::vector<PlanInputs> inputs;
  std::vector<cudaGraphExec_t> execs;
  for (int rows : {kMaxRows, 3, 1}) {
    held.push_back(MakeRows(std::vector<int>(rows, 2), random_));
    inputs.push_back(held.back().Padded(at::kCUDA));
    execs.push_back(Capture([&] {
      const absl::Status planned = attention_->Plan(inputs.back());
      return planned.ok() ? Run(*attention_) : planned;
    }));
  }
  for (int round = 0; round < 4; ++round) {
    for (size_t i = 0; i < execs.size(); ++i) {
      std::vector<int> lens(inputs[i].seq_lens->size(0));
      for (int& len : lens) len = random_.Pick({0, 1, 900, random_.Int(1, 2000)});
      const Rows rows = MakeRows(lens, random_);
      const at::Tensor expected = Expected(rows);
      inputs[i].seq_lens->copy_(rows.seq_lens);
      inputs[i].block_table->copy_(rows.block_table);
      EXPECT_TRUE(at::equal(Replay(execs[i]), expected)) << "graph " << i;
    }
  }
  // The last captured plan has not run outside a graph.
  EXPECT_THAT(std::string(Run(*attention_).message()), HasSubstr("Plan() was captured"));
  ASSERT_TRUE(attention_->Plan(inputs[0]).ok());
  EXPECT_TRUE(Run(*attention_).ok());
  for (cudaGraphExec_t exec : execs) ASSERT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
}

// A row whose mask shows only its first n keys must match a row of n keys.
TEST_F(PlannedAttentionGpuTest, EveryReplayReadsTheMasksOfACapturedPlan) {
  constexpr int kMaskBytes = kMaxSeqLen / 8;
  const auto masks_of = [](const std::vector<int>& shown) {
    at::Tensor masks = at::zeros({kMaxRows * kMaskBytes}, at::kByte);
    for (size_t r = 0; r < shown.size(); ++r) {
      uint8_t* const bytes = masks.data_ptr<uint8_t>() + r * kMaskBytes;
      for (int key = 0; key < shown[r]; ++key) bytes[key / 8] |= 1 << key % 8;
    }
    return masks;
  };
  const std::unique_ptr<PlannedAttention> masked = Make(kMaxRows * kMaskBytes);
  std::vector<int> lens = {2000, 900, 64, 1, 17, 0};
  const Rows rows = MakeRows(lens, random_);
  PlanInputs inputs = rows.Padded(at::kCUDA);
  inputs.custom_mask = masks_of(lens).to(at::kCUDA);
  inputs.custom_mask_offset = (at::arange(kMaxRows, at::kLong) * kMaskBytes).to(at::kCUDA);
  const cudaGraphExec_t exec = Capture([&] {
    const absl::Status planned = masked->Plan(inputs);
    return planned.ok() ? Run(*masked) : planned;
  });
  for (int round = 0; round < 6; ++round) {
    std::vector<int> shown = lens;
    if (round > 0) {
      for (int& n : shown) n = random_.Int(0, n);
    }
    inputs.custom_mask->copy_(masks_of(shown));
    Rows of_shown = rows;
    of_shown.seq_lens = at::tensor(shown, at::kInt);
    const at::Tensor expected = Expected(of_shown);
    const at::Tensor got = Replay(exec);
    // Uses another kernel and other splits, so the order of summation differs.
    EXPECT_TRUE(at::allclose(got.to(at::kFloat), expected.to(at::kFloat), 0.02, 0.01))
        << "round " << round;
  }
  inputs.custom_mask_offset->fill_(-1);
  const at::Tensor expected = Expected(rows);
  EXPECT_TRUE(at::allclose(Replay(exec).to(at::kFloat), expected.to(at::kFloat), 0.02, 0.01))
      << "rows without a mask";
  ASSERT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
}

TEST_F(PlannedAttentionGpuTest, RejectsHostArraysUnderCapture) {
  const Rows rows = MakeRows({5, 6}, random_);
  ASSERT_TRUE(attention_->Plan(rows.Padded(at::kCPU)).ok());
  const cudaGraphExec_t exec = Capture([&] {
    const absl::Status refused = attention_->Plan(rows.Padded(at::kCPU));
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("seq_lens must be on the device where Plan() is captured: expected "
                          "cuda:0, got cpu"));
    return Run(*attention_);  // the rejected call has no side effects
  });
  EXPECT_TRUE(at::equal(Replay(exec), Expected(rows)));
  ASSERT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
}

TEST_F(PlannedAttentionGpuTest, RejectsReplacingWorkspacesWhileAGraphExists) {
  const Rows rows = MakeRows({900, 5}, random_);
  ASSERT_TRUE(attention_->Plan(rows.Padded(at::kCPU)).ok());
  const cudaGraphExec_t exec = Capture([&] { return Run(*attention_); });
  const at::Tensor expected = Replay(exec);
  EXPECT_EQ(
      attention_->SetScheduleWorkspace(Poison(attention_->schedule_bytes())),
      absl::FailedPreconditionError(
          "schedule_workspace must stay while captured graphs use it: expected 0 graphs, got 1"));
  EXPECT_EQ(attention_->SetPartialWorkspace(Poison(attention_->partial_bytes())).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(attention_->Reset().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(at::equal(Replay(exec), expected));
  ASSERT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_TRUE(IsSoonOk([&] { return attention_->Reset(); }));
}

TEST_F(PlannedAttentionGpuTest, RejectsWorkspacesOnAnotherDeviceOrUnaligned) {
  const std::unique_ptr<PlannedAttention> attention = Make();
  const int64_t bytes = attention->schedule_bytes();
  EXPECT_THAT(std::string(attention->SetScheduleWorkspace(at::zeros({bytes}, at::kByte)).message()),
              HasSubstr("schedule_workspace has the wrong device: expected cuda:0, got cpu"));
  EXPECT_THAT(
      std::string(attention->SetScheduleWorkspace(Poison(bytes + 256).slice(0, 16)).message()),
      HasSubstr("schedule_workspace must be aligned: expected a multiple of 256 bytes, got 16"));
}

// Layers of two classes, one after the other, share one workspace of partial results.
TEST_F(PlannedAttentionGpuTest, SupportsASharedPartialWorkspace) {
  const std::unique_ptr<PlannedAttention> other = Make();
  const at::Tensor partials = Poison(attention_->partial_bytes());
  ASSERT_TRUE(attention_->SetPartialWorkspace(partials).ok());
  ASSERT_TRUE(other->SetPartialWorkspace(partials).ok());
  const Rows a = MakeRows({2000, 1900}, random_);
  const Rows b = MakeRows({33, 2000, 700}, random_);
  const at::Tensor expected_a = Expected(a);
  const at::Tensor expected_b = Expected(b);
  ASSERT_TRUE(attention_->Plan(a.Padded(at::kCUDA)).ok());
  ASSERT_TRUE(other->Plan(b.Padded(at::kCUDA)).ok());
  for (int layer = 0; layer < 3; ++layer) {
    ASSERT_TRUE(Run(*attention_).ok());
    EXPECT_TRUE(at::equal(out_, expected_a));
    ASSERT_TRUE(Run(*other).ok());
    EXPECT_TRUE(at::equal(out_, expected_b));
  }
}

}  // namespace
}  // namespace reprise
