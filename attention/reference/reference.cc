#include "reprise/attention/reference/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reprise/attention/visibility.h"
#include "reprise/base/element_access.h"

namespace reprise {
namespace {

template <typename T>
T ValueOf(const Scale& scale, int64_t table_row, int64_t kv_head) {
  return scale.data ? scale.data[table_row * scale.row_stride + kv_head * scale.head_stride]
                    : scale.value;
}

// Rotates the pairs (d, d + rotary_dim / 2) of `x` by the angles for `position`.
template <typename T>
void Rotate(const RotaryParams& rotary, int64_t position, std::vector<T>& x) {
  const int rotary_dim = rotary.rotary_dim == 0 ? static_cast<int>(x.size()) : rotary.rotary_dim;
  const int half = rotary_dim / 2;
  for (int d = 0; d < half; ++d) {
    const T frequency = std::pow(static_cast<T>(rotary.rope_theta),
                                 static_cast<T>(-2 * d) / static_cast<T>(rotary_dim));
    const T angle = static_cast<T>(position) / static_cast<T>(rotary.rope_scale) * frequency;
    const T first = x[d];
    const T second = x[d + half];
    x[d] = first * std::cos(angle) - second * std::sin(angle);
    x[d + half] = second * std::cos(angle) + first * std::sin(angle);
  }
}

template <typename T>
void RoundTo(DType dtype, std::vector<T>& x) {
  for (T& value : x) value = static_cast<T>(reprise::RoundTo(dtype, value));
}

template <typename T>
T Dot(const std::vector<T>& a, const std::vector<T>& b) {
  T sum = 0;
  for (size_t d = 0; d < a.size(); ++d) sum += a[d] * b[d];
  return sum;
}

template <typename T>
std::vector<T> LoadHead(const TokenView& tokens, int64_t token, int head, int head_dim) {
  std::vector<T> x(head_dim);
  for (int d = 0; d < head_dim; ++d) {
    x[d] = LoadElement<T>(tokens.data, tokens.dtype, tokens.Offset(token, head) + d);
  }
  return x;
}

// The parameters of one query's logits.
template <typename T>
struct Logits {
  T scale;  // product of all scales
  int64_t query_position;
  T alibi_slope;

  T Of(const AttentionParams& layer, T dot, int64_t key_position) const {
    T s = scale * dot;
    if (layer.has_softcap()) s = *layer.softcap * std::tanh(s / *layer.softcap);
    return s - alibi_slope * static_cast<T>(std::abs(key_position - query_position));
  }
};

template <typename T>
T SlopeOf(const AttentionParams& layer, const BatchRow& row, int q_head) {
  return layer.alibi_slopes ? layer.alibi_slopes[row.table_row * layer.alibi_row_stride + q_head]
                            : 0;
}

// The query vector of one token and head.
template <typename T>
struct QueryHead {
  int query = 0;  // index in the row
  int q_head = 0;
  std::vector<T> vector;
  T score_scale;
  T v_scale;
};

// Writes out [head_dim_v] for one query and head, and returns its lse. load_k and load_v return the
// vectors of a local key.
template <typename T, typename LoadK, typename LoadV>
T Attend(const AttentionParams& layer, const BatchRow& row, const QueryHead<T>& head,
         DType product_dtype, const LoadK& load_k, const LoadV& load_v, T* out) {
  const std::vector<VisibleKey> keys = VisibleKeys(layer, row, head.query, head.q_head);
  for (int d = 0; d < layer.head_dim_v; ++d) out[d] = 0;
  if (keys.empty()) return -std::numeric_limits<T>::infinity();

  const Logits<T> logits = {.scale = head.score_scale,
                            .query_position = QueryPosition(row, head.query),
                            .alibi_slope = SlopeOf<T>(layer, row, head.q_head)};
  std::vector<T> q_vector = head.vector;
  if (layer.rotary) {
    Rotate(*layer.rotary, logits.query_position, q_vector);
    RoundTo(product_dtype, q_vector);
  }
  std::vector<T> scores;
  T largest = layer.sinks ? layer.sinks[head.q_head] : -std::numeric_limits<T>::infinity();
  for (const VisibleKey& key : keys) {
    std::vector<T> k_vector = load_k(key.local);
    if (layer.rotary) {
      Rotate(*layer.rotary, key.position, k_vector);
      RoundTo(product_dtype, k_vector);
    }
    scores.push_back(logits.Of(layer, Dot(q_vector, k_vector), key.position));
    largest = std::max(largest, scores.back());
  }

  // exp(x - largest) cannot overflow.
  T sum = layer.sinks ? std::exp(layer.sinks[head.q_head] - largest) : 0;
  for (size_t j = 0; j < keys.size(); ++j) {
    const T weight = std::exp(scores[j] - largest);
    const std::vector<T> v_vector = load_v(keys[j].local);
    const T factor = static_cast<T>(reprise::RoundTo(product_dtype, weight));
    for (int d = 0; d < layer.head_dim_v; ++d) out[d] += factor * v_vector[d];
    sum += weight;
  }
  for (int d = 0; d < layer.head_dim_v; ++d) out[d] *= head.v_scale / sum;
  return std::log(sum) + largest;
}

// A cache's K, V, or rope parts of K.
struct CachedVectors {
  KvView view;
  DType dtype;
  int dim = 0;
  TokenView new_tokens = {};  // replaces the row's last query_len keys; null data: absent
  Scale scale = {};           // divides new_tokens, because it later multiplies all keys
};

template <typename T>
ReferenceResult<T> NothingSeen(const AttentionParams& layer, int num_tokens) {
  const int64_t num_heads = static_cast<int64_t>(num_tokens) * layer.num_q_heads;
  return {.out = std::vector<T>(num_heads * layer.head_dim_v, 0),
          .lse = std::vector<T>(num_heads, -std::numeric_limits<T>::infinity())};
}

// Returns the query of one head. The dims that multiply the rope parts of keys are scaled by
// rope_scale / k_scale, because all scores are later multiplied by k_scale.
template <typename T>
std::vector<T> LoadQuery(const AttentionParams& layer, const KvLayer& kv, const TokenView& q,
                         int64_t token, int q_head, const BatchRow& row, DType product_dtype) {
  std::vector<T> x = LoadHead<T>(q, token, q_head, layer.head_dim_qk);
  if (kv.rope_dim == 0) return x;
  const int kv_head = q_head / layer.group_size();
  const T ratio = ValueOf<T>(kv.rope_scale, row.table_row, kv_head) /
                  ValueOf<T>(kv.k_scale, row.table_row, kv_head);
  for (int d = layer.head_dim_qk - kv.rope_dim; d < layer.head_dim_qk; ++d) x[d] *= ratio;
  RoundTo(product_dtype, x);
  return x;
}

// Computes attention for all rows and heads. load_k and load_v return the vector for (row, kv_head,
// local key). `kv` gives the scales and the size of the rope part.
template <typename T, typename Batch, typename LoadK, typename LoadV>
ReferenceResult<T> AttendAll(const AttentionParams& layer, const Batch& batch, const TokenView& q,
                             const KvLayer& kv, DType product_dtype, const LoadK& load_k,
                             const LoadV& load_v) {
  ReferenceResult<T> result = NothingSeen<T>(layer, batch.num_tokens);
  for (int r = 0; r < batch.num_rows; ++r) {
    const BatchRow row = RowOf(batch, r);
    if (row.seq_len == 0) continue;
    for (int q_head = 0; q_head < layer.num_q_heads; ++q_head) {
      const int kv_head = q_head / layer.group_size();
      const T score_scale = static_cast<T>(layer.resolved_scale()) *
                            ValueOf<T>(layer.q_scale, row.table_row, kv_head) *
                            (layer.q_head_scales ? layer.q_head_scales[q_head] : T{1}) *
                            ValueOf<T>(kv.k_scale, row.table_row, kv_head);
      for (int i = 0; i < row.query_len; ++i) {
        const int64_t token = row.first_token + i;
        const int64_t at = token * layer.num_q_heads + q_head;
        const QueryHead<T> head = {
            .query = i,
            .q_head = q_head,
            .vector = LoadQuery<T>(layer, kv, q, token, q_head, row, product_dtype),
            .score_scale = score_scale,
            .v_scale = ValueOf<T>(kv.v_scale, row.table_row, kv_head)};
        result.lse[at] = Attend<T>(
            layer, row, head, product_dtype, [&](int key) { return load_k(row, kv_head, key); },
            [&](int key) { return load_v(row, kv_head, key); }, &result.out[at * layer.head_dim_v]);
      }
    }
  }
  return result;
}

}  // namespace

template <typename T>
ReferenceResult<T> ReferencePagedAttention(const AttentionParams& layer, const PagedBatch& batch,
                                           const TokenView& q, const KvLayer& kv,
                                           DType product_dtype, const NewKeys& new_keys) {
  const auto load = [&](const CachedVectors& vectors, const BatchRow& row, int kv_head, int key) {
    const int first_new = row.seq_len - row.query_len;
    if (vectors.new_tokens.data && key >= first_new) {
      std::vector<T> x =
          LoadHead<T>(vectors.new_tokens, row.first_token + key - first_new, kv_head, vectors.dim);
      for (T& value : x) value /= ValueOf<T>(vectors.scale, row.table_row, kv_head);
      return x;
    }
    const int64_t token = row.key_start + key;
    const int64_t block =
        batch.block_table[row.table_row * batch.block_table_stride + token / kv.block_size];
    std::vector<T> x(vectors.dim);
    for (int d = 0; d < vectors.dim; ++d) {
      x[d] = LoadElement<T>(vectors.view.data, vectors.dtype,
                            vectors.view.Offset(block, token % kv.block_size, kv_head, d));
    }
    return x;
  };
  const CachedVectors k = {.view = kv.k,
                           .dtype = kv.dtype,
                           .dim = layer.head_dim_qk - kv.rope_dim,
                           .new_tokens = new_keys.k,
                           .scale = kv.k_scale};
  const CachedVectors rope = {.view = kv.rope, .dtype = kv.rope_dtype, .dim = kv.rope_dim};
  const CachedVectors v = {.view = kv.v,
                           .dtype = kv.dtype,
                           .dim = layer.head_dim_v,
                           .new_tokens = new_keys.v,
                           .scale = kv.v_scale};
  return AttendAll<T>(
      layer, batch, q, kv, product_dtype,
      [&](const BatchRow& row, int kv_head, int key) {
        std::vector<T> x = load(k, row, kv_head, key);
        if (kv.rope_dim == 0) return x;
        const std::vector<T> rope_part = load(rope, row, kv_head, key);
        x.insert(x.end(), rope_part.begin(), rope_part.end());
        return x;
      },
      [&](const BatchRow& row, int kv_head, int key) { return load(v, row, kv_head, key); });
}

template <typename T>
ReferenceResult<T> ReferenceRaggedAttention(const AttentionParams& layer, const RaggedBatch& batch,
                                            const TokenView& q, const TokenView& k,
                                            const TokenView& v, DType product_dtype,
                                            const KeyScales& scales) {
  return AttendAll<T>(
      layer, batch, q, KvLayer{.k_scale = scales.k, .v_scale = scales.v}, product_dtype,
      [&](const BatchRow& row, int kv_head, int key) {
        return LoadHead<T>(k, row.first_key + key, kv_head, layer.head_dim_qk);
      },
      [&](const BatchRow& row, int kv_head, int key) {
        return LoadHead<T>(v, row.first_key + key, kv_head, layer.head_dim_v);
      });
}

template ReferenceResult<float> ReferencePagedAttention<float>(const AttentionParams&,
                                                               const PagedBatch&, const TokenView&,
                                                               const KvLayer&, DType,
                                                               const NewKeys&);
template ReferenceResult<double> ReferencePagedAttention<double>(const AttentionParams&,
                                                                 const PagedBatch&,
                                                                 const TokenView&, const KvLayer&,
                                                                 DType, const NewKeys&);
template ReferenceResult<float> ReferenceRaggedAttention<float>(const AttentionParams&,
                                                                const RaggedBatch&,
                                                                const TokenView&, const TokenView&,
                                                                const TokenView&, DType,
                                                                const KeyScales&);
template ReferenceResult<double> ReferenceRaggedAttention<double>(
    const AttentionParams&, const RaggedBatch&, const TokenView&, const TokenView&,
    const TokenView&, DType, const KeyScales&);

}  // namespace reprise
