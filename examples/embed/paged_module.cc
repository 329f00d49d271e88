// A hand-written LibTorch module whose scaled dot-product attention is replaced by paged attention.
// The first module computes all tokens of a sequence in each step. The second one keeps their keys
// in a paged cache and computes only the new token, for all sequences in one call.

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "example.h"
#include "reprise/attention/planned_attention.h"
#include "reprise/cache/ops/write_kv.h"
#include "reprise/cache/storage/kv_cache.h"

namespace {

constexpr int kHeads = 4, kHeadDim = 32, kWidth = kHeads * kHeadDim;
constexpr int kBlockSize = 16, kMaxBlocks = 4;  // up to 64 tokens a sequence

// Before: x [num_tokens, kWidth] is one sequence from its first token on.
struct SdpaBlock : torch::nn::Module {
  torch::nn::Linear qkv = register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(kWidth, kWidth));

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor heads = qkv(x).view({1, -1, 3, kHeads, kHeadDim}).permute({2, 0, 3, 1, 4});
    const at::Tensor attended = at::scaled_dot_product_attention(
        heads[0], heads[1], heads[2], {}, /*dropout_p=*/0, /*is_causal=*/true);
    return x + out(attended.transpose(1, 2).reshape({-1, kWidth}));
  }
};

// After: x are the new tokens of all sequences, packed.
struct PagedBlock : SdpaBlock {
  at::Tensor forward(const at::Tensor& x, reprise::PlannedAttention& attention,
                     const reprise::KvLayer& kv, const at::Tensor& slot_mapping) {
    const std::vector<at::Tensor> heads = qkv(x).view({-1, 3, kHeads, kHeadDim}).unbind(1);
    Check(reprise::WriteKv(kv, heads[1], heads[2], slot_mapping));
    at::Tensor attended = at::empty({x.size(0), kHeads, kHeadDim}, x.options());
    Check(attention.Run({.num_q_heads = kHeads,
                         .num_kv_heads = kHeads,
                         .head_dim_qk = kHeadDim,
                         .head_dim_v = kHeadDim},
                        heads[0], kv, {attended}));
    return x + out(attended.flatten(1));
  }
};

}  // namespace

int main() {
  const at::InferenceMode no_gradients;
  const c10::Device device = ExampleDevice();
  const int num_seqs = 3;
  std::vector<int64_t> lens = {5, 17, 30};  // of the prompts

  auto block = std::make_shared<PagedBlock>();
  block->to(device);
  const auto options = at::TensorOptions(at::kFloat).device(device);
  std::vector<at::Tensor> inputs;  // of each sequence, for 8 steps
  for (const int64_t len : lens) inputs.push_back(at::randn({len + 8, kWidth}, options));

  // The cache: block 0 is never used; sequence i has the blocks 1 + i * kMaxBlocks and on.
  const reprise::KvCache cache = Check(reprise::KvCache::Create(
      Check(reprise::KvLayout::Create({.num_blocks = 1 + num_seqs * kMaxBlocks,
                                       .block_size = kBlockSize,
                                       .num_kv_heads = kHeads,
                                       .head_dim_qk = kHeadDim,
                                       .head_dim_v = kHeadDim})),
      device));
  const at::Tensor table =
      at::arange(1, 1 + num_seqs * kMaxBlocks, at::kInt).view({num_seqs, kMaxBlocks});

  // Attention, sized for the largest step: here that of the prompts.
  const auto attention =
      Check(reprise::PlannedAttention::Create({.work = {.dtype = reprise::DType::kFloat32,
                                                        .num_q_heads = kHeads,
                                                        .num_kv_heads = kHeads,
                                                        .head_dim_qk = kHeadDim,
                                                        .head_dim_v = kHeadDim,
                                                        .max_rows = num_seqs,
                                                        .max_tokens = 64,
                                                        .max_query_len = 32,
                                                        .max_seq_len = kBlockSize * kMaxBlocks},
                                               .block_size = kBlockSize,
                                               .device = device}));
  const auto bytes = options.dtype(at::kByte);
  Check(attention->SetScheduleWorkspace(at::empty({attention->schedule_bytes()}, bytes)));
  Check(attention->SetPartialWorkspace(at::empty({attention->partial_bytes()}, bytes)));

  for (int step = 0; step < 8; ++step) {
    std::vector<int32_t> query_start_loc = {0}, seq_lens;
    std::vector<int64_t> slots;
    std::vector<at::Tensor> new_tokens;
    for (int i = 0; i < num_seqs; ++i) {
      const int64_t end = lens[i] + step, begin = step == 0 ? 0 : end - 1;
      for (int64_t position = begin; position < end; ++position) {
        const int64_t sequence_block = 1 + i * kMaxBlocks + position / kBlockSize;
        slots.push_back(sequence_block * kBlockSize + position % kBlockSize);
      }
      new_tokens.push_back(inputs[i].slice(0, begin, end));
      query_start_loc.push_back(static_cast<int32_t>(slots.size()));
      seq_lens.push_back(static_cast<int32_t>(end));
    }
    // Once a step; a model with more layers calls only forward() for each.
    Check(attention->Plan({.seq_lens = at::tensor(seq_lens),
                           .block_table = table,
                           .query_start_loc = at::tensor(query_start_loc)}));
    const at::Tensor paged = block->forward(at::cat(new_tokens), *attention, cache.layer(0),
                                            at::tensor(slots).to(device));
    for (int i = 0; i < num_seqs; ++i) {
      const at::Tensor whole = block->SdpaBlock::forward(inputs[i].slice(0, 0, lens[i] + step));
      const double error =
          (whole[-1] - paged[query_start_loc[i + 1] - 1]).abs().max().item<double>();
      Expect(error < 1e-4, "the module over the paged cache to compute what it did before");
    }
  }
  std::cout << "paged_module: 3 sequences, 8 steps, equal to scaled_dot_product_attention"
            << std::endl;
}
