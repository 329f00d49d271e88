// The parameters of a layer, and tensors of tokens, with the arrays that they point to: parts of
// the fixtures of attention/testing/batch_generator.h.

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

// An array of floats behind a Scale.
struct ScaleArray {
  float value = 1.0f;
  std::vector<float> data;  // empty: the value
  int64_t row_stride = 0;
  int64_t head_stride = 0;

  Scale View(const Placement& place) const;
  // The same form, with other floats for `num_rows` rows where it has an array.
  ScaleArray Redrawn(int num_rows, Random& random) const;
  // Scales for at least so many rows, if there is one a row; those of new rows are NaN.
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
  // NaN of the same dtype and strides.
  TokenArray Cleared(int num_tokens) const;
  // Adds tokens of NaN. REQUIRES: at least as many as before.
  void Grow(int num_tokens);
};

struct LayerFixture {
  AttentionParams params;           // pointers null
  std::vector<float> alibi_slopes;  // with kAlibiRows of each row, params.alibi_row_stride apart
  std::vector<float> sinks;
  std::vector<float> q_head_scales;
  ScaleArray q_scale;
  ScaleArray k_scale;
  ScaleArray v_scale;
  ScaleArray rope_scale;  // of kMlaParts

  AttentionParams View(const Placement& place) const;
  // The same parameters on the host, other floats in the arrays.
  LayerFixture Redrawn(int num_table_rows, Random& random) const;
  void Grow(int num_table_rows);
};

// Two fixtures over which one captured graph serves: all that a graph freezes is the same (features,
// strides, parameters on the host, capacities, the size of every array), and all that it reads from
// memory differs. Each has the capacities of the larger one, so rows, tokens, tables and blocks of
// either may be padding.
template <typename Fixture>
struct FixturePair {
  Fixture first;
  Fixture second;
};

// The options of a pair's second fixture: another seed, and rows of no more queries than the
// first's, whose bound decides on the kernel.
FixtureOptions SecondOptions(const FixtureOptions& first, int max_query_len);

// Sizes of a layer and its cache, drawn where the options leave them open.
struct FixtureShape {
  DType q_dtype = DType::kFloat32;
  DType kv_dtype = DType::kFloat32;
  DType rope_dtype = DType::kFloat32;  // of kMlaParts
  KvMemoryLayout layout = KvMemoryLayout::kNhd;
  int k_chunk = 0;  // of kKPacked, as KvMemoryOptions has it
  int block_size = 1;
  int num_q_heads = 1;
  int num_kv_heads = 1;
  int head_dim_qk = 1;
  int head_dim_v = 1;
};

FixtureShape DrawShape(const FixtureOptions& options, const FeatureSet& features, Random& random);

// `num_table_rows`: number of rows of per-row scales. `max_position`: close to the largest
// position.
LayerFixture DrawLayer(const FixtureShape& shape, const FeatureSet& features, int num_table_rows,
                       int max_position, Random& random);

// NaN throughout, with the strides that the features ask for.
TokenArray MakeTokenArray(DType dtype, int num_tokens, int num_heads, int head_dim,
                          const FeatureSet& features, Random& random);

// Sets the `head_dim` elements of one token and head to random values of the given magnitude.
void FillToken(TokenArray& tokens, int token, int head, int head_dim, double magnitude,
               Random& random);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_LAYER_FIXTURE_H_
