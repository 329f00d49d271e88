#include "reprise/attention/cpu/tile_worker.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "absl/types/span.h"
#include "reprise/attention/cpu/output_store.h"
#include "reprise/attention/visibility.h"

namespace reprise {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

float ValueOf(const Scale& scale, int64_t table_row, int64_t kv_head) {
  return scale.data ? scale.data[table_row * scale.row_stride + kv_head * scale.head_stride]
                    : scale.value;
}

// Returns exp(from - to). `from` may be -infinity; if so, `to` may be too.
float Rescale(float from, float to) { return from == kMinusInf ? 0.0f : std::exp(from - to); }

void Grow(std::vector<float>& buffer, int64_t num_floats) {
  if (static_cast<int64_t>(buffer.size()) < num_floats) buffer.resize(num_floats);
}

void Clear(const TilePartial& partial, int num_rows, int padded_dim_v) {
  std::fill_n(partial.out, static_cast<int64_t>(num_rows) * padded_dim_v, 0.0f);
  std::fill_n(partial.largest, num_rows, kMinusInf);
  std::fill_n(partial.sum, num_rows, 0.0f);
}

// Combines `from` into `into`.
void Merge(const TilePartial& into, const TilePartial& from, int num_rows, int padded_dim_v) {
  for (int i = 0; i < num_rows; ++i) {
    if (from.largest[i] == kMinusInf) continue;
    const float largest = std::max(into.largest[i], from.largest[i]);
    const float keep = Rescale(into.largest[i], largest);
    const float add = Rescale(from.largest[i], largest);
    float* out = into.out + static_cast<int64_t>(i) * padded_dim_v;
    const float* more = from.out + static_cast<int64_t>(i) * padded_dim_v;
    for (int d = 0; d < padded_dim_v; ++d) out[d] = out[d] * keep + more[d] * add;
    into.sum[i] = into.sum[i] * keep + from.sum[i] * add;
    into.largest[i] = largest;
  }
}

// Applies the sinks, divides by the sum, and writes to the caller's tensors.
void Write(const HostCall& call, const HostTile& tile, const TilePartial& partial) {
  const AttentionParams& layer = call.layer;
  const HostOutput& output = call.output;
  const int padded_dim_v = call.PaddedDim(layer.head_dim_v);
  for (int i = 0; i < tile.num_rows(); ++i) {
    const int64_t token = tile.row.first_token + tile.query_begin + i / tile.num_heads();
    const int64_t head = tile.head_begin + i % tile.num_heads();
    float largest = partial.largest[i];
    float sum = partial.sum[i];
    float factor = 0.0f;
    float lse = kMinusInf;
    if (largest != kMinusInf) {
      float keep = 1.0f;
      if (layer.sinks) {
        const float sink = layer.sinks[head];
        const float with_sink = std::max(largest, sink);
        keep = Rescale(largest, with_sink);
        sum = sum * keep + std::exp(sink - with_sink);
        largest = with_sink;
      }
      factor = keep * ValueOf(call.kv.v_scale, tile.row.table_row, tile.kv_head) / sum;
      lse = std::log(sum) + largest;
    }
    StoreOutput(call, token, head, partial.out + static_cast<int64_t>(i) * padded_dim_v, factor);
    if (output.lse) {
      output.lse[token * output.lse_token_stride + head * output.lse_head_stride] = lse;
    }
  }
}

}  // namespace

SegmentRange SegmentsOf(const HostCall& call, const HostTile& tile) {
  KeyRange range = {.begin = tile.row.seq_len, .end = 0};
  for (int query = tile.query_begin; query < tile.query_end; ++query) {
    const KeyRange interval = KeyInterval(call.layer, tile.row, query);
    if (interval.empty()) continue;
    range.begin = std::min(range.begin, interval.begin);
    range.end = std::max(range.end, interval.end);
  }
  if (range.begin >= range.end) return {};
  return {.begin = range.begin / kSegmentLen, .end = (range.end - 1) / kSegmentLen + 1};
}

TileWorker& TileWorker::OfThisThread() {
  // On the heap: every thread of a process allocates thread-local storage, and the worker is large.
  static thread_local const auto worker = std::make_unique<TileWorker>();
  return *worker;
}

void TileWorker::Attend(const HostCall& call, const HostTile& tile) {
  const int num_rows = tile.num_rows();
  const int padded_dim_v = call.PaddedDim(call.layer.head_dim_v);
  Grow(total_, TilePartial::NumFloats(num_rows, padded_dim_v));
  Grow(segment_, TilePartial::NumFloats(num_rows, padded_dim_v));
  const TilePartial total = TilePartial::At(total_.data(), num_rows, padded_dim_v);
  const TilePartial partial = TilePartial::At(segment_.data(), num_rows, padded_dim_v);
  Clear(total, num_rows, padded_dim_v);
  LoadQueries(call, tile);
  const SegmentRange segments = SegmentsOf(call, tile);
  for (int segment = segments.begin; segment < segments.end; ++segment) {
    AttendLoaded(call, tile, segment, partial);
    Merge(total, partial, num_rows, padded_dim_v);
  }
  Write(call, tile, total);
}

void TileWorker::AttendSegment(const HostCall& call, const HostTile& tile, int segment,
                               const TilePartial& partial) {
  LoadQueries(call, tile);
  AttendLoaded(call, tile, segment, partial);
}

void TileWorker::Finish(const HostCall& call, const HostTile& tile, float* storage,
                        int num_segments) {
  const int num_rows = tile.num_rows();
  const int padded_dim_v = call.PaddedDim(call.layer.head_dim_v);
  const int64_t num_floats = TilePartial::NumFloats(num_rows, padded_dim_v);
  Grow(total_, num_floats);
  const TilePartial total = TilePartial::At(total_.data(), num_rows, padded_dim_v);
  Clear(total, num_rows, padded_dim_v);
  for (int s = 0; s < num_segments; ++s) {
    Merge(total, TilePartial::At(storage + s * num_floats, num_rows, padded_dim_v), num_rows,
          padded_dim_v);
  }
  Write(call, tile, total);
}

void TileWorker::LoadQueries(const HostCall& call, const HostTile& tile) {
  const int dim = call.layer.head_dim_qk;
  const int padded = call.PaddedDim(dim);
  Grow(q_, static_cast<int64_t>(tile.num_rows()) * padded);
  if (call.layer.rotary) rotary_.Prepare(*call.layer.rotary, dim);
  for (int i = 0; i < tile.num_rows(); ++i) {
    const int query = tile.query_begin + i / tile.num_heads();
    const int64_t at =
        call.q.Offset(tile.row.first_token + query, tile.head_begin + i % tile.num_heads());
    const void* source = static_cast<const char*>(call.q.data) + at * SizeOf(call.q.dtype);
    float* q = &q_[static_cast<int64_t>(i) * padded];
    call.kernels->load(&source, 1, call.q.dtype, dim, q, padded);
    std::fill(q + dim, q + padded, 0.0f);
    if (call.layer.rotary) rotary_.Apply(QueryPosition(tile.row, query), q);
  }
  for (int query = tile.query_begin; query < tile.query_end; ++query) {
    intervals_[query - tile.query_begin] = KeyInterval(call.layer, tile.row, query);
  }
}

void TileWorker::AttendLoaded(const HostCall& call, const HostTile& tile, int segment,
                              const TilePartial& partial) {
  Clear(partial, tile.num_rows(), call.PaddedDim(call.layer.head_dim_v));
  const absl::Span<const KeyRange> intervals =
      absl::MakeConstSpan(intervals_.data(), tile.num_queries());
  int first = tile.row.seq_len;
  int last = 0;
  for (const KeyRange& interval : intervals) {
    if (interval.empty()) continue;
    first = std::min(first, interval.begin);
    last = std::max(last, interval.end);
  }
  const int segment_begin = segment * kSegmentLen;
  for (int begin = segment_begin; begin < segment_begin + kSegmentLen; begin += kKeyBlockLen) {
    const KeyRange range = {.begin = std::max(begin, first),
                            .end = std::min(begin + kKeyBlockLen, last)};
    if (range.begin >= range.end) continue;
    keys_.Select(call, tile, intervals, range);
    if (keys_.num_keys() == 0) continue;
    keys_.Load(call, tile, rotary_);
    AttendBlock(call, tile, partial);
  }
}

void TileWorker::AttendBlock(const HostCall& call, const HostTile& tile,
                             const TilePartial& partial) {
  const VectorKernels& kernels = *call.kernels;
  const int num_rows = tile.num_rows();
  const int num_keys = keys_.num_keys();
  constexpr int kGroup = VectorKernels::kKeyGroup;
  kernels.dots(q_.data(), num_rows, keys_.keys(), (num_keys + kGroup - 1) / kGroup * kGroup,
               call.PaddedDim(call.layer.head_dim_qk), scores_.data(), kKeyBlockLen);
  TransformScores(call, tile, num_keys);
  for (int i = 0; i < num_rows; ++i) {
    float* scores = &scores_[i * kKeyBlockLen];
    const float largest = std::max(partial.largest[i], kernels.max(scores, num_keys));
    if (largest == kMinusInf) {  // no visible key so far: all weights are 0
      rescale_[i] = 0.0f;
      std::fill_n(scores, num_keys, 0.0f);
      continue;
    }
    rescale_[i] = Rescale(partial.largest[i], largest);
    partial.sum[i] = partial.sum[i] * rescale_[i] + kernels.exp_sum(scores, num_keys, largest);
    partial.largest[i] = largest;
  }
  kernels.accumulate({.weights = scores_.data(),
                      .weight_stride = kKeyBlockLen,
                      .values = keys_.values(),
                      .num_values = num_keys,
                      .dim = call.PaddedDim(call.layer.head_dim_v)},
                     num_rows, rescale_.data(), partial.out);
}

void TileWorker::TransformScores(const HostCall& call, const HostTile& tile, int num_keys) {
  const AttentionParams& layer = call.layer;
  const float scale = layer.resolved_scale() *
                      ValueOf(layer.q_scale, tile.row.table_row, tile.kv_head) *
                      ValueOf(call.kv.k_scale, tile.row.table_row, tile.kv_head);
  for (int i = 0; i < tile.num_rows(); ++i) {
    float* scores = &scores_[i * kKeyBlockLen];
    const int q_head = tile.head_begin + i % tile.num_heads();
    const float head_scale = layer.q_head_scales ? layer.q_head_scales[q_head] : 1.0f;
    call.kernels->scale(scores, num_keys, scale * head_scale);
    if (layer.has_softcap()) call.kernels->soft_cap(scores, num_keys, *layer.softcap);
    if (layer.alibi_slopes) {
      const float slope = layer.alibi_slopes[tile.row.table_row * layer.alibi_row_stride + q_head];
      const float* distances = keys_.distances(i / tile.num_heads());
      for (int j = 0; j < num_keys; ++j) scores[j] -= slope * distances[j];
    }
    if (!keys_.all_seen()) {
      const uint8_t* seen = keys_.seen(i);
      for (int j = 0; j < num_keys; ++j) scores[j] = seen[j] ? scores[j] : kMinusInf;
    }
  }
}

}  // namespace reprise
