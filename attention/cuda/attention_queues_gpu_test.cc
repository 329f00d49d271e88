// Tests that partial slots per CTA queue ("Partials by queue" of
// attention/tile_schedule/tile_schedule.h) give results that are bitwise identical to separate
// slots per Q tile. The splits of deterministic mode do not depend on the number of queues.
// Schedules for many SMs, whose Q tiles have separate slots, must therefore agree in every row with
// schedules for few SMs, where the Q tiles of a queue reuse slots.

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/attention/attention.h"
#include "reprise/attention/attention_params.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/testing/gpu_memory.h"
#include "reprise/attention/testing/random.h"
#include "reprise/attention/tile_schedule/tile_schedule_build.h"
#include "reprise/attention/tile_schedule/tile_schedule_plan.h"
#include "reprise/base/torch_dtype.h"

namespace reprise {
namespace {

constexpr int kBlockSize = 16;
constexpr int kMaxSeqLen = 3000;

struct Heads {
  int kv_heads = 2;
  int group = 4;
  int head_dim = 128;
  at::ScalarType q = at::kBFloat16;
  at::ScalarType kv = at::kBFloat16;
  bool is_latent = false;  // head_dim_qk 576, head_dim_v 512
  int max_tier = 2;

  int q_heads() const { return kv_heads * group; }
  int head_dim_v() const { return is_latent ? 512 : head_dim; }
};

at::TensorOptions Gpu(at::ScalarType type) {
  return at::TensorOptions().dtype(type).device(at::kCUDA);
}

KvView ViewOf(const at::Tensor& tensor) {
  return {.data = tensor.data_ptr(),
          .block_stride = tensor.stride(0),
          .token_stride = tensor.stride(1),
          .head_stride = tensor.stride(2),
          .dim_chunk = static_cast<int>(tensor.size(3))};
}

// Rows with `query_lens` queries each, over up to kMaxSeqLen keys each.
class Layer {
 public:
  Layer(const Heads& heads, const std::vector<int>& query_lens, int decode_query_len)
      : heads_(heads), decode_query_len_(decode_query_len) {
    Random random(7);
    const int num_rows = static_cast<int>(query_lens.size());
    const int max_blocks = (kMaxSeqLen + kBlockSize - 1) / kBlockSize;
    const int num_blocks = num_rows * max_blocks;
    std::vector<int32_t> starts = {0}, lens;
    int longest = 0;
    for (const int query_len : query_lens) {
      starts.push_back(starts.back() + query_len);
      lens.push_back(random.Int(query_len, kMaxSeqLen));
      longest = std::max(longest, query_len);
    }
    starts_ = at::tensor(starts, at::kInt).to(at::kCUDA);
    lens_ = at::tensor(lens, at::kInt).to(at::kCUDA);
    table_ = at::randperm(num_blocks, Gpu(at::kInt));
    batch_ = {.query_start_loc = starts_.const_data_ptr<int32_t>(),
              .seq_lens = lens_.const_data_ptr<int32_t>(),
              .block_table = table_.const_data_ptr<int32_t>(),
              .block_table_stride = max_blocks,
              .num_rows = num_rows,
              .num_tokens = starts.back(),
              .max_query_len = longest,
              .max_seq_len = kMaxSeqLen,
              .num_tables = num_rows,
              .max_blocks = max_blocks};
    const auto cache = [&](int head_dim) {
      return at::randn({num_blocks, kBlockSize, heads.kv_heads, head_dim}, Gpu(at::kBFloat16))
          .to(heads.kv);
    };
    q_ = at::randn({starts.back(), heads.q_heads(), heads.head_dim}, Gpu(at::kFloat)).to(heads.q);
    k_ = cache(heads.head_dim);
    v_ = heads.is_latent ? k_.slice(3, 0, heads.head_dim_v()) : cache(heads.head_dim);
  }

  // The out of all rows, and for each schedule whether its partial slots are per CTA queue.
  struct Attended {
    at::Tensor out;
    bool short_by_queue = false, main_by_queue = false;
  };
  Attended Attend(int num_sms) const {
    const AttentionParams layer = {.num_q_heads = heads_.q_heads(),
                                   .num_kv_heads = heads_.kv_heads,
                                   .head_dim_qk = heads_.head_dim,
                                   .head_dim_v = heads_.head_dim_v()};
    GpuTileSchedule work({.dtype = *FromScalarType(heads_.q),
                          .num_q_heads = heads_.q_heads(),
                          .num_kv_heads = heads_.kv_heads,
                          .head_dim_qk = heads_.head_dim,
                          .head_dim_v = heads_.head_dim_v(),
                          .max_rows = batch_.num_rows,
                          .max_tokens = batch_.num_tokens,
                          .max_query_len = batch_.max_query_len,
                          .max_seq_len = kMaxSeqLen,
                          .device = {.num_sms = num_sms},
                          .mode = TileScheduleMode::kDeterministic,
                          .decode_query_len = decode_query_len_,
                          .kernels = {.max_tier = heads_.max_tier}});
    work.Poison();
    const KvLayer kv = {.k = ViewOf(k_),
                        .v = ViewOf(v_),
                        .dtype = *FromScalarType(heads_.kv),
                        .num_blocks = static_cast<int>(k_.size(0)),
                        .block_size = kBlockSize,
                        .num_kv_heads = heads_.kv_heads,
                        .head_dim_qk = heads_.head_dim,
                        .head_dim_v = heads_.head_dim_v()};
    at::Tensor out =
        at::full({batch_.num_tokens, heads_.q_heads(), heads_.head_dim_v()}, NAN, Gpu(heads_.q));
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    const absl::StatusOr<BatchSchedule> built =
        LaunchTileSchedule(batch_, WindowOf(layer), work.schedule(), stream);
    EXPECT_TRUE(built.ok()) << built.status();
    const absl::Status status = PagedAttention(layer, batch_, *built, q_, kv, {out});
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    return {.out = out,
            .short_by_queue = work.schedule().short_rows.queue_partials > 0,
            .main_by_queue = work.schedule().main.queue_partials > 0};
  }

 private:
  Heads heads_;
  int decode_query_len_;
  at::Tensor starts_, lens_, table_, q_, k_, v_;
  PagedBatch batch_;
};

class AttentionQueuesGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "no GPU on this machine";
  }

  static std::vector<Heads> AllHeads() {
    std::vector<Heads> all;
    for (const int max_tier : {1, 2}) {
      for (const int head_dim : {64, 96, 128, 256}) {
        all.push_back({.head_dim = head_dim, .max_tier = max_tier});
      }
      all.push_back({.kv = at::kFloat8_e4m3fn, .max_tier = max_tier});
      all.push_back({.q = at::kHalf, .kv = at::kFloat8_e4m3fn, .max_tier = max_tier});
      all.push_back({.group = 24, .max_tier = max_tier});
      for (const int group : {16, 128}) {
        all.push_back({.kv_heads = 1,
                       .group = group,
                       .head_dim = 576,
                       .is_latent = true,
                       .max_tier = max_tier});
      }
    }
    all.push_back({.q = at::kFloat, .kv = at::kBFloat16});
    return all;
  }

  // Compares schedules for different numbers of SMs. Returns the number of schedules with partial
  // slots per CTA queue for the smallest number of SMs.
  static int Compare(const Heads& heads, const std::vector<int>& query_lens, int decode_query_len) {
    const Layer layer(heads, query_lens, decode_query_len);
    const Layer::Attended own = layer.Attend(/*num_sms=*/8192);
    EXPECT_FALSE(own.short_by_queue || own.main_by_queue);
    EXPECT_FALSE(own.out.isnan().any().item<bool>());
    int num_by_queue = 0;
    for (const int num_sms : {132, 9, 2}) {
      const Layer::Attended few = layer.Attend(num_sms);
      EXPECT_TRUE(few.out.equal(own.out)) << num_sms << " SMs";
      num_by_queue = few.short_by_queue + few.main_by_queue;
    }
    return num_by_queue;
  }
};

TEST_F(AttentionQueuesGpuTest, DraftRowsAreBitwiseEqualForAnyNumberOfQueues) {
  std::vector<int> query_lens;
  for (int r = 0; r < 24; ++r) query_lens.push_back(1 + r % 5);
  for (const Heads& heads : AllHeads()) {
    SCOPED_TRACE(testing::Message()
                 << heads.head_dim << ", group " << heads.group << ", tier " << heads.max_tier);
    EXPECT_GT(Compare(heads, query_lens, /*decode_query_len=*/5), 0);
  }
}

// Prompts of different lengths, which use large tiles, in a batch with drafts.
TEST_F(AttentionQueuesGpuTest, LongRowsAreBitwiseEqualForAnyNumberOfQueues) {
  std::vector<int> query_lens;
  for (int r = 0; r < 16; ++r) query_lens.push_back(r % 4 == 3 ? 1 + r % 5 : 40 + 17 * (r % 7));
  int num_by_queue = 0;
  for (const Heads& heads : AllHeads()) {
    SCOPED_TRACE(testing::Message()
                 << heads.head_dim << ", group " << heads.group << ", tier " << heads.max_tier);
    num_by_queue += Compare(heads, query_lens, /*decode_query_len=*/5);
  }
  EXPECT_GT(num_by_queue, static_cast<int>(AllHeads().size()));
}

}  // namespace
}  // namespace reprise
