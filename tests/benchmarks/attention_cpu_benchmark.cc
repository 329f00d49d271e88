// Attention on the CPU, compared with the bytes that it must read and with the matrix products of
// the same step.
//
//   ./bazelw run -c opt //tests/benchmarks:attention_cpu_benchmark
//
// Decode reads K and V of every key once per kv head: `bytes_per_second` counts them, and
// ReadBytes shows what the machine reads when nothing is computed. LayerProducts is the time of one
// layer's matrix products for one token at the same sizes: a decode step's attention should be a
// small share of it. Compare figures of one run only, on an otherwise idle machine.

#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sum.h>

#include <cstdint>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "reprise/attention/attention.h"
#include "reprise/base/torch_dtype.h"

namespace reprise {
namespace {

constexpr int kBlockSize = 16;

// Heads, dims and widths of a model's layer.
struct LayerSizes {
  int num_q_heads;
  int num_kv_heads;
  int head_dim;
  int hidden_size;
  int intermediate_size;
};
constexpr LayerSizes kJargonLlama = {8, 2, 64, 256, 768};
constexpr LayerSizes kLlama8B = {32, 8, 128, 4096, 14336};

// Rows of `query_len` queries at the end of `seq_len` keys, with a shuffled table.
class Batch {
 public:
  Batch(const LayerSizes& sizes, DType dtype, int num_rows, int query_len, int seq_len)
      : num_kv_heads_(sizes.num_kv_heads), head_dim_(sizes.head_dim) {
    const int max_blocks = (seq_len + kBlockSize - 1) / kBlockSize;
    const int num_blocks = num_rows * max_blocks + 1;
    const auto options = at::TensorOptions().dtype(ToScalarType(dtype));
    k_ = at::randn({num_blocks, kBlockSize, sizes.num_kv_heads, sizes.head_dim}).to(options);
    v_ = at::randn({num_blocks, kBlockSize, sizes.num_kv_heads, sizes.head_dim}).to(options);
    q = at::randn({num_rows * query_len, sizes.num_q_heads, sizes.head_dim}).to(options);
    out = at::empty_like(q);
    for (int row = 0; row <= num_rows; ++row) query_start_loc_.push_back(row * query_len);
    seq_lens_.assign(num_rows, seq_len);
    // A fixed stride that is prime to the number of blocks shuffles enough to defeat prefetching
    // across blocks.
    for (int64_t i = 0; i < num_blocks - 1; ++i) {
      block_table_.push_back(static_cast<int32_t>(i * 7919 % (num_blocks - 1)) + 1);
    }
    layer = {.num_q_heads = sizes.num_q_heads,
             .num_kv_heads = sizes.num_kv_heads,
             .head_dim_qk = sizes.head_dim,
             .head_dim_v = sizes.head_dim};
    batch = {.query_start_loc = query_start_loc_.data(),
             .seq_lens = seq_lens_.data(),
             .block_table = block_table_.data(),
             .block_table_stride = max_blocks,
             .num_rows = num_rows,
             .num_tokens = num_rows * query_len,
             .max_query_len = query_len,
             .max_seq_len = seq_len,
             .num_tables = num_rows,
             .max_blocks = max_blocks};
    kv = {.k = ViewOf(k_),
          .v = ViewOf(v_),
          .dtype = dtype,
          .num_blocks = num_blocks,
          .block_size = kBlockSize,
          .num_kv_heads = sizes.num_kv_heads,
          .head_dim_qk = sizes.head_dim,
          .head_dim_v = sizes.head_dim};
  }

  // K and V of all keys.
  int64_t num_bytes() const {
    return int64_t{2} * batch.num_rows * batch.max_seq_len * num_kv_heads_ * head_dim_ *
           SizeOf(kv.dtype);
  }

  AttentionParams layer;
  PagedBatch batch;
  KvLayer kv;
  at::Tensor q;
  at::Tensor out;

 private:
  KvView ViewOf(const at::Tensor& cache) const {
    return {.data = cache.data_ptr(),
            .block_stride = cache.stride(0),
            .token_stride = cache.stride(1),
            .head_stride = cache.stride(2),
            .dim_chunk = head_dim_};
  }

  int num_kv_heads_;
  int head_dim_;
  at::Tensor k_;
  at::Tensor v_;
  std::vector<int32_t> query_start_loc_;
  std::vector<int32_t> seq_lens_;
  std::vector<int32_t> block_table_;
};

void RunAttention(benchmark::State& state, Batch& batch) {
  for (auto _ : state) {
    const absl::Status status =
        PagedAttention(batch.layer, batch.batch, BatchSchedule{}, batch.q, batch.kv, {batch.out});
    if (!status.ok()) state.SkipWithError(std::string(status.message()).c_str());
  }
}

// Arguments: rows, keys of a row.
void Decode(benchmark::State& state, const LayerSizes& sizes, DType dtype) {
  Batch batch(sizes, dtype, static_cast<int>(state.range(0)), /*query_len=*/1,
              static_cast<int>(state.range(1)));
  RunAttention(state, batch);
  state.SetBytesProcessed(state.iterations() * batch.num_bytes());
}

// Arguments: queries, keys of the row. Items are multiply-adds of visible keys.
void Prefill(benchmark::State& state, const LayerSizes& sizes, DType dtype) {
  const int64_t query_len = state.range(0);
  const int64_t seq_len = state.range(1);
  Batch batch(sizes, dtype, 1, static_cast<int>(query_len), static_cast<int>(seq_len));
  RunAttention(state, batch);
  const int64_t num_pairs = query_len * seq_len - query_len * (query_len - 1) / 2;
  state.SetItemsProcessed(state.iterations() * num_pairs * 2 * sizes.head_dim * sizes.num_q_heads);
}

// Argument: bytes.
void ReadBytes(benchmark::State& state) {
  const at::Tensor memory = at::full({state.range(0) / 4}, 1.0f);
  for (auto _ : state) benchmark::DoNotOptimize(at::sum(memory));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

// The matrix products of one layer and token, by LibTorch.
void LayerProducts(benchmark::State& state, const LayerSizes& sizes, DType dtype) {
  const auto options = at::TensorOptions().dtype(ToScalarType(dtype));
  const int q_width = sizes.num_q_heads * sizes.head_dim;
  const int kv_width = sizes.num_kv_heads * sizes.head_dim;
  const at::Tensor x = at::randn({1, sizes.hidden_size}).to(options);
  const at::Tensor attended = at::randn({1, q_width}).to(options);
  const at::Tensor hidden = at::randn({1, sizes.intermediate_size}).to(options);
  const at::Tensor qkv = at::randn({q_width + 2 * kv_width, sizes.hidden_size}).to(options);
  const at::Tensor o = at::randn({sizes.hidden_size, q_width}).to(options);
  const at::Tensor gate_up =
      at::randn({2 * sizes.intermediate_size, sizes.hidden_size}).to(options);
  const at::Tensor down = at::randn({sizes.hidden_size, sizes.intermediate_size}).to(options);
  int64_t num_bytes = 0;
  for (const at::Tensor& weight : {qkv, o, gate_up, down}) num_bytes += weight.nbytes();
  for (auto _ : state) {
    benchmark::DoNotOptimize(at::linear(x, qkv));
    benchmark::DoNotOptimize(at::linear(attended, o));
    benchmark::DoNotOptimize(at::linear(x, gate_up));
    benchmark::DoNotOptimize(at::linear(hidden, down));
  }
  state.SetBytesProcessed(state.iterations() * num_bytes);
}

BENCHMARK_CAPTURE(LayerProducts, jargon_llama_f32, kJargonLlama, DType::kFloat32)->UseRealTime();
BENCHMARK_CAPTURE(Decode, jargon_llama_f32, kJargonLlama, DType::kFloat32)
    ->ArgNames({"rows", "keys"})
    ->Args({1, 128})
    ->Args({1, 512})
    ->Args({1, 2048})
    ->Args({16, 512})
    ->UseRealTime();
BENCHMARK_CAPTURE(Decode, jargon_llama_bf16, kJargonLlama, DType::kBFloat16)
    ->ArgNames({"rows", "keys"})
    ->Args({1, 2048})
    ->UseRealTime();
BENCHMARK_CAPTURE(LayerProducts, llama_8b_bf16, kLlama8B, DType::kBFloat16)->UseRealTime();
BENCHMARK_CAPTURE(Decode, llama_8b_bf16, kLlama8B, DType::kBFloat16)
    ->ArgNames({"rows", "keys"})
    ->Args({1, 2048})
    ->Args({8, 8192})
    ->UseRealTime();
BENCHMARK_CAPTURE(Prefill, jargon_llama_f32, kJargonLlama, DType::kFloat32)
    ->ArgNames({"queries", "keys"})
    ->Args({512, 512})
    ->Args({16, 2048})
    ->UseRealTime();
BENCHMARK_CAPTURE(Prefill, llama_8b_bf16, kLlama8B, DType::kBFloat16)
    ->ArgNames({"queries", "keys"})
    ->Args({512, 512})
    ->UseRealTime();
// As many bytes as the decodes above read.
BENCHMARK(ReadBytes)->ArgName("bytes")->Arg(1 << 19)->Arg(2 << 20)->Arg(256 << 20)->UseRealTime();

}  // namespace
}  // namespace reprise
