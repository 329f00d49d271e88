#include "attention/testing/ragged_generator.h"

#include <algorithm>
#include <sstream>

#include "attention/reference/visibility.h"
#include "attention/testing/random.h"
#include "attention/testing/row_draws.h"

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

// Sets exactly the k and v that some query sees, and q wherever there are keys.
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
  return batch;
}

RaggedFixture MakeRaggedFixture(const FixtureOptions& options) {
  Random random(options.seed);
  FixtureOptions ragged = options;
  ragged.allowed = options.allowed.Without(kPagedOnly);
  ragged.required = options.required.Without(kPagedOnly);
  ragged.layout = KvMemoryLayout::kNhd;
  RaggedFixture fixture;
  fixture.features = DrawFeatures(ragged, random);
  const FeatureSet& features = fixture.features;
  const FixtureShape shape = DrawShape(ragged, features, random);
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

  fixture.layer = DrawLayer(shape, features, std::max(1, num_rows), options.max_seq_len, random);
  fixture.layer.k_scale = fixture.layer.v_scale = {};  // these belong to a cache
  fixture.q = MakeTokenArray(shape.q_dtype, capacities.num_tokens, shape.num_q_heads,
                             shape.head_dim_qk, features, random);
  fixture.k = MakeTokenArray(shape.q_dtype, capacities.num_keys, shape.num_kv_heads,
                             shape.head_dim_qk, features, random);
  fixture.v = MakeTokenArray(shape.q_dtype, capacities.num_keys, shape.num_kv_heads,
                             shape.head_dim_v, features, random);
  FillValues(fixture, random);

  std::ostringstream text;
  text << "seed " << options.seed << ": ragged, " << shape.q_dtype << ", heads "
       << shape.num_q_heads << "/" << shape.num_kv_heads << ", dims " << shape.head_dim_qk << "/"
       << shape.head_dim_v << ", rows (query_len/seq_len)";
  for (int r = 0; r < num_rows; ++r) {
    text << " " << lengths.query_lens[r] << "/" << lengths.seq_lens[r];
  }
  text << ", " << ToString(features);
  fixture.description = text.str();
  return fixture;
}

}  // namespace reprise
