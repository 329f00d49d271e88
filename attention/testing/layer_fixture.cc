#include "reprise/attention/testing/layer_fixture.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "reprise/base/element_access.h"

namespace reprise {
namespace {

template <typename T>
T* Placed(const std::vector<T>& array, const Placement& place) {
  if (array.empty()) return nullptr;
  return static_cast<T*>(place(array.data(), array.size() * sizeof(T)));
}

// Draws a value, or an array with one float, one per head, one per row, or one per row and head.
ScaleArray DrawScale(int num_rows, int num_heads, Random& random) {
  ScaleArray scale;
  scale.value = static_cast<float>(random.Real(0.25, 2.0));
  const int kind = random.Int(0, 4);
  if (kind == 0) return scale;
  const bool by_row = kind >= 3;
  const bool by_head = kind == 2 || kind == 4;
  const int heads = by_head ? num_heads : 1;
  scale.head_stride = by_head ? 1 : 0;
  scale.row_stride = by_row ? heads : 0;
  scale.data.resize((by_row ? num_rows : 1) * heads);
  for (float& value : scale.data) value = static_cast<float>(random.Real(0.25, 2.0));
  scale.value = NAN;  // must not be used
  return scale;
}

// Draws slopes per head, or with alibi_row_stride per row and head, with NaN between the rows.
std::vector<float> DrawSlopes(const AttentionParams& params, int num_rows, Random& random) {
  const auto stride = static_cast<int>(params.alibi_row_stride);
  std::vector<float> slopes(stride > 0 ? num_rows * stride : params.num_q_heads, NAN);
  for (int row = 0; row < (stride > 0 ? num_rows : 1); ++row) {
    const double factor = stride > 0 ? random.Real(0.25, 1) : 1.0;
    for (int head = 0; head < params.num_q_heads; ++head) {
      slopes[row * stride + head] =
          static_cast<float>(factor * std::exp2(-8.0f * (head + 1) / params.num_q_heads));
    }
  }
  return slopes;
}

// Returns the dtype of the rope parts: the latents' dtype, fp8, or another dtype that the MMA dtype
// for such q can represent.
DType DrawRopeType(DType q_dtype, DType kv_dtype, Random& random) {
  if (q_dtype == DType::kFloat32) {
    return random.Pick({kv_dtype, DType::kFloat32, DType::kBFloat16, DType::kFp8E5M2});
  }
  const DType fp8_products = kv_dtype == DType::kFloat16 ? kv_dtype : DType::kBFloat16;
  return random.Pick({IsFp8(q_dtype) ? fp8_products : q_dtype, kv_dtype, DType::kFp8E4M3});
}

}  // namespace

Scale ScaleArray::View(const Placement& place) const {
  return {.value = value,
          .data = Placed(data, place),
          .row_stride = row_stride,
          .head_stride = head_stride};
}

ScaleArray ScaleArray::Redrawn(int num_rows, Random& random) const {
  ScaleArray scale = *this;
  if (row_stride > 0) scale.data.resize(num_rows * row_stride);
  for (float& value : scale.data) value = static_cast<float>(random.Real(0.25, 2.0));
  return scale;
}

void ScaleArray::Grow(int num_rows) {
  if (row_stride == 0 || std::ssize(data) >= num_rows * row_stride) return;
  data.resize(num_rows * row_stride, NAN);
}

TokenView TokenArray::View(const Placement& place) const {
  auto* base = static_cast<char*>(place(bytes.data(), bytes.size()));
  return {.data = base + offset * SizeOf(dtype),
          .dtype = dtype,
          .token_stride = token_stride,
          .head_stride = head_stride};
}

TokenArray TokenArray::Cleared(int num_tokens) const {
  TokenArray tokens = *this;
  tokens.bytes.clear();
  tokens.Grow(num_tokens);
  return tokens;
}

void TokenArray::Grow(int num_tokens) {
  // Allocates one more element, so that an empty array has an address.
  bytes.resize((offset + num_tokens * token_stride + 1) * SizeOf(dtype), 0xff);
}

LayerFixture LayerFixture::Redrawn(int num_table_rows, Random& random) const {
  LayerFixture layer = *this;
  if (params.alibi_row_stride > 0) {
    layer.alibi_slopes = DrawSlopes(params, num_table_rows, random);
  } else {
    for (float& slope : layer.alibi_slopes) slope *= static_cast<float>(random.Real(0.5, 1));
  }
  for (float& scale : layer.q_head_scales) scale = static_cast<float>(random.Real(0.25, 2.0));
  for (float& sink : layer.sinks) sink = static_cast<float>(random.Real(-4, 6));
  layer.q_scale = q_scale.Redrawn(num_table_rows, random);
  layer.k_scale = k_scale.Redrawn(num_table_rows, random);
  layer.v_scale = v_scale.Redrawn(num_table_rows, random);
  layer.rope_scale = rope_scale.Redrawn(num_table_rows, random);
  return layer;
}

void LayerFixture::Grow(int num_table_rows) {
  if (const int64_t size = num_table_rows * params.alibi_row_stride;
      std::ssize(alibi_slopes) < size) {
    alibi_slopes.resize(size, NAN);
  }
  q_scale.Grow(num_table_rows);
  k_scale.Grow(num_table_rows);
  v_scale.Grow(num_table_rows);
  rope_scale.Grow(num_table_rows);
}

FixtureOptions SecondOptions(const FixtureOptions& first, int max_query_len) {
  FixtureOptions second = first;
  second.seed = first.seed * 0x9e3779b97f4a7c15 + 1;
  second.max_query_len = std::max(1, std::min(first.max_query_len, max_query_len));
  return second;
}

AttentionParams LayerFixture::View(const Placement& place) const {
  AttentionParams view = params;
  view.alibi_slopes = Placed(alibi_slopes, place);
  view.sinks = Placed(sinks, place);
  view.q_head_scales = Placed(q_head_scales, place);
  view.q_scale = q_scale.View(place);
  return view;
}

FixtureShape DrawShape(const FixtureOptions& options, const FeatureSet& features, Random& random) {
  using enum KvMemoryLayout;
  FixtureShape shape;
  shape.q_dtype =
      options.q_dtype.value_or(random.Pick({DType::kFloat32, DType::kFloat16, DType::kBFloat16}));
  shape.kv_dtype = options.kv_dtype.value_or(
      random.Pick({shape.q_dtype, shape.q_dtype, DType::kFloat32, DType::kFloat16, DType::kBFloat16,
                   DType::kFp8E4M3, DType::kFp8E5M2}));
  shape.layout = options.layout.value_or(random.Pick(
      {kNhd, kNhd, kHnd, kPackedNhd, kPackedHnd, kDiffKv, kDiffKvHnd, kKPacked, kMla, kMlaParts}));
  shape.block_size = options.block_size.value_or(random.Pick({1, 2, 3, 4, 5, 8, 16, 32}));
  shape.num_kv_heads = options.num_kv_heads.value_or(random.Int(1, 3));
  const bool is_latent = IsLatent(shape.layout);
  if (is_latent) shape.num_kv_heads = 1;
  shape.num_q_heads =
      shape.num_kv_heads * options.group_size.value_or(random.Pick({1, 1, 2, 3, 4, 5, 7}));

  const bool odd = features.Has(Feature::kOddHeadDim) && shape.layout != kKPacked;
  shape.head_dim_qk = options.head_dim_qk.value_or(
      odd ? random.Pick({2, 4, 6, 10, 20, 34, 74})
          : random.Pick({16, 16, 32, 32, 48, 64, 64, 80, 96, 112, 128, 192, 256}));
  const bool may_differ = shape.layout != kPackedNhd && shape.layout != kPackedHnd;
  shape.head_dim_v = shape.head_dim_qk;
  if (may_differ && options.head_dim_v) {
    shape.head_dim_v = *options.head_dim_v;
  } else if (may_differ && (features.Has(Feature::kDifferentV) || is_latent)) {
    shape.head_dim_v = odd ? random.Pick({1, 3, 5, 17}) : random.Pick({8, 16, 32, 64, 128});
    if (is_latent) shape.head_dim_v = std::min(shape.head_dim_v, shape.head_dim_qk);
  }
  const bool is_free = !odd && !options.head_dim_qk && !options.head_dim_v;
  if (is_latent && is_free && random.OneIn(2)) {
    // DeepSeek's dims, and smaller dims.
    shape.head_dim_v = random.Pick({512, 256, 496});
    shape.head_dim_qk = shape.head_dim_v + random.Pick({64, 32});
  }
  if (shape.layout == kKPacked) {
    const bool has_eights = shape.head_dim_qk % 8 == 0;
    shape.k_chunk = options.k_chunk.value_or(has_eights ? random.Pick({0, 4, 8}) : 0);
  }
  if (shape.layout == kMlaParts) {
    if (shape.head_dim_v == shape.head_dim_qk) shape.head_dim_qk += odd ? 3 : 16;
    shape.rope_dtype = DrawRopeType(shape.q_dtype, shape.kv_dtype, random);
  }
  return shape;
}

LayerFixture DrawLayer(const FixtureShape& shape, const FeatureSet& features, int num_table_rows,
                       int max_position, Random& random) {
  LayerFixture layer;
  AttentionParams& params = layer.params;
  params.num_q_heads = shape.num_q_heads;
  params.num_kv_heads = shape.num_kv_heads;
  params.head_dim_qk = shape.head_dim_qk;
  params.head_dim_v = shape.head_dim_v;
  if (features.Has(Feature::kScale)) params.scale = static_cast<float>(random.Real(0.02, 0.5));
  if (features.Has(Feature::kWindow)) {
    const int sides = random.Int(1, 3);
    const int longest = random.Pick({3, 20, max_position});
    if (sides & 1) params.window_left = random.Int(0, longest);
    if (sides & 2) params.window_right = random.Int(0, longest);
  }
  if (features.Has(Feature::kSoftcap)) params.softcap = static_cast<float>(random.Real(1, 50));
  if (features.Has(Feature::kAlibi)) {
    if (features.Has(Feature::kAlibiRows)) {
      params.alibi_row_stride = shape.num_q_heads + random.Int(0, 3);
    }
    layer.alibi_slopes = DrawSlopes(params, num_table_rows, random);
  }
  if (features.Has(Feature::kSinks)) {
    for (int head = 0; head < shape.num_q_heads; ++head) {
      layer.sinks.push_back(static_cast<float>(random.Real(-4, 6)));
    }
  }
  if (features.Has(Feature::kQuantScales)) {
    layer.q_scale = DrawScale(num_table_rows, shape.num_kv_heads, random);
    layer.k_scale = DrawScale(num_table_rows, shape.num_kv_heads, random);
    layer.v_scale = DrawScale(num_table_rows, shape.num_kv_heads, random);
    if (shape.layout == KvMemoryLayout::kMlaParts) {
      layer.rope_scale = DrawScale(num_table_rows, shape.num_kv_heads, random);
    }
  }
  if (features.Has(Feature::kQHeadScales)) {
    for (int head = 0; head < shape.num_q_heads; ++head) {
      layer.q_head_scales.push_back(static_cast<float>(random.Real(0.25, 2.0)));
    }
  }
  // Rotary embedding is not drawn for large heads, and not supported if keys are in two parts.
  if (features.Has(Feature::kRotary) && shape.head_dim_qk % 2 == 0 && shape.head_dim_qk <= 512 &&
      shape.layout != KvMemoryLayout::kMlaParts) {
    params.rotary =
        RotaryParams{.rope_scale = random.Pick({1.0f, 1.0f, 4.0f}),
                     .rope_theta = random.Pick({1e4f, 5e5f}),
                     .rotary_dim = random.OneIn(2) ? 0 : 2 * random.Int(1, shape.head_dim_qk / 2)};
  }
  if (features.Has(Feature::kSparse)) {
    params.sparse = BlockSparseParams{.local_blocks = random.Int(0, 3),
                                      .vertical_stride = random.Int(1, 4),
                                      .block_size = shape.block_size * random.Int(1, 4),
                                      .head_sliding_step = random.Int(-2, 2),
                                      .tp_rank = random.Int(0, 2)};
  }
  return layer;
}

TokenArray MakeTokenArray(DType dtype, int num_tokens, int num_heads, int head_dim,
                          const FeatureSet& features, Random& random) {
  TokenArray tokens;
  tokens.dtype = dtype;
  tokens.head_stride = head_dim;
  tokens.token_stride = static_cast<int64_t>(num_heads) * head_dim;
  if (features.Has(Feature::kStridedQ)) {
    // A multiple of 8 elements keeps 16-byte loads aligned if head_dim is a multiple of 8.
    const int unit = features.Has(Feature::kUnalignedQ) ? 1 : 8;
    tokens.head_stride += unit * random.Int(0, 3);
    tokens.token_stride = num_heads * tokens.head_stride + unit * random.Int(0, 9);
    tokens.offset = unit * random.Int(0, 5);
  }
  tokens.Grow(num_tokens);
  return tokens;
}

void FillToken(TokenArray& tokens, int token, int head, int head_dim, double magnitude,
               Random& random) {
  const int64_t first = tokens.offset + token * tokens.token_stride + head * tokens.head_stride;
  for (int dim = 0; dim < head_dim; ++dim) {
    StoreElement(tokens.bytes.data(), tokens.dtype, first + dim, magnitude * random.NearNormal());
  }
}

}  // namespace reprise
