// Random hostile ragged batches from a seed: attention/testing/batch_generator.h without a cache.
//
// Omits features that need block tables, tails or ranks. k and v have the dtype of q, or, with
// FixtureOptions::quantised_ragged, may be fp8 with scales (layer.k_scale, layer.v_scale). Keys
// that no query sees are NaN.

#ifndef REPRISE_ATTENTION_TESTING_RAGGED_GENERATOR_H_
#define REPRISE_ATTENTION_TESTING_RAGGED_GENERATOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "reprise/attention/attention_params.h"
#include "reprise/attention/ragged_batch.h"
#include "reprise/attention/testing/fixture_options.h"
#include "reprise/attention/testing/kv_memory.h"
#include "reprise/attention/testing/layer_fixture.h"
#include "reprise/attention/token_view.h"

namespace reprise {

struct RaggedFixture {
  std::string description;
  FeatureSet features;
  FixtureShape shape;
  LayerFixture layer;
  TokenArray q;
  TokenArray k;
  TokenArray v;

  RaggedBatch capacities;
  std::vector<int32_t> query_start_loc;
  std::vector<int32_t> key_start_loc;
  std::vector<int32_t> query_positions;
  std::vector<uint8_t> custom_mask;
  std::vector<int64_t> custom_mask_offset;

  RaggedBatch Batch(const Placement& place) const;
  AttentionParams Layer(const Placement& place) const { return layer.View(place); }
};

// Equal options give equal fixtures.
RaggedFixture MakeRaggedFixture(const FixtureOptions& options);

// See MakePagedFixturePair().
FixturePair<RaggedFixture> MakeRaggedFixturePair(const FixtureOptions& options);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_RAGGED_GENERATOR_H_
