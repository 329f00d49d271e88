// Tests the tile schedule and attention captured in a CUDA graph and replayed over changing
// batches, offsets beyond 2^31, and bitwise identical results in every run.

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/attention/cuda/attention_cuda.h"
#include "reprise/attention/cuda/tiles.h"
#include "reprise/attention/testing/gpu_memory.h"
#include "reprise/attention/testing/random.h"
#include "reprise/attention/tile_schedule/tile_schedule_build.h"
#include "reprise/base/torch_dtype.h"

namespace reprise {
namespace {

constexpr uint64_t kSeed = 6;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

at::TensorOptions Gpu(at::ScalarType type) {
  return at::TensorOptions().dtype(type).device(at::kCUDA);
}

struct StepOptions {
  int max_rows = 17;
  int max_query_len = 1;
  int max_seq_len = 3000;
  int num_kv_heads = 2;
  int group_size = 4;
  int head_dim = 128;
  int head_dim_v = 128;
  int block_size = 16;
  at::ScalarType kv_type = at::kBFloat16;
  ValueSource values = ValueSource::kOwn;
  int shared_prefix_len = 0;  // keys that all rows have in common; used by the schedule
  bool has_sinks = false;
  std::optional<float> softcap = {};
  std::optional<int> window_left = {};
  TileScheduleMode mode = TileScheduleMode::kBalanced;
  int decode_query_len = 1;
  RowAssignment row_assignment = RowAssignment::kByBatch;
  int max_tier = 2;
};

// Persistent buffers of the maximum size, as for a captured step. Each row has all the blocks that
// it may ever need. Rows share only the blocks of a common prefix.
class Step {
 public:
  explicit Step(const StepOptions& options)
      : options_(options), work_(WorkOptions()), random_(kSeed) {
    const int max_blocks = (options.max_seq_len + options.block_size - 1) / options.block_size;
    const int num_blocks = options.max_rows * max_blocks + 1;
    std::vector<int32_t> blocks(num_blocks - 1);
    for (int i = 0; i < num_blocks - 1; ++i) blocks[i] = i + 1;
    random_.Shuffle(blocks);
    for (int r = 1; r < options.max_rows; ++r) {
      std::copy_n(blocks.begin(), options.shared_prefix_len / options.block_size,
                  blocks.begin() + r * max_blocks);
    }
    block_table_ = at::tensor(blocks, at::kInt).to(at::kCUDA).view({options.max_rows, max_blocks});
    max_tokens_ = options.max_rows * options.max_query_len;
    const int heads = options.num_kv_heads;
    const auto cache = [&](int head_dim) {
      return at::randn({num_blocks, options.block_size, heads, head_dim}, Gpu(at::kBFloat16))
          .to(options.kv_type);
    };
    k_ = cache(options.head_dim);
    v_ = options.values == ValueSource::kOwn ? cache(options.head_dim_v)
                                             : k_.slice(3, 0, options.head_dim_v);
    q_ = at::randn({max_tokens_, heads * options.group_size, options.head_dim}, Gpu(at::kBFloat16));
    query_start_loc_ = at::zeros({options.max_rows + 1}, Gpu(at::kInt));
    seq_lens_ = at::zeros({options.max_rows}, Gpu(at::kInt));
    common_prefix_len_ = at::zeros({1}, Gpu(at::kInt));
    out_ = at::full({max_tokens_, heads * options.group_size, options.head_dim_v}, kNan,
                    Gpu(at::kBFloat16));
    lse_ = at::full({max_tokens_, heads * options.group_size}, kNan, Gpu(at::kFloat));
    layer_ = {.num_q_heads = heads * options.group_size,
              .num_kv_heads = heads,
              .head_dim_qk = options.head_dim,
              .head_dim_v = options.head_dim_v,
              .window_left = options.window_left,
              .softcap = options.softcap};
    if (options.has_sinks) {
      sinks_ = at::randn({layer_.num_q_heads}, Gpu(at::kFloat));
      layer_.sinks = sinks_.const_data_ptr<float>();
    }
  }

  // Sets the lengths of the next run; the remaining rows have no queries.
  void SetRows(const std::vector<int>& seq_lens, const std::vector<int>& query_lens) {
    std::vector<int32_t> loc(options_.max_rows + 1, 0);
    std::vector<int32_t> lens(options_.max_rows, 0);
    int32_t prefix_len = options_.shared_prefix_len;
    for (int r = 0; r < options_.max_rows; ++r) {
      const bool is_live = r < static_cast<int>(seq_lens.size());
      loc[r + 1] = loc[r] + (is_live ? query_lens[r] : 0);
      lens[r] = is_live ? seq_lens[r] : 0;
      if (lens[r] > 0 && loc[r + 1] > loc[r]) prefix_len = std::min(prefix_len, lens[r]);
    }
    common_prefix_len_.fill_(prefix_len);
    query_start_loc_.copy_(at::tensor(loc, at::kInt));
    seq_lens_.copy_(at::tensor(lens, at::kInt));
  }

  // Whether the schedule of the shortest rows has partial slots per CTA queue.
  bool HasPartialsByQueue() const {
    const TileSchedule& schedule = work_.schedule();
    return (schedule.has_short_rows() ? schedule.short_rows : schedule.main).queue_partials > 0;
  }

  void Poison() {
    work_.Poison();
    out_.fill_(kNan);
    lse_.fill_(kNan);
  }

  // Simulates a run that was aborted: builds the schedule of these rows, and sets arrival counters
  // to random values.
  void Abort(const std::vector<int>& seq_lens, const std::vector<int>& query_lens) {
    SetRows(seq_lens, query_lens);
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    ASSERT_TRUE(LaunchTileSchedule(Batch(), WindowOf(layer_), work_.schedule(), stream).ok());
    for (const KernelSchedule& schedule : {work_.schedule().main, work_.schedule().short_rows}) {
      std::vector<uint32_t> arrivals(int64_t{schedule.max_merges} * schedule.num_head_tiles);
      for (uint32_t& arrival : arrivals) arrival = random_.Int(0, 40);
      ASSERT_EQ(cudaMemcpy(schedule.arrivals, arrivals.data(), arrivals.size() * sizeof(uint32_t),
                           cudaMemcpyHostToDevice),
                cudaSuccess);
      arrivals.resize(int64_t{schedule.max_partials} * schedule.num_head_tiles);
      for (uint32_t& arrival : arrivals) arrival = random_.Int(0, 16);
      ASSERT_EQ(cudaMemcpy(schedule.group_arrivals, arrivals.data(),
                           arrivals.size() * sizeof(uint32_t), cudaMemcpyHostToDevice),
                cudaSuccess);
    }
  }

  absl::Status Launch() {
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    const absl::Status built =
        LaunchTileSchedule(Batch(), WindowOf(layer_), work_.schedule(), stream).status();
    return built.ok() ? Attend() : built;
  }

  // Runs attention with the existing schedule.
  absl::Status Attend() {
    return PagedAttentionCuda(layer_, Batch(), WorkOf(Batch(), WindowOf(layer_), work_.schedule()),
                              q_, Kv(), {out_, &lse_});
  }

  const TileSchedule& schedule() const { return work_.schedule(); }
  at::Tensor q() { return q_; }
  at::Tensor out() { return out_; }
  const at::Tensor& lse() const { return lse_; }
  const StepOptions& options() const { return options_; }
  Random& random() { return random_; }

  // Copies the cache's blocks to `k` and `v`, at block ids that are `distance` higher.
  void MoveCache(const at::Tensor& k, const at::Tensor& v, int64_t distance) {
    k.slice(0, distance, distance + k_.size(0)).copy_(k_);
    v.slice(0, distance, distance + v_.size(0)).copy_(v_);
    k_ = k;
    v_ = v;
    block_table_.add_(distance);
  }
  const at::Tensor& k() const { return k_; }

  // Attention of one query by the definition, in float64.
  at::Tensor Expected(int row, int token, int num_keys) const;

 private:
  TileScheduleOptions WorkOptions() const {
    return {.num_q_heads = options_.num_kv_heads * options_.group_size,
            .num_kv_heads = options_.num_kv_heads,
            .head_dim_qk = options_.head_dim,
            .head_dim_v = options_.head_dim_v,
            .max_rows = options_.max_rows,
            .max_tokens = options_.max_rows * options_.max_query_len,
            .max_query_len = options_.max_query_len,
            .max_seq_len = options_.max_seq_len,
            .mode = options_.mode,
            .decode_query_len = options_.decode_query_len,
            .kernels = {.max_tier = options_.max_tier},
            .shared_prefix =
                options_.shared_prefix_len > 0 ? SharedPrefix::kTaken : SharedPrefix::kIgnored,
            .row_assignment = options_.row_assignment};
  }

  PagedBatch Batch() const {
    return {.query_start_loc = query_start_loc_.const_data_ptr<int32_t>(),
            .seq_lens = seq_lens_.const_data_ptr<int32_t>(),
            .block_table = block_table_.const_data_ptr<int32_t>(),
            .block_table_stride = block_table_.stride(0),
            .common_prefix_len = common_prefix_len_.const_data_ptr<int32_t>(),
            .num_rows = options_.max_rows,
            .num_tokens = max_tokens_,
            .max_query_len = options_.max_query_len,
            .max_seq_len = options_.max_seq_len,
            .num_tables = options_.max_rows,
            .max_blocks = static_cast<int>(block_table_.size(1))};
  }

  KvLayer Kv() const {
    const auto view = [](const at::Tensor& tensor) {
      return KvView{.data = tensor.data_ptr(),
                    .block_stride = tensor.stride(0),
                    .token_stride = tensor.stride(1),
                    .head_stride = tensor.stride(2),
                    .dim_chunk = static_cast<int>(tensor.size(3))};
    };
    return {.k = view(k_),
            .v = view(v_),
            .dtype = *FromScalarType(options_.kv_type),
            .num_blocks = static_cast<int>(k_.size(0)),
            .block_size = options_.block_size,
            .num_kv_heads = options_.num_kv_heads,
            .head_dim_qk = options_.head_dim,
            .head_dim_v = options_.head_dim_v};
  }

  StepOptions options_;
  GpuTileSchedule work_;
  Random random_;
  int max_tokens_ = 0;
  AttentionParams layer_;
  at::Tensor sinks_;        // [num_q_heads], if the layer has sinks
  at::Tensor block_table_;  // [max_rows, max_blocks]
  at::Tensor k_;            // [num_blocks, block_size, num_kv_heads, head_dim]
  at::Tensor v_;            // [num_blocks, block_size, num_kv_heads, head_dim_v]
  at::Tensor q_;            // [max_tokens, num_q_heads, head_dim]
  at::Tensor query_start_loc_;
  at::Tensor seq_lens_;
  at::Tensor common_prefix_len_;
  at::Tensor out_;
  at::Tensor lse_;
};

at::Tensor Step::Expected(int row, int token, int num_keys) const {
  const int64_t num_blocks = (num_keys + options_.block_size - 1) / options_.block_size;
  const at::Tensor blocks = block_table_[row].slice(0, 0, num_blocks);
  const auto keys = [&](const at::Tensor& cache) {  // [q heads, num_keys, head_dim]
    // Not every type can be indexed.
    return cache.to(at::kBFloat16)
        .index_select(0, blocks)
        .flatten(0, 1)
        .slice(0, 0, num_keys)
        .to(at::kFloat)
        .to(at::kDouble)
        .repeat_interleave(options_.group_size, 1)
        .transpose(0, 1);
  };
  const at::Tensor q = q_[token].to(at::kDouble).unsqueeze(1);  // [heads, 1, head_dim]
  at::Tensor scores = q.matmul(keys(k_).transpose(1, 2)) / std::sqrt(options_.head_dim);
  if (options_.softcap) scores = (scores / *options_.softcap).tanh() * *options_.softcap;
  if (options_.has_sinks) scores = at::cat({scores, sinks_.to(at::kDouble).view({-1, 1, 1})}, 2);
  const at::Tensor weights = scores.softmax(-1).slice(2, 0, num_keys);
  return weights.matmul(keys(v_)).squeeze(1);  // [heads, head_dim]
}

class CapturedStep {
 public:
  explicit CapturedStep(Step& step) : stream_(c10::cuda::getStreamFromPool()) {
    const c10::cuda::CUDAStreamGuard guard(stream_);
    EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    const absl::Status status = step.Launch();
    EXPECT_TRUE(status.ok()) << status;
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&exec_, graph, 0), cudaSuccess);
    cudaGraphDestroy(graph);
  }
  ~CapturedStep() { cudaGraphExecDestroy(exec_); }
  CapturedStep(const CapturedStep&) = delete;
  CapturedStep& operator=(const CapturedStep&) = delete;

  void Replay() {
    cudaDeviceSynchronize();  // for the test's work on other streams
    EXPECT_EQ(cudaGraphLaunch(exec_, stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }

 private:
  c10::cuda::CUDAStream stream_;
  cudaGraphExec_t exec_ = nullptr;
};

class AttentionGraphGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "no GPU on this machine";
  }
};

class AttentionGraphSmallGpuTest : public AttentionGraphGpuTest {};

// Expects that a replay over poisoned memory is bitwise identical to an eager run, and correct.
void ExpectReplayEqualsEager(Step& step, CapturedStep& captured, const std::vector<int>& seq_lens,
                             const std::vector<int>& query_lens) {
  step.SetRows(seq_lens, query_lens);
  step.Poison();
  captured.Replay();
  const at::Tensor out = step.out().clone();
  const at::Tensor lse = step.lse().clone();
  step.Poison();
  ASSERT_TRUE(step.Launch().ok());
  ASSERT_TRUE(at::equal(out, step.out()));
  ASSERT_TRUE(at::equal(lse, step.lse()));

  int token = 0;
  for (size_t r = 0; r < seq_lens.size(); ++r) {
    for (int i = 0; i < query_lens[r]; ++i, ++token) {
      const int num_keys = seq_lens[r] - query_lens[r] + i + 1;
      if (num_keys <= 0) continue;
      const at::Tensor error =
          (out[token].to(at::kDouble) - step.Expected(r, token, num_keys)).abs();
      ASSERT_LE(error.max().item<double>(), 0.03) << "row " << r << ", token " << token;
    }
  }
  const at::Tensor rest = out.slice(0, token);
  ASSERT_TRUE(at::equal(rest, at::zeros_like(rest))) << "tokens past " << token;
}

void ReplayEveryLiveCount(Step& step) {
  const int max_rows = step.options().max_rows;
  const int max_query_len = step.options().max_query_len;
  const int max_seq_len = step.options().max_seq_len;
  // Captured with short rows.
  step.SetRows(std::vector<int>(max_rows, 3), std::vector<int>(max_rows, 1));
  CapturedStep captured(step);
  for (int live = 0; live <= max_rows; ++live) {
    // Long rows, then short rows in the memory of the larger schedule, then rows of any length.
    for (int kind = 0; kind < 3; ++kind) {
      SCOPED_TRACE(std::to_string(live) + " rows of kind " + std::to_string(kind));
      std::vector<int> seq_lens(live);
      std::vector<int> query_lens(live);
      for (int r = 0; r < live; ++r) {
        seq_lens[r] =
            kind == 0 ? max_seq_len
            : kind == 1
                ? step.random().Int(1, 20)
                : step.random().Pick({0, 1, 64, 65, std::min(700, max_seq_len), max_seq_len});
        query_lens[r] = step.random().Int(1, max_query_len);
      }
      ExpectReplayEqualsEager(step, captured, seq_lens, query_lens);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST_F(AttentionGraphGpuTest, DecodeReplaysWithAnyLiveCountAndLengths) {
  Step step({});
  ReplayEveryLiveCount(step);
}

TEST_F(AttentionGraphGpuTest, VerifyReplaysWithAnyLiveCountAndLengths) {
  Step step({.max_rows = 5, .max_query_len = 5, .max_seq_len = 1000});
  ReplayEveryLiveCount(step);
}

TEST_F(AttentionGraphGpuTest, VerifyReplaysWithTheGeneralKernels) {
  Step step({.max_rows = 5, .max_query_len = 5, .max_seq_len = 1000, .max_tier = 1});
  ReplayEveryLiveCount(step);
}

// Rows with many Q tiles, which may be split.
TEST_F(AttentionGraphGpuTest, ChunksOfPromptsReplayAsWell) {
  for (int max_tier : {1, 2}) {
    Step step({.max_rows = 3, .max_query_len = 150, .max_seq_len = 900, .max_tier = max_tier});
    ReplayEveryLiveCount(step);
  }
}

TEST_F(AttentionGraphGpuTest, DeterministicModeReplaysAsWell) {
  Step step({.max_rows = 5, .mode = TileScheduleMode::kDeterministic});
  ReplayEveryLiveCount(step);
}

// Decodes, chunks of prompts and padded rows in one step: one kernel for the short rows, another
// for the long rows.
TEST_F(AttentionGraphGpuTest, ShortAndLongRowsReplayInOneStep) {
  for (TileScheduleMode mode : {TileScheduleMode::kBalanced, TileScheduleMode::kDeterministic}) {
    Step step({.max_rows = 12,
               .max_query_len = 150,
               .max_seq_len = 1500,
               .mode = mode,
               .row_assignment = RowAssignment::kByRow});
    ReplayEveryLiveCount(step);
    CapturedStep captured(step);
    for (int round = 0; round < 15; ++round) {
      std::vector<int> seq_lens, query_lens;
      for (int r = step.random().Int(1, 12); r > 0; --r) {
        const bool is_padded = step.random().OneIn(9);
        seq_lens.push_back(is_padded ? 0 : step.random().Int(150, 1500));
        query_lens.push_back(step.random().Pick({is_padded ? 0 : 1, 1, 4, 5, 150}));
      }
      ExpectReplayEqualsEager(step, captured, seq_lens, query_lens);
      if (HasFatalFailure()) return;
    }
  }
}

// The batch's bounds select one schedule, round-robin or split depending on the lengths.
TEST_F(AttentionGraphGpuTest, ShortRowsReplayInTheKernelForLongRows) {
  for (int max_seq_len : {700, 1900}) {
    Step step({.max_rows = 24, .max_query_len = 150, .max_seq_len = max_seq_len});
    ASSERT_GE(step.schedule().max_joined_steps, 24 * (max_seq_len / kWorkStepKeys + 1));
    CapturedStep captured(step);
    for (int round = 0; round < 12; ++round) {
      std::vector<int> seq_lens, query_lens;
      for (int r = step.random().Int(1, 24); r > 0; --r) {
        const bool is_padded = step.random().OneIn(9);
        seq_lens.push_back(is_padded ? 0 : step.random().Int(150, max_seq_len));
        query_lens.push_back(step.random().Pick({is_padded ? 0 : 1, 1, 1, 1, 1, 5, 150}));
      }
      ExpectReplayEqualsEager(step, captured, seq_lens, query_lens);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(AttentionGraphSmallGpuTest, ReplaysWithAnyLiveCountAndLengths) {
  Step step({.max_rows = 2, .max_query_len = 2, .max_seq_len = 300, .num_kv_heads = 1});
  ReplayEveryLiveCount(step);
}

TEST_F(AttentionGraphGpuTest, QuantisedCachesReplayAsWell) {
  Step step({.max_rows = 4, .max_query_len = 3, .max_seq_len = 700, .kv_type = at::kFloat8_e4m3fn});
  ReplayEveryLiveCount(step);
}

TEST_F(AttentionGraphGpuTest, LatentHeadsReplayAsWell) {
  for (int group_size : {16, 128}) {
    Step step({.max_rows = 3,
               .max_query_len = 2,
               .max_seq_len = 500,
               .num_kv_heads = 1,
               .group_size = group_size,
               .head_dim = 576,
               .head_dim_v = 512,
               .values = ValueSource::kKeyTile});
    ReplayEveryLiveCount(step);
  }
}

std::string NameOf(const StepOptions& options) {
  return "query_len " + std::to_string(options.max_query_len) + ", head_dim " +
         std::to_string(options.head_dim) + ", tier " + std::to_string(options.max_tier) +
         ", KV of " + c10::toString(options.kv_type) + ", shared " +
         std::to_string(options.shared_prefix_len) + ", mode " +
         std::to_string(static_cast<int>(options.mode)) + ", row assignment " +
         std::to_string(static_cast<int>(options.row_assignment));
}

// Replays switch sharing off and on, depending on the lengths of the rows. Sinks count once, in the
// combine of the prefix with each row's other keys.
TEST_F(AttentionGraphGpuTest, SharedPrefixesReplayAsWell) {
  const StepOptions plain = {.max_rows = 20, .max_seq_len = 700, .shared_prefix_len = 512};
  StepOptions drafts = plain;
  drafts.max_query_len = 3;
  StepOptions special = drafts;
  special.kv_type = at::kFloat8_e4m3fn;
  special.has_sinks = true;
  special.softcap = 2.0f;
  for (const StepOptions& options : {plain, drafts, special}) {
    SCOPED_TRACE(NameOf(options));
    Step step(options);
    ReplayEveryLiveCount(step);
    CapturedStep captured(step);
    for (int round = 0; round < 10; ++round) {
      std::vector<int> seq_lens, query_lens;
      for (int r = step.random().Int(2, 20); r > 0; --r) {
        const bool is_padded = step.random().OneIn(9);
        seq_lens.push_back(is_padded ? 0 : step.random().Int(515, 700));
        query_lens.push_back(step.random().Int(is_padded ? 0 : 1, options.max_query_len));
      }
      ExpectReplayEqualsEager(step, captured, seq_lens, query_lens);
      if (HasFatalFailure()) return;
    }
  }
}

// Steps for all kinds of kernels that combine splits.
std::vector<StepOptions> StepsThatMerge() {
  return {
      {.max_rows = 8},
      {.max_rows = 8, .shared_prefix_len = 512},
      {.max_rows = 8, .mode = TileScheduleMode::kDeterministic},
      {.max_rows = 4, .max_query_len = 5, .max_tier = 1},
      {.max_rows = 4, .max_query_len = 5},
      {.max_rows = 4, .max_query_len = 200, .max_tier = 1},
      {.max_rows = 4, .max_query_len = 200},
      {.max_rows = 4, .max_query_len = 200, .shared_prefix_len = 256},
      {.max_rows = 4, .max_query_len = 200, .row_assignment = RowAssignment::kByRow},
      {.max_rows = 4, .max_query_len = 200, .mode = TileScheduleMode::kDeterministic},
      {.max_rows = 8, .kv_type = at::kFloat8_e4m3fn},
      {.max_rows = 4, .max_query_len = 4, .kv_type = at::kFloat8_e5m2},
      {.max_rows = 4, .head_dim = 256, .head_dim_v = 256},
      {.max_rows = 4, .max_query_len = 100, .head_dim = 256, .head_dim_v = 256, .max_tier = 1},
      {.max_rows = 4, .max_query_len = 100, .head_dim = 256, .head_dim_v = 256},
      {.max_rows = 4, .max_query_len = 100, .head_dim = 192, .head_dim_v = 128},
      {.max_rows = 4,
       .max_query_len = 2,
       .num_kv_heads = 1,
       .group_size = 16,
       .head_dim = 576,
       .head_dim_v = 512,
       .values = ValueSource::kKeyTile},
  };
}

TEST_F(AttentionGraphGpuTest, AbortedReplayDoesNotAffectLaterReplays) {
  for (const StepOptions& options : StepsThatMerge()) {
    SCOPED_TRACE(NameOf(options));
    Step step(options);
    const int rows = options.max_rows;
    const std::vector<int> query_lens(rows, options.max_query_len);
    std::vector<int> seq_lens(rows, 2900);
    seq_lens[1] = 600;
    step.SetRows(seq_lens, query_lens);
    CapturedStep captured(step);
    captured.Replay();
    const at::Tensor out = step.out().clone();
    const at::Tensor lse = step.lse().clone();
    // The same rows, more keys, fewer keys, one row; over poisoned memory and over old contents.
    const std::vector<std::vector<int>> aborted = {
        seq_lens, std::vector<int>(rows, 3000), std::vector<int>(rows, 520), {3000}};
    for (int round = 0; round < 8; ++round) {
      if (round % 2 == 0) step.Poison();
      const std::vector<int>& others = aborted[round / 2];
      step.Abort(others, std::vector<int>(others.size(), options.max_query_len));
      step.SetRows(seq_lens, query_lens);
      captured.Replay();
      ASSERT_TRUE(at::equal(step.out(), out)) << "round " << round;
      ASSERT_TRUE(at::equal(step.lse(), lse)) << "round " << round;
    }
  }
}

TEST_F(AttentionGraphGpuTest, TwoHundredRunsAreBitwiseIdentical) {
  for (const StepOptions& options : StepsThatMerge()) {
    SCOPED_TRACE(NameOf(options));
    Step step(options);
    const int longest = options.max_query_len;
    std::vector<int> seq_lens = {3000, 700, 600, 2000};
    std::vector<int> query_lens = {longest, std::min(3, longest), 1, longest};
    step.SetRows(seq_lens, query_lens);
    ASSERT_TRUE(step.Launch().ok());
    const at::Tensor out = step.out().clone();
    const at::Tensor lse = step.lse().clone();
    for (int run = 0; run < 200; ++run) {
      step.Poison();
      ASSERT_TRUE(step.Launch().ok());
      ASSERT_TRUE(at::equal(step.out(), out)) << "run " << run;
      ASSERT_TRUE(at::equal(step.lse(), lse)) << "run " << run;
    }
  }
}

// More splits than kMaxSplitsAtOnce. Deterministic mode has fewer splits.
TEST_F(AttentionGraphGpuTest, CombinesOfManySplitsAreBitwiseIdenticalInEveryRun) {
  for (int max_query_len : {1, 3}) {
    StepOptions options = {
        .max_rows = 4, .max_query_len = max_query_len, .max_seq_len = 20000, .num_kv_heads = 1};
    const std::vector<int> seq_lens = {20000, 50, 9000, 20000};
    const std::vector<int> query_lens = {max_query_len, 1, max_query_len, 1};
    at::manual_seed(kSeed);
    Step step(options);
    CapturedStep captured(step);
    step.SetRows(seq_lens, query_lens);
    captured.Replay();
    EXPECT_GT(MaxSplits(step.schedule().main), kMaxSplitsAtOnce);
    const at::Tensor out = step.out().clone();
    const at::Tensor lse = step.lse().clone();
    for (int run = 0; run < 50; ++run) {
      step.Poison();
      if (run % 5 == 0) step.Abort({15000, 20000}, {1, 1});
      step.SetRows(seq_lens, query_lens);
      captured.Replay();
      ASSERT_TRUE(at::equal(step.out(), out)) << "run " << run;
      ASSERT_TRUE(at::equal(step.lse(), lse)) << "run " << run;
    }
    options.mode = TileScheduleMode::kDeterministic;
    at::manual_seed(kSeed);  // the same keys
    Step deterministic(options);
    deterministic.SetRows(seq_lens, query_lens);
    ASSERT_TRUE(deterministic.Launch().ok());
    ASSERT_LE(MaxSplits(deterministic.schedule().main), kMaxDeterministicSplits);
    EXPECT_TRUE(at::allclose(step.out(), deterministic.out(), 1e-2, 2e-4));
    EXPECT_TRUE(at::allclose(step.lse(), deterministic.lse(), 1e-5, 1e-5));
  }
}

// The kernel may start before earlier work has ended: kernels, copies, work on other streams.
TEST_F(AttentionGraphGpuTest, WaitsForAllEarlierWorkOnTheStream) {
  Step step({.max_rows = 4});
  step.SetRows({3000, 700, 1, 2000}, {1, 1, 1, 1});
  ASSERT_TRUE(step.Launch().ok());
  const at::Tensor out = step.out().clone();
  const at::Tensor q = step.q().clone();
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStream other = c10::cuda::getStreamFromPool();
  cudaEvent_t fork = nullptr;
  cudaEvent_t join = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&join, cudaEventDisableTiming), cudaSuccess);
  const c10::cuda::CUDAStreamGuard guard(stream);
  const auto by_kernel = [&] { step.q().fill_(kNan).zero_().add_(q); };
  const auto by_copy = [&] { step.q().fill_(kNan).copy_(q); };
  // The last kernel on the stream itself does not write the queries.
  at::Tensor aside = at::zeros_like(q);
  const auto on_other_stream = [&] {
    step.q().fill_(kNan);
    cudaEventRecord(fork, stream);
    cudaStreamWaitEvent(other, fork, 0);
    {
      const c10::cuda::CUDAStreamGuard other_guard(other);
      by_kernel();
    }
    cudaEventRecord(join, other);
    aside.add_(1);
    cudaStreamWaitEvent(stream, join, 0);
  };
  const std::function<void()> befores[] = {by_kernel, by_copy, on_other_stream};
  for (const std::function<void()>& before : befores) {
    SCOPED_TRACE(&before - befores);
    // With and without capture.
    cudaDeviceSynchronize();
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    before();
    const absl::Status status = step.Attend();
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ASSERT_TRUE(status.ok()) << status;
    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int run = 0; run < 40; ++run) {
      step.out().fill_(kNan);
      if (run % 2 == 0) {
        ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
      } else {
        before();
        ASSERT_TRUE(step.Attend().ok());
      }
      ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      ASSERT_TRUE(at::equal(step.out(), out)) << "run " << run;
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
  }
  cudaEventDestroy(fork);
  cudaEventDestroy(join);
}

TEST_F(AttentionGraphGpuTest, DeterministicRowIsBitwiseIndependentOfOtherRows) {
  Step step({.max_rows = 6, .mode = TileScheduleMode::kDeterministic});
  const std::vector<std::vector<int>> companies = {
      {2500, 0, 0, 0, 0, 0}, {2500, 3000, 3000, 3000, 3000, 3000}, {2500, 1, 900, 0, 64, 3}};
  at::Tensor alone;
  for (const std::vector<int>& seq_lens : companies) {
    step.SetRows(seq_lens, std::vector<int>(6, 1));
    ASSERT_TRUE(step.Launch().ok());
    if (!alone.defined()) alone = step.out()[0].clone();
    EXPECT_TRUE(at::equal(step.out()[0], alone));
  }
}

// A decode uses the same tile with and without prompts in the batch.
TEST_F(AttentionGraphGpuTest, DeterministicDecodeIsBitwiseIndependentOfPrompts) {
  Step step({.max_rows = 4, .max_query_len = 150, .mode = TileScheduleMode::kDeterministic});
  const std::vector<std::vector<int>> companies = {{1}, {1, 1, 1, 1}, {1, 150, 0, 150}, {1, 5, 4}};
  at::Tensor alone;
  for (const std::vector<int>& query_lens : companies) {
    std::vector<int> seq_lens(query_lens.size(), 1700);
    seq_lens[0] = 2500;
    step.SetRows(seq_lens, query_lens);
    ASSERT_TRUE(step.Launch().ok());
    if (!alone.defined()) alone = step.out()[0].clone();
    EXPECT_TRUE(at::equal(step.out()[0], alone));
  }
}

// A row of up to 17 queries, with or without a prompt in the batch, is bitwise identical to the
// same number of consecutive decode steps.
TEST_F(AttentionGraphGpuTest, DeterministicDraftQueriesMatchDecodesBitwise) {
  constexpr int kQueries = 17;
  std::vector<StepOptions> cases = {
      {.group_size = 1, .head_dim = 64, .head_dim_v = 64},
      {.group_size = 4},
      {.group_size = 4, .max_tier = 1},
      {.group_size = 4, .window_left = 100},
      {.group_size = 4, .window_left = 1700},
      {.group_size = 4, .kv_type = at::kFloat8_e4m3fn},
      {.group_size = 7},
      {.group_size = 24},
      {.group_size = 64},
      {.group_size = 8, .head_dim = 96, .head_dim_v = 96},
      {.group_size = 4, .head_dim = 192},
      {.group_size = 6, .head_dim = 256, .head_dim_v = 256},
      {.group_size = 32, .head_dim = 256, .head_dim_v = 256},
  };
  for (const int group_size : {4, 16, 128}) {
    cases.push_back({.num_kv_heads = 1,
                     .group_size = group_size,
                     .head_dim = 576,
                     .head_dim_v = 512,
                     .values = ValueSource::kKeyTile});
  }
  for (StepOptions options : cases) {
    options.max_rows = 80;  // enough rows for partial slots per CTA queue
    options.max_query_len = 60;
    options.mode = TileScheduleMode::kDeterministic;
    options.decode_query_len = kQueries;
    SCOPED_TRACE(testing::Message()
                 << "group " << options.group_size << ", head_dim " << options.head_dim
                 << ", window " << options.window_left.value_or(-1));
    Step step(options);
    EXPECT_TRUE(step.HasPartialsByQueue());
    const at::Tensor q = step.q().slice(0, 0, kQueries).clone();
    for (const int num_keys : {0, 50, 1000, 2500}) {  // keys before the row's queries
      std::vector<at::Tensor> outs, lses;
      for (int i = 0; i < kQueries; ++i) {
        step.q()[0].copy_(q[i]);
        step.SetRows({num_keys + i + 1}, {1});
        step.Poison();
        ASSERT_TRUE(step.Launch().ok());
        outs.push_back(step.out()[0].clone());
        lses.push_back(step.lse()[0].clone());
      }
      const at::Tensor out = at::stack(outs);
      const at::Tensor lse = at::stack(lses);
      step.q().slice(0, 0, kQueries).copy_(q);
      for (int query_len = 1; query_len <= kQueries; ++query_len) {
        for (const int prompt : {0, 60}) {
          std::vector<int> seq_lens = {num_keys + query_len, 900, prompt};
          std::vector<int> query_lens = {query_len, 1, prompt};
          for (int r = 3; r < options.max_rows && prompt > 0; ++r) {
            seq_lens.push_back(35 * r);
            query_lens.push_back(1 + r % kQueries);
          }
          step.SetRows(seq_lens, query_lens);
          step.Poison();
          ASSERT_TRUE(step.Launch().ok());
          EXPECT_TRUE(at::equal(step.out().slice(0, 0, query_len), out.slice(0, 0, query_len)))
              << query_len << " queries behind " << num_keys << " keys, prompt " << prompt;
          EXPECT_TRUE(at::equal(step.lse().slice(0, 0, query_len), lse.slice(0, 0, query_len)))
              << query_len << " queries behind " << num_keys << " keys, prompt " << prompt;
        }
      }
    }
  }
}

TEST_F(AttentionGraphGpuTest, BlocksBeyondTwoToTheThirtyFirstElementsAreFound) {
  Step step({.max_rows = 3});
  const std::vector<int> seq_lens = {3000, 100, 2000};
  const std::vector<int> query_lens = {1, 1, 1};
  step.SetRows(seq_lens, query_lens);
  ASSERT_TRUE(step.Launch().ok());
  const at::Tensor out = step.out().clone();

  const int64_t block_elements = step.k().stride(0);
  const int64_t distance = (int64_t{1} << 31) / block_elements + 5;
  const std::vector<int64_t> shape = {distance + step.k().size(0), step.k().size(1),
                                      step.k().size(2), step.k().size(3)};
  step.MoveCache(at::full(shape, kNan, Gpu(at::kBFloat16)),
                 at::full(shape, kNan, Gpu(at::kBFloat16)), distance);
  step.Poison();
  ASSERT_TRUE(step.Launch().ok());
  EXPECT_TRUE(at::equal(step.out(), out));
}

}  // namespace
}  // namespace reprise
