#include "reprise/attention/testing/ragged_generator.h"

#include <algorithm>
#include <iterator>
#include <sstream>
#include <utility>

#include "reprise/attention/testing/random.h"
#include "reprise/attention/testing/row_draws.h"
#include "reprise/attention/visibility.h"

namespace reprise {
namespace {

constexpr std::initializer_list<Feature> kPagedOnly = {
    Feature::kTableRow, Feature::kKeyStart,     Feature::kTail,    Feature::kContextParallel,
    Feature::kBlockGap, Feature::kCommonPrefix, Feature::kNewKeys,
};

template <typename T>
const T* Placed(const std::vector<T>& array, const Placement& place) {
  if (array.empty()) return nullptr;
  return static_cast<const T*>(place(array.data(), array.size() * sizeof(T)));
}

// Sets k and v only where some query sees them, and q for all rows with keys.
void FillValues(RaggedFixture& fixture, Random& random) {
  const RaggedBatch batch = fixture.Batch(OnHost);
  const AttentionParams& layer = fixture.layer.params;
  const double q_magnitude = fixture.features.Has(Feature::kLargeLogits) ? 6.0 : 1.0;
  std::vector<bool> seen(batch.num_keys);
  for (int r = 0; r < batch.num_rows; ++r) {
    const BatchRow row = RowOf(batch, r);
    if (row.seq_len == 0) continue;
    for (int i = 0; i < row.query_len; ++i) {
      for (int head = 0; head < layer.num_q_heads; ++head) {
        FillToken(fixture.q, row.first_token + i, head, layer.head_dim_qk, q_magnitude, random);
        for (const VisibleKey& key : VisibleKeys(layer, row, i, head)) {
          seen[row.first_key + key.local] = true;
        }
      }
    }
  }
  for (int key = 0; key < batch.num_keys; ++key) {
    if (!seen[key]) continue;
    for (int head = 0; head < layer.num_kv_heads; ++head) {
      FillToken(fixture.k, key, head, layer.head_dim_qk, 1.0, random);
      FillToken(fixture.v, key, head, layer.head_dim_v, 1.0, random);
    }
  }
}

}  // namespace

RaggedBatch RaggedFixture::Batch(const Placement& place) const {
  RaggedBatch batch = capacities;
  batch.query_start_loc = Placed(query_start_loc, place);
  batch.key_start_loc = Placed(key_start_loc, place);
  batch.query_positions = Placed(query_positions, place);
  batch.custom_mask = Placed(custom_mask, place);
  batch.custom_mask_offset = Placed(custom_mask_offset, place);
  return batch;
}

namespace {

// If `like` is not null, uses its features, shape, strides and host parameters.
RaggedFixture MakeFixture(const FixtureOptions& options, const RaggedFixture* like) {
  Random random(options.seed);
  FixtureOptions ragged = options;
  ragged.allowed = options.allowed.Without(kPagedOnly);
  ragged.required = options.required.Without(kPagedOnly);
  ragged.layout = KvMemoryLayout::kNhd;
  RaggedFixture fixture;
  fixture.features = like ? like->features : DrawFeatures(ragged, random);
  const FeatureSet& features = fixture.features;
  fixture.shape = like ? like->shape : DrawShape(ragged, features, random);
  const FixtureShape& shape = fixture.shape;
  const RowLengths lengths = DrawRowLengths(ragged, features, shape.block_size, random);
  const int num_rows = static_cast<int>(lengths.seq_lens.size());

  fixture.query_start_loc = PrefixSums(lengths.query_lens);
  fixture.key_start_loc = PrefixSums(lengths.seq_lens);
  const int num_inert = features.Has(Feature::kInertTokens) ? random.Int(1, 9) : 0;
  fixture.capacities = {.causal = !features.Has(Feature::kNotCausal),
                        .num_rows = num_rows,
                        .num_tokens = fixture.query_start_loc.back() + num_inert,
                        .num_keys = fixture.key_start_loc.back() + num_inert,
                        .max_query_len = MaxOf(lengths.query_lens) + random.Pick({0, 0, 3}),
                        .max_seq_len = MaxOf(lengths.seq_lens) + random.Pick({0, 0, 17})};
  const RaggedBatch& capacities = fixture.capacities;
  if (features.Has(Feature::kCustomMask)) {
    CustomMasks masks = DrawCustomMasks(lengths, random);
    fixture.custom_mask = std::move(masks.bytes);
    fixture.custom_mask_offset = std::move(masks.offsets);
    fixture.capacities.custom_mask_bytes = std::ssize(fixture.custom_mask);
  }
  if (features.Has(Feature::kQueryPositions)) {
    std::vector<int32_t> positions(capacities.num_tokens);
    for (int32_t& position : positions) position = Garbage(random);
    for (int r = 0; r < num_rows; ++r) {
      const BatchRow row = RowOf(fixture.Batch(OnHost), r);
      if (row.seq_len == 0) continue;
      std::ranges::copy(DrawQueryPositions(row, random), positions.begin() + row.first_token);
    }
    fixture.query_positions = std::move(positions);
  }

  if (like) {
    fixture.layer = like->layer.Redrawn(std::max(1, num_rows), random);
    fixture.q = like->q.Cleared(capacities.num_tokens);
    fixture.k = like->k.Cleared(capacities.num_keys);
    fixture.v = like->v.Cleared(capacities.num_keys);
  } else {
    fixture.layer = DrawLayer(shape, features, std::max(1, num_rows), options.max_seq_len, random);
    if (!options.quantised_ragged) fixture.layer.k_scale = fixture.layer.v_scale = {};
    const DType kv_dtype =
        options.quantised_ragged && IsFp8(shape.kv_dtype) ? shape.kv_dtype : shape.q_dtype;
    fixture.q = MakeTokenArray(shape.q_dtype, capacities.num_tokens, shape.num_q_heads,
                               shape.head_dim_qk, features, random);
    fixture.k = MakeTokenArray(kv_dtype, capacities.num_keys, shape.num_kv_heads, shape.head_dim_qk,
                               features, random);
    fixture.v = MakeTokenArray(kv_dtype, capacities.num_keys, shape.num_kv_heads, shape.head_dim_v,
                               features, random);
  }
  FillValues(fixture, random);

  std::ostringstream text;
  text << "seed " << options.seed << ": ragged, q " << shape.q_dtype << ", k " << fixture.k.dtype
       << ", heads " << shape.num_q_heads << "/" << shape.num_kv_heads << ", dims "
       << shape.head_dim_qk << "/" << shape.head_dim_v << ", rows (query_len/seq_len)";
  for (int r = 0; r < num_rows; ++r) {
    text << " " << lengths.query_lens[r] << "/" << lengths.seq_lens[r];
  }
  text << ", " << ToString(features);
  fixture.description = text.str();
  return fixture;
}

void Grow(const RaggedBatch& to, Random& random, RaggedFixture& fixture) {
  fixture.query_start_loc.resize(to.num_rows + 1, fixture.query_start_loc.back());
  fixture.key_start_loc.resize(to.num_rows + 1, fixture.key_start_loc.back());
  if (fixture.features.Has(Feature::kQueryPositions)) {
    while (std::ssize(fixture.query_positions) < to.num_tokens) {
      fixture.query_positions.push_back(Garbage(random));
    }
  }
  if (fixture.features.Has(Feature::kCustomMask)) {
    fixture.custom_mask.resize(to.custom_mask_bytes, 0xa5);
    while (std::ssize(fixture.custom_mask_offset) < to.num_rows) {
      fixture.custom_mask_offset.push_back(Garbage(random));
    }
  }
  fixture.q.Grow(to.num_tokens);
  fixture.k.Grow(to.num_keys);
  fixture.v.Grow(to.num_keys);
  fixture.layer.Grow(std::max(1, to.num_rows));
  fixture.capacities = to;
}

}  // namespace

RaggedFixture MakeRaggedFixture(const FixtureOptions& options) {
  return MakeFixture(options, nullptr);
}

FixturePair<RaggedFixture> MakeRaggedFixturePair(const FixtureOptions& options) {
  RaggedFixture first = MakeFixture(options, nullptr);
  RaggedFixture second =
      MakeFixture(SecondOptions(options, first.capacities.max_query_len), &first);
  RaggedBatch to = first.capacities;
  const RaggedBatch& other = second.capacities;
  to.num_rows = std::max(to.num_rows, other.num_rows);
  to.num_tokens = std::max(to.num_tokens, other.num_tokens);
  to.num_keys = std::max(to.num_keys, other.num_keys);
  to.max_query_len = std::max(to.max_query_len, other.max_query_len);
  to.max_seq_len = std::max(to.max_seq_len, other.max_seq_len);
  to.custom_mask_bytes = std::max(to.custom_mask_bytes, other.custom_mask_bytes);
  Random random(options.seed + 1);
  Grow(to, random, first);
  Grow(to, random, second);
  second.description = first.description + "; then " + second.description;
  return {std::move(first), std::move(second)};
}

}  // namespace reprise
