// Random hostile batches over all fields of PagedBatch and AttentionParams, derived from a seed.
// For tests of the kernels, the CPU path and the reference.
//
//   PagedFixture fixture = MakePagedFixture({.seed = seed, .q_dtype = DType::kBFloat16});
//   SCOPED_TRACE(fixture.description);
//   Result expected = ReferencePagedAttention<double>(
//       fixture.Layer(OnHost), fixture.Batch(OnHost), fixture.Q(OnHost), fixture.Kv(OnHost));
// On a device: the same calls with a Placement that copies and returns the address of the copy
//
// Hostile contents:
// - Block tables are shuffled, rows may share blocks, and all entries that the contract forbids to
//   read hold invalid IDs.
// - NaN fills K and V that no query sees, q of padded rows and inert tokens, and all gaps
//   between strides.
// - Padded rows hold garbage in all arrays except query_start_loc and seq_lens (0).
// - Rows may be empty, lengths are often close to block boundaries, and capacities may exceed the
//   live sizes.
//
// Thread safety: a fixture is const data after construction. It is movable. Views point into it and
// stay valid across a move.

#ifndef REPRISE_ATTENTION_TESTING_BATCH_GENERATOR_H_
#define REPRISE_ATTENTION_TESTING_BATCH_GENERATOR_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reprise/attention/attention_params.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/testing/fixture_options.h"
#include "reprise/attention/testing/kv_memory.h"
#include "reprise/attention/testing/layer_fixture.h"
#include "reprise/attention/token_view.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

struct PagedFixture {
  std::string description;  // seed, shape and features, for failure messages
  FeatureSet features;
  FixtureShape shape;
  LayerFixture layer;
  std::optional<KvMemory> kv;
  TokenArray q;
  TokenArray new_k;  // empty without kNewKeys
  TokenArray new_v;  // also empty if V is the first columns of K

  PagedBatch capacities;  // host fields; pointers null
  std::vector<int32_t> query_start_loc;
  std::vector<int32_t> seq_lens;
  std::vector<int32_t> table_row;
  std::vector<int32_t> key_start;
  std::vector<int32_t> block_table;
  std::vector<int32_t> query_positions;
  std::vector<int32_t> tail_len;
  std::vector<uint64_t> tail_mask;
  std::vector<uint8_t> custom_mask;
  std::vector<int64_t> custom_mask_offset;
  std::vector<int32_t> common_prefix_len;

  // Empty arrays are absent (null) in the batch.
  PagedBatch Batch(const Placement& place) const;
  AttentionParams Layer(const Placement& place) const { return layer.View(place); }
  KvLayer Kv(const Placement& place) const;
  TokenView Q(const Placement& place) const { return q.View(place); }
  // Returns views without data if the fixture has no new keys.
  NewKeys New(const Placement& place) const;
};

// Equal options give equal fixtures.
PagedFixture MakePagedFixture(const FixtureOptions& options);

// Makes two sets of contents for the same captured graph (attention/testing/layer_fixture.h). The
// first set is MakePagedFixture(options) with padding.
FixturePair<PagedFixture> MakePagedFixturePair(const FixtureOptions& options);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_BATCH_GENERATOR_H_
