// Metadata and cache only: block tables with prefix reuse, slots, a paged batch and the cache's
// tensors are the toolkit's, attention is one's own. Here it is written with LibTorch's operations;
// a kernel of one's own would read the arrays of reprise::PagedBatch as they are.

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <utility>
#include <vector>

#include "example.h"
#include "reprise/attention/metadata/batch_builder.h"
#include "reprise/cache/blocks/block_manager.h"
#include "reprise/cache/ops/write_kv.h"
#include "reprise/cache/storage/kv_cache.h"

namespace {

constexpr int kHeads = 2, kHeadDim = 16, kBlockSize = 4, kVocabSize = 50;

// q, k, v [num_keys, kHeads, kHeadDim], the queries of the last tokens: causal attention.
at::Tensor DenseAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const at::Tensor scores = at::einsum("qhd,khd->hqk", {q, k}) / std::sqrt(double{kHeadDim});
  const at::Tensor queries =
      at::arange(k.size(0) - q.size(0), k.size(0), k.options().dtype(at::kLong));
  const at::Tensor keys = at::arange(k.size(0), k.options().dtype(at::kLong));
  const at::Tensor hidden = keys.unsqueeze(0) > queries.unsqueeze(1);
  return at::einsum("hqk,khd->qhd", {at::softmax(scores.masked_fill(hidden, -INFINITY), -1), v});
}

// The same for each row of a batch, whose keys it finds by the row's blocks. `batch` is on the
// host.
at::Tensor OwnAttention(const reprise::PagedBatch& batch, const at::Tensor& q,
                        const reprise::KvCache& cache) {
  const at::Tensor out = at::empty_like(q);
  for (int row = 0; row < batch.num_rows; ++row) {
    const int begin = batch.query_start_loc[row], end = batch.query_start_loc[row + 1];
    const int num_blocks = (batch.seq_lens[row] + kBlockSize - 1) / kBlockSize;
    const int32_t* blocks = batch.block_table + batch.table_row[row] * batch.block_table_stride;
    const at::Tensor indices = at::tensor(at::ArrayRef<int32_t>(blocks, num_blocks)).to(q.device());
    const auto keys_of = [&](const at::Tensor& tensor) {
      return tensor.index_select(0, indices).flatten(0, 1).slice(0, 0, batch.seq_lens[row]);
    };
    out.slice(0, begin, end)
        .copy_(DenseAttention(q.slice(0, begin, end), keys_of(cache.tensors(0)[0]),
                              keys_of(cache.tensors(0)[1])));
  }
  return out;
}

}  // namespace

int main() {
  const c10::Device device = ExampleDevice();
  // A "projection": what each token id's query, key and value are.
  const at::Tensor qkv = at::randn({3, kVocabSize, kHeads, kHeadDim}, at::device(device));

  reprise::BlockManager blocks =
      Check(reprise::BlockManager::Create({.num_blocks = 32,
                                           .block_size = kBlockSize,
                                           .num_slots = 2,
                                           .max_blocks = 8,
                                           .prefix_reuse = reprise::PrefixReuse::kOn}));
  const reprise::KvCache cache =
      Check(reprise::KvCache::Create(Check(reprise::KvLayout::Create({.num_blocks = 32,
                                                                      .block_size = kBlockSize,
                                                                      .num_kv_heads = kHeads,
                                                                      .head_dim_qk = kHeadDim,
                                                                      .head_dim_v = kHeadDim})),
                                     device));
  reprise::BatchBuilder builder =
      Check(reprise::BatchBuilder::Create({.max_rows = 2, .max_tokens = 32}));

  // The second sequence begins like the first, so it finds two blocks of its keys.
  std::vector<std::vector<int32_t>> texts = {{7, 3, 9, 9, 1, 2, 3, 4, 5, 6},
                                             {7, 3, 9, 9, 1, 2, 3, 4, 8}};
  std::vector<int> num_computed(2, 0);
  const auto run_step = [&](const std::vector<int>& slots) {
    std::vector<reprise::BatchSequence> sequences;
    std::vector<int32_t> tokens;
    for (const int slot : slots) {
      const int query_len = static_cast<int>(texts[slot].size()) - num_computed[slot];
      sequences.push_back(
          {.table_row = slot, .num_computed = num_computed[slot], .query_len = query_len});
      tokens.insert(tokens.end(), texts[slot].end() - query_len, texts[slot].end());
    }
    const reprise::BuiltBatch built = Check(builder.Build(
        {.sequences = sequences, .table = blocks.table().view(kBlockSize, /*num_blocks=*/32)}));
    const at::Tensor ids = at::tensor(tokens).to(device);
    const at::Tensor slot_mapping =
        at::tensor(at::ArrayRef<int64_t>(built.slot_mapping.data(), built.slot_mapping.size()))
            .to(device);
    Check(reprise::WriteKv(cache.layer(0), qkv[1].index_select(0, ids), qkv[2].index_select(0, ids),
                           slot_mapping));
    const at::Tensor out = OwnAttention(built.batch, qkv[0].index_select(0, ids), cache);
    for (size_t row = 0; row < slots.size(); ++row) {
      const int slot = slots[row];
      // Committed tokens are found by later sequences.
      Check(blocks.Commit(reprise::SlotId(slot),
                          absl::MakeSpan(texts[slot]).subspan(num_computed[slot])));
      num_computed[slot] = static_cast<int>(texts[slot].size());
      const at::Tensor all = at::tensor(texts[slot]).to(device);
      const at::Tensor expected = DenseAttention(
          qkv[0].index_select(0, all), qkv[1].index_select(0, all), qkv[2].index_select(0, all));
      const at::Tensor last = out[built.batch.query_start_loc[row + 1] - 1];
      Expect((expected[-1] - last).abs().max().item<double>() < 1e-4,
             "the row to be what attention without a cache computes");
    }
  };

  int num_found = 0;
  for (int slot = 0; slot < 2; ++slot) {
    const reprise::PromptHits hits =
        Check(blocks.Add(reprise::SlotId(slot), {.tokens = texts[slot]}));
    num_computed[slot] = hits.num_tokens;
    num_found += hits.num_tokens;
    run_step({slot});
  }
  for (int step = 0; step < 6; ++step) {
    for (int slot = 0; slot < 2; ++slot) {
      Check(blocks.Append(reprise::SlotId(slot), 1));
      texts[slot].push_back((11 * step + 5 * slot) % kVocabSize);
    }
    run_step({0, 1});
  }
  Expect(num_found == 8, "the second prompt to share 8 tokens with the first");
  std::cout << "own_attention: 2 prompts, " << num_found << " tokens shared, 6 decode steps"
            << std::endl;
}
