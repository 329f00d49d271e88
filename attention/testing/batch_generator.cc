#include "reprise/attention/testing/batch_generator.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <sstream>
#include <utility>

#include "reprise/attention/testing/random.h"
#include "reprise/attention/testing/row_draws.h"
#include "reprise/attention/visibility.h"

namespace reprise {
namespace {

template <typename T>
const T* Placed(const std::vector<T>& array, const Placement& place) {
  if (array.empty()) return nullptr;
  return static_cast<const T*>(place(array.data(), array.size() * sizeof(T)));
}

uint64_t DrawTailMask(Random& random) {
  switch (random.Int(0, 4)) {
    case 0:
      return 0;
    case 1:
      return ~uint64_t{0};
    case 2:
      return random.Bits() & random.Bits();
    default:
      return random.Bits();
  }
}

bool WhollyLeftOfWindow(const LayerFixture& layer, const BatchRow& row, int64_t last_key) {
  if (!layer.params.window_left || row.query_len == 0) return false;
  if (last_key >= row.seq_len - row.tail_len) return false;
  for (int i = 0; i < row.query_len; ++i) {
    const int64_t leftmost = QueryPosition(row, i) - *layer.params.window_left;
    if (OrdinaryKeyPosition(row, last_key) >= leftmost) return false;
  }
  return true;
}

// Calls use(column) for each block-table entry of the row that may be read.
template <typename Use>
void ForEachReadableColumn(const LayerFixture& layer, const BatchRow& row, int block_size,
                           const Use& use) {
  if (row.seq_len == 0) return;
  const int64_t last = (row.key_start + row.seq_len - 1) / block_size;
  for (int64_t column = row.key_start / block_size; column <= last; ++column) {
    const int64_t last_key =
        std::min<int64_t>((column + 1) * block_size - row.key_start, row.seq_len) - 1;
    if (!WhollyLeftOfWindow(layer, row, last_key)) use(static_cast<int>(column));
  }
}

// Makes the table: distinct shuffled blocks in entries that may be read, some of them shared
// between rows, and invalid IDs in all other entries. Returns the number of blocks of the cache.
int FillBlockTable(PagedFixture& fixture, int block_size, Random& random) {
  PagedBatch& capacities = fixture.capacities;
  PagedBatch batch = fixture.Batch(OnHost);
  int num_blocks = 2;
  int width = 0;
  for (int r = 0; r < batch.num_rows; ++r) {
    const BatchRow row = RowOf(batch, r);
    ForEachReadableColumn(fixture.layer, row, block_size, [&](int) { ++num_blocks; });
    if (row.seq_len == 0) continue;
    width = std::max(width, static_cast<int>((row.key_start + row.seq_len - 1) / block_size + 1));
  }
  num_blocks += random.Int(0, 4);
  capacities.max_blocks = width + random.Int(0, 3);
  capacities.block_table_stride = capacities.max_blocks + random.Int(0, 3);
  fixture.block_table.resize(
      std::max<int64_t>(1, capacities.num_tables * capacities.block_table_stride));
  for (int32_t& entry : fixture.block_table) {
    entry = random.OneIn(3) ? num_blocks : Garbage(random);
  }

  std::vector<int32_t> free_blocks;
  for (int block = 1; block < num_blocks; ++block) free_blocks.push_back(block);
  random.Shuffle(free_blocks);
  // Blocks of the common prefix by column, and the entries that already hold a block.
  std::vector<int32_t> prefix_blocks(width, -1);
  std::vector<bool> filled(fixture.block_table.size());
  for (int r = 0; r < batch.num_rows; ++r) {
    const BatchRow row = RowOf(batch, r);
    const int prefix_len = fixture.common_prefix_len.empty() ? 0 : fixture.common_prefix_len[0];
    const bool in_prefix = prefix_len > 0 && row.query_len > 0;
    ForEachReadableColumn(fixture.layer, row, block_size, [&](int column) {
      const int64_t at = row.table_row * capacities.block_table_stride + column;
      int32_t block = 0;
      if (filled[at]) {
        block = fixture.block_table[at];
      } else if (random.OneIn(12) && static_cast<int>(free_blocks.size()) < num_blocks - 1) {
        block = random.Int(1, num_blocks - 1);  // may belong to another row
      } else {
        block = free_blocks.back();
        free_blocks.pop_back();
      }
      if (in_prefix && int64_t{column} * block_size < row.key_start + prefix_len) {
        if (prefix_blocks[column] < 0) prefix_blocks[column] = block;
        block = prefix_blocks[column];
      }
      fixture.block_table[at] = block;
      filled[at] = true;
    });
  }
  return num_blocks;
}

// Sets K and V only where some query sees them, and q for all rows with keys.
void FillValues(PagedFixture& fixture, const FixtureShape& shape, Random& random) {
  const PagedBatch batch = fixture.Batch(OnHost);
  const AttentionParams layer = fixture.Layer(OnHost);
  const double q_magnitude = fixture.features.Has(Feature::kLargeLogits) ? 6.0 : 1.0;
  const int num_blocks = fixture.Kv(OnHost).num_blocks;
  std::vector<bool> seen(static_cast<size_t>(num_blocks) * shape.block_size * shape.num_kv_heads);
  std::vector<bool> new_seen(static_cast<size_t>(batch.num_tokens) * shape.num_kv_heads);
  for (int r = 0; r < batch.num_rows; ++r) {
    const BatchRow row = RowOf(batch, r);
    if (row.seq_len == 0) continue;
    const int32_t* table = batch.block_table + row.table_row * batch.block_table_stride;
    for (int i = 0; i < row.query_len; ++i) {
      for (int head = 0; head < shape.num_q_heads; ++head) {
        FillToken(fixture.q, row.first_token + i, head, shape.head_dim_qk, q_magnitude, random);
        for (const VisibleKey& key : VisibleKeys(layer, row, i, head)) {
          const int new_key = key.local - (row.seq_len - row.query_len);
          if (fixture.features.Has(Feature::kNewKeys) && new_key >= 0) {
            new_seen[(row.first_token + new_key) * shape.num_kv_heads + head / layer.group_size()] =
                true;
            continue;
          }
          const int64_t token = row.key_start + key.local;
          const int64_t slot = int64_t{table[token / shape.block_size]} * shape.block_size +
                               token % shape.block_size;
          seen[slot * shape.num_kv_heads + head / layer.group_size()] = true;
        }
      }
    }
  }
  for (size_t i = 0; i < new_seen.size(); ++i) {
    if (!new_seen[i]) continue;
    const int head = static_cast<int>(i % shape.num_kv_heads);
    const int token = static_cast<int>(i / shape.num_kv_heads);
    FillToken(fixture.new_k, token, head, shape.head_dim_qk, 1.0, random);
    if (IsLatent(shape.layout)) continue;  // V is part of K
    FillToken(fixture.new_v, token, head, shape.head_dim_v, 1.0, random);
  }
  for (size_t i = 0; i < seen.size(); ++i) {
    if (!seen[i]) continue;
    const int head = static_cast<int>(i % shape.num_kv_heads);
    const int slot = static_cast<int>(i / shape.num_kv_heads);
    const int block = slot / shape.block_size;
    const int token = slot % shape.block_size;
    for (int dim = 0; dim < shape.head_dim_qk; ++dim) {
      fixture.kv->SetK(block, token, head, dim, random.NearNormal());
    }
    if (IsLatent(shape.layout)) continue;  // V is part of K
    for (int dim = 0; dim < shape.head_dim_v; ++dim) {
      fixture.kv->SetV(block, token, head, dim, random.NearNormal());
    }
  }
}

// Returns the dtype of q, or a 16-bit dtype if q is fp8.
DType NewKeyType(DType q_dtype, DType kv_dtype) {
  if (!IsFp8(q_dtype)) return q_dtype;
  return kv_dtype == DType::kFloat16 ? DType::kFloat16 : DType::kBFloat16;
}

std::string Describe(const FixtureOptions& options, const FixtureShape& shape,
                     const FeatureSet& features, const std::vector<int>& query_lens,
                     const std::vector<int>& seq_lens) {
  std::ostringstream text;
  text << "seed " << options.seed << ": q " << shape.q_dtype << ", kv " << shape.kv_dtype << " "
       << shape.layout;
  if (shape.layout == KvMemoryLayout::kMlaParts) text << " rope " << shape.rope_dtype;
  if (shape.k_chunk > 0) text << " of " << shape.k_chunk;
  text << ", block_size " << shape.block_size << ", heads " << shape.num_q_heads << "/"
       << shape.num_kv_heads << ", dims " << shape.head_dim_qk << "/" << shape.head_dim_v
       << ", rows (query_len/seq_len)";
  for (size_t r = 0; r < seq_lens.size(); ++r) text << " " << query_lens[r] << "/" << seq_lens[r];
  text << ", " << ToString(features);
  return text.str();
}

}  // namespace

PagedBatch PagedFixture::Batch(const Placement& place) const {
  PagedBatch batch = capacities;
  batch.query_start_loc = Placed(query_start_loc, place);
  batch.seq_lens = Placed(seq_lens, place);
  batch.table_row = Placed(table_row, place);
  batch.key_start = Placed(key_start, place);
  batch.block_table = Placed(block_table, place);
  batch.query_positions = Placed(query_positions, place);
  batch.tail_len = Placed(tail_len, place);
  batch.tail_mask = Placed(tail_mask, place);
  batch.custom_mask = Placed(custom_mask, place);
  batch.custom_mask_offset = Placed(custom_mask_offset, place);
  batch.common_prefix_len = Placed(common_prefix_len, place);
  return batch;
}

KvLayer PagedFixture::Kv(const Placement& place) const {
  KvLayer view = kv->View(place);
  view.k_scale = layer.k_scale.View(place);
  view.v_scale = layer.v_scale.View(place);
  if (view.rope_dim > 0) view.rope_scale = layer.rope_scale.View(place);
  return view;
}

NewKeys PagedFixture::New(const Placement& place) const {
  if (!features.Has(Feature::kNewKeys)) return {};
  const TokenView k = new_k.View(place);
  return {.k = k, .v = new_v.bytes.empty() ? k : new_v.View(place)};
}

namespace {

// If `like` is not null, uses its features, shape, strides and host parameters.
PagedFixture MakeFixture(const FixtureOptions& options, const PagedFixture* like) {
  Random random(options.seed);
  PagedFixture fixture;
  fixture.features = like ? like->features : DrawFeatures(options, random);
  const FeatureSet& features = fixture.features;
  fixture.shape = like ? like->shape : DrawShape(options, features, random);
  const FixtureShape& shape = fixture.shape;
  // New keys are not supported if keys are in two parts.
  if (shape.layout == KvMemoryLayout::kMlaParts) fixture.features.Remove(Feature::kNewKeys);
  const RowLengths lengths = DrawRowLengths(options, features, shape.block_size, random);
  const int num_rows = static_cast<int>(lengths.seq_lens.size());

  fixture.query_start_loc = PrefixSums(lengths.query_lens);
  fixture.seq_lens.assign(lengths.seq_lens.begin(), lengths.seq_lens.end());
  const int num_live_tokens = fixture.query_start_loc.back();
  const int num_inert = features.Has(Feature::kInertTokens) ? random.Int(1, 9) : 0;
  PagedBatch& capacities = fixture.capacities;
  capacities.causal = !features.Has(Feature::kNotCausal);
  capacities.num_rows = num_rows;
  capacities.num_tokens = num_live_tokens + num_inert;
  capacities.max_query_len = MaxOf(lengths.query_lens) + random.Pick({0, 0, 3});
  capacities.max_seq_len = MaxOf(lengths.seq_lens) + random.Pick({0, 0, 17});
  capacities.num_tables = std::max(1, num_rows);
  if (features.Has(Feature::kContextParallel)) {
    const int world = random.Int(2, 4);
    capacities.key_positions = {
        .rank = random.Int(0, world - 1), .world = world, .interleave = random.Pick({1, 1, 4, 7})};
    if (like) capacities.key_positions = like->capacities.key_positions;
  }

  // Arrays with one element per row. Rows without keys hold garbage.
  const bool common_prefix = features.Has(Feature::kCommonPrefix);
  const bool has_key_start = features.Has(Feature::kKeyStart);
  if (features.Has(Feature::kTableRow)) capacities.num_tables = random.Int(1, num_rows + 3);
  const int same_key_start = random.Int(0, 40);
  int prefix_len = std::numeric_limits<int>::max();
  for (int r = 0; r < num_rows; ++r) {
    const bool live = lengths.seq_lens[r] > 0;
    if (features.Has(Feature::kTableRow)) {
      fixture.table_row.push_back(live ? random.Int(0, capacities.num_tables - 1)
                                       : Garbage(random));
    }
    if (has_key_start) {
      const int start = common_prefix ? same_key_start : random.Pick({0, random.Int(1, 60)});
      fixture.key_start.push_back(live ? start : Garbage(random));
    }
    if (features.Has(Feature::kTail)) {
      const int tail_len =
          std::min(random.Pick({0, 1, random.Int(1, 8), random.Int(1, 64)}), lengths.seq_lens[r]);
      fixture.tail_len.push_back(live ? tail_len : Garbage(random));
    }
    if (live && lengths.query_lens[r] > 0) prefix_len = std::min(prefix_len, lengths.seq_lens[r]);
  }
  if (common_prefix) {
    const bool none = prefix_len == std::numeric_limits<int>::max();
    fixture.common_prefix_len = {none ? 0 : random.Int(0, prefix_len)};
  }

  if (features.Has(Feature::kCustomMask)) {
    CustomMasks masks = DrawCustomMasks(lengths, random);
    fixture.custom_mask = std::move(masks.bytes);
    fixture.custom_mask_offset = std::move(masks.offsets);
    capacities.custom_mask_bytes = std::ssize(fixture.custom_mask);
  }

  // Arrays with one element per token. Padded rows and inert tokens hold garbage.
  if (features.Has(Feature::kTail)) {
    for (int t = 0; t < capacities.num_tokens; ++t) {
      fixture.tail_mask.push_back(DrawTailMask(random));
    }
  }
  if (features.Has(Feature::kQueryPositions) || features.Has(Feature::kContextParallel)) {
    std::vector<int32_t> positions(capacities.num_tokens);
    for (int32_t& position : positions) position = Garbage(random);
    for (int r = 0; r < num_rows; ++r) {
      const BatchRow row = RowOf(fixture.Batch(OnHost), r);
      if (row.seq_len == 0) continue;
      std::ranges::copy(DrawQueryPositions(row, random), positions.begin() + row.first_token);
    }
    fixture.query_positions = std::move(positions);
  }

  const int max_position = options.max_seq_len * capacities.key_positions.world;
  fixture.layer = like ? like->layer.Redrawn(capacities.num_tables, random)
                       : DrawLayer(shape, features, capacities.num_tables, max_position, random);
  const int num_blocks = FillBlockTable(fixture, shape.block_size, random);
  KvMemoryOptions memory = {.layout = shape.layout,
                            .dtype = shape.kv_dtype,
                            .rope_dtype = shape.rope_dtype,
                            .block_size = shape.block_size,
                            .num_kv_heads = shape.num_kv_heads,
                            .head_dim_qk = shape.head_dim_qk,
                            .head_dim_v = shape.head_dim_v,
                            .k_chunk = shape.k_chunk};
  if (features.Has(Feature::kBlockGap)) {
    // Multiples of 16 elements keep 16-byte loads aligned.
    memory.block_gap = 16 * random.Int(1, 4);
    memory.head_gap = random.Pick({0, 0, 16});
    memory.token_gap = random.Pick({0, 0, 16, 32});
    memory.num_layers = random.Pick({1, 1, 2, 3});
    memory.layer = random.Int(0, memory.num_layers - 1);
  }
  if (like) memory = like->kv->options();
  memory.num_blocks = num_blocks;
  fixture.kv.emplace(memory);
  if (like) {
    fixture.q = like->q.Cleared(capacities.num_tokens);
    if (!like->new_k.bytes.empty()) fixture.new_k = like->new_k.Cleared(capacities.num_tokens);
    if (!like->new_v.bytes.empty()) fixture.new_v = like->new_v.Cleared(capacities.num_tokens);
  } else {
    fixture.q = MakeTokenArray(shape.q_dtype, capacities.num_tokens, shape.num_q_heads,
                               shape.head_dim_qk, features, random);
  }
  if (features.Has(Feature::kNewKeys) && !like) {
    const DType products = NewKeyType(shape.q_dtype, shape.kv_dtype);
    const auto make = [&](int head_dim) {
      return MakeTokenArray(products, capacities.num_tokens, shape.num_kv_heads, head_dim, features,
                            random);
    };
    fixture.new_k = make(shape.head_dim_qk);
    if (!IsLatent(shape.layout)) fixture.new_v = make(shape.head_dim_v);
  }
  FillValues(fixture, shape, random);
  fixture.description = Describe(options, shape, features, lengths.query_lens, lengths.seq_lens);
  return fixture;
}

// Enlarges the fixture and fills the added elements with garbage. Added rows have no keys and no
// queries.
void Grow(const PagedBatch& to, int num_blocks, Random& random, PagedFixture& fixture) {
  const FeatureSet& features = fixture.features;
  const auto grow = [&](auto& array, int size) {
    while (std::ssize(array) < size) array.push_back(Garbage(random));
  };
  fixture.query_start_loc.resize(to.num_rows + 1, fixture.query_start_loc.back());
  fixture.seq_lens.resize(to.num_rows, 0);
  if (features.Has(Feature::kTableRow)) grow(fixture.table_row, to.num_rows);
  if (features.Has(Feature::kKeyStart)) grow(fixture.key_start, to.num_rows);
  if (features.Has(Feature::kTail)) {
    grow(fixture.tail_len, to.num_rows);
    grow(fixture.tail_mask, to.num_tokens);
  }
  if (features.Has(Feature::kQueryPositions) || features.Has(Feature::kContextParallel)) {
    grow(fixture.query_positions, to.num_tokens);
  }
  if (features.Has(Feature::kCustomMask)) {
    fixture.custom_mask.resize(to.custom_mask_bytes, 0xa5);
    grow(fixture.custom_mask_offset, to.num_rows);
  }
  const PagedBatch& from = fixture.capacities;
  std::vector<int32_t> entries;
  grow(entries, static_cast<int>(std::max<int64_t>(1, to.num_tables * to.block_table_stride)));
  for (int row = 0; row < from.num_tables; ++row) {
    std::copy_n(fixture.block_table.begin() + row * from.block_table_stride, from.max_blocks,
                entries.begin() + row * to.block_table_stride);
  }
  fixture.block_table = std::move(entries);
  fixture.q.Grow(to.num_tokens);
  if (!fixture.new_k.bytes.empty()) fixture.new_k.Grow(to.num_tokens);
  if (!fixture.new_v.bytes.empty()) fixture.new_v.Grow(to.num_tokens);
  fixture.layer.Grow(to.num_tables);
  fixture.kv->Grow(num_blocks);
  fixture.capacities = to;
}

}  // namespace

PagedFixture MakePagedFixture(const FixtureOptions& options) {
  return MakeFixture(options, nullptr);
}

FixturePair<PagedFixture> MakePagedFixturePair(const FixtureOptions& options) {
  PagedFixture first = MakeFixture(options, nullptr);
  PagedFixture second = MakeFixture(SecondOptions(options, first.capacities.max_query_len), &first);
  PagedBatch to = first.capacities;
  const PagedBatch& other = second.capacities;
  to.num_rows = std::max(to.num_rows, other.num_rows);
  to.num_tokens = std::max(to.num_tokens, other.num_tokens);
  to.max_query_len = std::max(to.max_query_len, other.max_query_len);
  to.max_seq_len = std::max(to.max_seq_len, other.max_seq_len);
  to.num_tables = std::max(to.num_tables, other.num_tables);
  to.max_blocks = std::max(to.max_blocks, other.max_blocks);
  to.custom_mask_bytes = std::max(to.custom_mask_bytes, other.custom_mask_bytes);
  to.block_table_stride = std::max(to.block_table_stride, other.block_table_stride);
  const int num_blocks = std::max(first.kv->options().num_blocks, second.kv->options().num_blocks);
  Random random(options.seed + 1);
  Grow(to, num_blocks, random, first);
  Grow(to, num_blocks, random, second);
  second.description = first.description + "; then " + second.description;
  return {std::move(first), std::move(second)};
}

}  // namespace reprise
