// The parameters of a layer and tensors of tokens, with the arrays that they point to. Parts of the
// fixtures of attention/testing/batch_generator.h.

#ifndef REPRISE_ATTENTION_TESTING_LAYER_FIXTURE_H_
#define REPRISE_ATTENTION_TESTING_LAYER_FIXTURE_H_

#include <cstdint>
#include <vector>

#include "reprise/attention/attention_params.h"
#include "reprise/attention/testing/fixture_options.h"
#include "reprise/attention/testing/kv_memory.h"
#include "reprise/attention/testing/random.h"
#include "reprise/attention/token_view.h"
#include "reprise/base/dtype.h"

namespace reprise {

// The array of floats of a Scale.
struct ScaleArray {
  float value = 1.0f;
  std::vector<float> data;  // empty: uses `value`
  int64_t row_stride = 0;
  int64_t head_stride = 0;

  Scale View(const Placement& place) const;
  // Returns a copy of the same form. If it has an array, the copy has new floats for `num_rows`
  // rows.
  ScaleArray Redrawn(int num_rows, Random& random) const;
  // If there is one scale per row, extends the array to at least `num_rows` rows with NaN.
  void Grow(int num_rows);
};

// A tensor [num_tokens, heads, head_dim] as bytes.
struct TokenArray {
  DType dtype = DType::kFloat32;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int64_t offset = 0;  // elements before element (0, 0, 0)
  std::vector<uint8_t> bytes;

  TokenView View(const Placement& place) const;
  // Returns an array of `num_tokens` tokens with the same dtype and strides, filled with NaN.
  TokenArray Cleared(int num_tokens) const;
  // Appends tokens of NaN. REQUIRES: num_tokens does not decrease.
  void Grow(int num_tokens);
};

struct LayerFixture {
  AttentionParams params;           // pointers null
  std::vector<float> alibi_slopes;  // kAlibiRows: one set per row, params.alibi_row_stride apart
  std::vector<float> sinks;
  std::vector<float> q_head_scales;
  ScaleArray q_scale;
  ScaleArray k_scale;
  ScaleArray v_scale;
  ScaleArray rope_scale;  // kMlaParts only

  AttentionParams View(const Placement& place) const;
  // Returns a copy with the same host parameters and other floats in the arrays.
  LayerFixture Redrawn(int num_table_rows, Random& random) const;
  void Grow(int num_table_rows);
};

// Two fixtures for the same captured graph. Everything that a graph freezes is equal: features,
// strides, host parameters, capacities, and the size of every array. Everything that a graph reads
// from memory is drawn separately. Both have the larger of the two fixtures' capacities, so each
// may have padding in rows, tokens, tables and blocks.
template <typename Fixture>
struct FixturePair {
  Fixture first;
  Fixture second;
};

// Returns the options of a pair's second fixture: another seed, and rows with at most as many
// queries as in the first fixture, because the query bound selects the kernel.
FixtureOptions SecondOptions(const FixtureOptions& first, int max_query_len);

// Sizes of a layer and its cache. Sizes that the options do not set are drawn.
struct FixtureShape {
  DType q_dtype = DType::kFloat32;
  DType kv_dtype = DType::kFloat32;
  DType rope_dtype = DType::kFloat32;  // kMlaParts only
  KvMemoryLayout layout = KvMemoryLayout::kNhd;
  int k_chunk = 0;  // kKPacked only; see KvMemoryOptions
  int block_size = 1;
  int num_q_heads = 1;
  int num_kv_heads = 1;
  int head_dim_qk = 1;
  int head_dim_v = 1;
};

FixtureShape DrawShape(const FixtureOptions& options, const FeatureSet& features, Random& random);

// Draws a layer. `num_table_rows` is the number of rows of per-row scales. `max_position` is close
// to the largest position.
LayerFixture DrawLayer(const FixtureShape& shape, const FeatureSet& features, int num_table_rows,
                       int max_position, Random& random);

// Returns an array of NaN. Its strides have gaps if `features` has kStridedQ.
TokenArray MakeTokenArray(DType dtype, int num_tokens, int num_heads, int head_dim,
                          const FeatureSet& features, Random& random);

// Sets the `head_dim` elements of one token and head to random values of the given magnitude.
void FillToken(TokenArray& tokens, int token, int head, int head_dim, double magnitude,
               Random& random);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_LAYER_FIXTURE_H_
