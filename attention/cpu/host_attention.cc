#include "reprise/attention/cpu/host_attention.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "reprise/attention/cpu/output_store.h"
#include "reprise/attention/cpu/tile_worker.h"
#include "reprise/attention/visibility.h"

namespace reprise {
namespace {

// A whole tile or one segment of a tile.
struct Item {
  HostTile tile;
  int segment = -1;         // -1: the whole tile
  int64_t partial_at = 0;   // offset in the storage of partials; segments only
  int num_segments = 0;     // number of segments of the tile; set for its first segment only
  int64_t work_before = 0;  // total work of all earlier items, about one unit per multiply-add
};

// Memory that the calling thread keeps between calls, so that the steady state does not allocate.
struct Plan {
  std::vector<Item> items;
  std::vector<Item> split_items;
  std::vector<float> partials;
};

Plan& PlanOfThisThread() {
  static thread_local Plan plan;
  return plan;
}

int64_t WorkOf(const HostCall& call, const HostTile& tile, int num_segments) {
  const int64_t num_keys = std::min<int64_t>(tile.row.seq_len, int64_t{num_segments} * kSegmentLen);
  const int64_t per_key = call.layer.head_dim_qk + call.layer.head_dim_v;
  return (num_keys + 1) * tile.num_rows() * per_key;
}

// Cuts a row into tiles.
template <typename Blocks>
void AddTiles(const HostCall& call, const BatchRow& row, const Blocks& blocks,
              std::vector<Item>& items) {
  const AttentionParams& layer = call.layer;
  const int num_heads = std::min(layer.group_size(), kMaxTileRows);
  int num_queries = std::max(1, kMaxTileRows / num_heads);
  // In a tree, the same key may have different positions for different queries.
  if (row.tail_len > 0 && layer.rotary) num_queries = 1;
  for (int kv_head = 0; kv_head < layer.num_kv_heads; ++kv_head) {
    const int group_end = (kv_head + 1) * layer.group_size();
    for (int query = 0; query < row.query_len; query += num_queries) {
      for (int head = kv_head * layer.group_size(); head < group_end; head += num_heads) {
        HostTile tile = {.row = row,
                         .query_begin = query,
                         .query_end = std::min(query + num_queries, row.query_len),
                         .head_begin = head,
                         .head_end = std::min(head + num_heads, group_end),
                         .kv_head = kv_head};
        blocks(tile);
        items.push_back({.tile = tile});
      }
    }
  }
}

// Cuts tiles into segments, because there are too few tiles to keep all threads busy. Returns the
// number of floats for the partials of all segments.
int64_t SplitTiles(const HostCall& call, const std::vector<Item>& tiles,
                   std::vector<Item>& segments) {
  const int padded_dim_v = call.PaddedDim(call.layer.head_dim_v);
  int64_t num_floats = 0;
  segments.clear();
  for (const Item& whole : tiles) {
    const SegmentRange range = SegmentsOf(call, whole.tile);
    if (range.size() <= 1) {
      segments.push_back(whole);
      continue;
    }
    for (int segment = range.begin; segment < range.end; ++segment) {
      Item item = whole;
      item.segment = segment;
      item.partial_at = num_floats;
      item.num_segments = segment == range.begin ? range.size() : 0;
      segments.push_back(item);
      num_floats += TilePartial::NumFloats(whole.tile.num_rows(), padded_dim_v);
    }
  }
  return num_floats;
}

// Sets the work before each item. Returns the total work.
int64_t SumWork(const HostCall& call, std::vector<Item>& items) {
  int64_t work = 0;
  for (Item& item : items) {
    item.work_before = work;
    const int num_segments = item.segment < 0 ? SegmentsOf(call, item.tile).size() : 1;
    work += WorkOf(call, item.tile, num_segments);
  }
  return work;
}

void RunItems(const HostCall& call, Plan& plan, const HostThreads& threads) {
  std::vector<Item>* items = &plan.items;
  int64_t work = SumWork(call, *items);
  const int num_shares = static_cast<int>(
      std::clamp<int64_t>(work / threads.share_work, 1, std::max(1, threads.count)));
  if (num_shares > 1 && static_cast<int>(items->size()) < 4 * num_shares) {
    const int64_t num_floats = SplitTiles(call, plan.items, plan.split_items);
    if (static_cast<int64_t>(plan.partials.size()) < num_floats) plan.partials.resize(num_floats);
    items = &plan.split_items;
    work = SumWork(call, *items);
  }

  // Each share contains the items that begin within its part of the work, which are consecutive.
  // The assignment is fixed.
  const int padded_dim_v = call.PaddedDim(call.layer.head_dim_v);
  float* partials = plan.partials.data();
  const auto run_share = [&](int share) {
    TileWorker& worker = TileWorker::OfThisThread();
    for (const Item& item : *items) {
      if (item.work_before * num_shares / std::max<int64_t>(1, work) != share) continue;
      if (item.segment < 0) {
        worker.Attend(call, item.tile);
      } else {
        worker.AttendSegment(
            call, item.tile, item.segment,
            TilePartial::At(partials + item.partial_at, item.tile.num_rows(), padded_dim_v));
      }
    }
  };
  if (num_shares == 1) {
    run_share(0);
  } else {
    threads.run(num_shares, run_share);
  }
  for (const Item& item : *items) {
    if (item.num_segments == 0) continue;
    TileWorker::OfThisThread().Finish(call, item.tile, partials + item.partial_at,
                                      item.num_segments);
  }
}

// Writes out = 0 and lse = -infinity for the tokens after those of the rows. If out has block
// scales, writes the scale of zeros.
void ClearInertTokens(const HostCall& call, int64_t num_live_tokens) {
  const HostOutput& output = call.output;
  const int element_size = SizeOf(output.out.dtype);
  for (int64_t token = num_live_tokens; token < output.num_out_tokens; ++token) {
    for (int head = 0; head < call.layer.num_q_heads; ++head) {
      auto* out =
          static_cast<char*>(output.out.data) + output.out.Offset(token, head) * element_size;
      std::memset(out, 0, static_cast<size_t>(call.layer.head_dim_v) * element_size);
      if (output.block_scales == nullptr) continue;
      std::fill_n(
          output.block_scales + token * output.block_token_stride + head * output.block_head_stride,
          call.layer.head_dim_v / output.block, BlockScaleOf(output.out.dtype, 0.0f));
    }
  }
  if (!output.lse) return;
  for (int64_t token = num_live_tokens; token < output.num_lse_tokens; ++token) {
    for (int head = 0; head < call.layer.num_q_heads; ++head) {
      output.lse[token * output.lse_token_stride + head * output.lse_head_stride] =
          -std::numeric_limits<float>::infinity();
    }
  }
}

// Views contiguous tokens as one block of a cache.
KvView AsBlock(const TokenView& tokens, int head_dim) {
  return {.data = tokens.data,
          .token_stride = tokens.token_stride,
          .head_stride = tokens.head_stride,
          .dim_chunk = head_dim};
}

}  // namespace

void PagedAttentionOnHost(const HostCall& call, const PagedBatch& batch,
                          const HostThreads& threads) {
  Plan& plan = PlanOfThisThread();
  plan.items.clear();
  for (int r = 0; r < batch.num_rows; ++r) {
    const BatchRow row = RowOf(batch, r);
    AddTiles(
        call, row,
        [&](HostTile& tile) {
          // A row without keys may have an invalid table row.
          if (row.seq_len == 0) return;
          tile.blocks = batch.block_table + row.table_row * batch.block_table_stride;
          tile.first_token = row.key_start;
        },
        plan.items);
  }
  RunItems(call, plan, threads);
  ClearInertTokens(call, batch.query_start_loc[batch.num_rows]);
}

KvLayer ContiguousKv(const AttentionParams& layer, const TokenView& k, const TokenView& v,
                     const KeyScales& scales) {
  return {.k = AsBlock(k, layer.head_dim_qk),
          .v = AsBlock(v, layer.head_dim_v),
          .dtype = k.dtype,
          .num_blocks = 1,
          .block_size = std::numeric_limits<int32_t>::max(),
          .num_kv_heads = layer.num_kv_heads,
          .head_dim_qk = layer.head_dim_qk,
          .head_dim_v = layer.head_dim_v,
          .k_scale = scales.k,
          .v_scale = scales.v};
}

void RaggedAttentionOnHost(const HostCall& call, const RaggedBatch& batch,
                           const HostThreads& threads) {
  static constexpr int32_t kOneBlock = 0;
  Plan& plan = PlanOfThisThread();
  plan.items.clear();
  for (int r = 0; r < batch.num_rows; ++r) {
    const BatchRow row = RowOf(batch, r);
    AddTiles(
        call, row,
        [&](HostTile& tile) {
          tile.blocks = &kOneBlock;
          tile.first_token = row.first_key;
        },
        plan.items);
  }
  RunItems(call, plan, threads);
  ClearInertTokens(call, batch.query_start_loc[batch.num_rows]);
}

}  // namespace reprise
