#include "reprise/attention/testing/builder_cases.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <sstream>
#include <vector>

#include "reprise/attention/metadata/batch_tables.h"
#include "reprise/attention/metadata/cross_batch.h"
#include "reprise/attention/metadata/local_virtual_batch.h"
#include "reprise/attention/metadata/ragged_gather.h"
#include "reprise/attention/testing/schedule_generator.h"
#include "reprise/attention/testing/visible_set.h"
#include "reprise/base/element_access.h"
#include "reprise/cache/group_retention.h"
#include "reprise/cache/tables/convert_tables.h"

namespace reprise {
namespace {

LayerFixture DrawBuilderLayer(Random& random) {
  LayerFixture layer;
  AttentionParams& params = layer.params;
  params.num_kv_heads = random.Int(1, 2);
  params.num_q_heads = params.num_kv_heads * random.Pick({1, 2, 3});
  params.head_dim_qk = params.head_dim_v = random.Pick({16, 64});
  if (random.OneIn(4)) params.softcap = 20.0f;
  if (random.OneIn(4)) {
    for (int head = 0; head < params.num_q_heads; ++head) {
      layer.alibi_slopes.push_back(std::exp2(-8.0f * (head + 1) / params.num_q_heads));
    }
  }
  return layer;
}

// Computes softmax(scale * q k) v over the pairs, with the layer's softcap and slopes, in float64,
// from the values k_of(slot, head, dim) and v_of(slot, head, dim).
template <typename KOf, typename VOf>
ReferenceResult<double> Dense(const LayerFixture& layer, const TokenView& q, int num_tokens,
                              const VisiblePairs& pairs, KOf k_of, VOf v_of) {
  const AttentionParams& params = layer.params;
  const int heads = params.num_q_heads;
  const int dims = params.head_dim_v;
  ReferenceResult<double> result;
  result.out.assign(static_cast<size_t>(num_tokens) * heads * dims, 0);
  result.lse.assign(static_cast<size_t>(num_tokens) * heads,
                    -std::numeric_limits<double>::infinity());
  for (size_t begin = 0; begin < pairs.size();) {
    const int token = pairs[begin].token;
    size_t end = begin;
    while (end < pairs.size() && pairs[end].token == token) ++end;
    for (int head = 0; head < heads; ++head) {
      const int kv_head = head / params.group_size();
      std::vector<double> logits;
      for (size_t i = begin; i < end; ++i) {
        double dot = 0;
        for (int dim = 0; dim < params.head_dim_qk; ++dim) {
          const int64_t at = token * q.token_stride + head * q.head_stride + dim;
          dot += LoadElement<double>(q.data, q.dtype, at) * k_of(pairs[i].slot, kv_head, dim);
        }
        double logit = params.resolved_scale() * dot;
        if (params.softcap) logit = *params.softcap * std::tanh(logit / *params.softcap);
        if (!layer.alibi_slopes.empty()) {
          const int64_t distance = std::abs(pairs[i].key_position - pairs[i].query_position);
          logit -= double{layer.alibi_slopes[head]} * static_cast<double>(distance);
        }
        logits.push_back(logit);
      }
      const double largest = *std::max_element(logits.begin(), logits.end());
      double sum = 0;
      for (double logit : logits) sum += std::exp(logit - largest);
      result.lse[token * heads + head] = largest + std::log(sum);
      for (int dim = 0; dim < dims; ++dim) {
        double value = 0;
        for (size_t i = begin; i < end; ++i) {
          value += std::exp(logits[i - begin] - largest) / sum * v_of(pairs[i].slot, kv_head, dim);
        }
        result.out[(static_cast<size_t>(token) * heads + head) * dims + dim] = value;
      }
    }
    begin = end;
  }
  return result;
}

TokenArray DrawTokens(DType dtype, int num_tokens, int num_heads, int head_dim, Random& random) {
  TokenArray tokens = MakeTokenArray(dtype, num_tokens, num_heads, head_dim, {}, random);
  for (int token = 0; token < num_tokens; ++token) {
    for (int head = 0; head < num_heads; ++head) {
      FillToken(tokens, token, head, head_dim, 1.0, random);
    }
  }
  return tokens;
}

// Copies the arrays of a batch, and fills the cache slots that some query sees.
class CaseMaker {
 public:
  CaseMaker(BuilderKind kind, DType dtype, Random& random)
      : kind_(kind), dtype_(dtype), random_(random), layer_(DrawBuilderLayer(random)) {}

  LayerFixture& layer() { return layer_; }

  BuilderCase Paged(const PagedBatch& batch, const Schedule& keys, const VisiblePairs& pairs) {
    BuilderCase made;
    PagedFixture& fixture = made.paged.emplace();
    fixture.layer = layer_;
    fixture.capacities = batch;
    for (const int32_t** array : {&fixture.capacities.query_start_loc, &fixture.capacities.seq_lens,
                                  &fixture.capacities.table_row, &fixture.capacities.key_start,
                                  &fixture.capacities.block_table}) {
      *array = nullptr;
    }
    const auto copy = [](std::vector<int32_t>& to, const int32_t* from, int64_t count) {
      if (from) to.assign(from, from + count);
    };
    copy(fixture.query_start_loc, batch.query_start_loc, batch.num_rows + 1);
    copy(fixture.seq_lens, batch.seq_lens, batch.num_rows);
    copy(fixture.table_row, batch.table_row, batch.num_rows);
    copy(fixture.key_start, batch.key_start, batch.num_rows);
    copy(fixture.block_table, batch.block_table, batch.num_tables * batch.block_table_stride);
    // Rows without a table still need an address.
    if (fixture.block_table.empty()) fixture.block_table.push_back(-1);
    if (batch.num_tables == 0) fixture.capacities.num_tables = 1;
    const AttentionParams& params = layer_.params;
    fixture.kv.emplace(
        KvMemoryOptions{.layout = random_.Pick({KvMemoryLayout::kNhd, KvMemoryLayout::kHnd}),
                        .dtype = dtype_,
                        .num_blocks = keys.num_blocks,
                        .block_size = keys.block_size,
                        .num_kv_heads = params.num_kv_heads,
                        .head_dim_qk = params.head_dim_qk,
                        .head_dim_v = params.head_dim_v});
    std::set<int64_t> slots;
    for (const VisiblePair& pair : pairs) slots.insert(pair.slot);
    for (const int64_t slot : slots) {
      const auto block = static_cast<int>(slot / keys.block_size);
      const auto offset = static_cast<int>(slot % keys.block_size);
      for (int head = 0; head < params.num_kv_heads; ++head) {
        for (int dim = 0; dim < params.head_dim_qk; ++dim) {
          fixture.kv->SetK(block, offset, head, dim, random_.NearNormal());
          fixture.kv->SetV(block, offset, head, dim, random_.NearNormal());
        }
      }
    }
    fixture.q =
        DrawTokens(dtype_, batch.num_tokens, params.num_q_heads, params.head_dim_qk, random_);
    const KvLayer kv = fixture.Kv(OnHost);
    const auto value = [&](const KvView& view, int64_t slot, int head, int dim) {
      return LoadElement<double>(
          view.data, kv.dtype,
          view.Offset(slot / keys.block_size, slot % keys.block_size, head, dim));
    };
    made.dense = Dense(
        layer_, fixture.Q(OnHost), batch.num_tokens, pairs,
        [&](int64_t slot, int head, int dim) { return value(kv.k, slot, head, dim); },
        [&](int64_t slot, int head, int dim) { return value(kv.v, slot, head, dim); });
    Describe(keys.Description(), made);
    return made;
  }

  BuilderCase Ragged(const RaggedBatch& batch, const VisiblePairs& pairs) {
    BuilderCase made;
    RaggedFixture& fixture = made.ragged.emplace();
    fixture.layer = layer_;
    fixture.capacities = batch;
    fixture.capacities.query_start_loc = fixture.capacities.key_start_loc = nullptr;
    fixture.query_start_loc.assign(batch.query_start_loc,
                                   batch.query_start_loc + batch.num_rows + 1);
    fixture.key_start_loc.assign(batch.key_start_loc, batch.key_start_loc + batch.num_rows + 1);
    const AttentionParams& params = layer_.params;
    fixture.q =
        DrawTokens(dtype_, batch.num_tokens, params.num_q_heads, params.head_dim_qk, random_);
    fixture.k =
        DrawTokens(dtype_, batch.num_keys, params.num_kv_heads, params.head_dim_qk, random_);
    fixture.v = DrawTokens(dtype_, batch.num_keys, params.num_kv_heads, params.head_dim_v, random_);
    const auto value = [](const TokenView& view, int64_t row, int head, int dim) {
      return LoadElement<double>(view.data, view.dtype,
                                 row * view.token_stride + head * view.head_stride + dim);
    };
    const TokenView k = fixture.k.View(OnHost);
    const TokenView v = fixture.v.View(OnHost);
    made.dense = Dense(
        layer_, fixture.q.View(OnHost), batch.num_tokens, pairs,
        [&](int64_t row, int head, int dim) { return value(k, row, head, dim); },
        [&](int64_t row, int head, int dim) { return value(v, row, head, dim); });
    Describe("contiguous keys", made);
    return made;
  }

 private:
  void Describe(const std::string& keys, BuilderCase& made) const {
    std::ostringstream text;
    text << kind_ << ", " << dtype_ << ", heads " << layer_.params.num_q_heads << "/"
         << layer_.params.num_kv_heads << ", window " << layer_.params.window_left.value_or(-1)
         << "/" << layer_.params.window_right.value_or(-1) << ", " << keys;
    made.description = text.str();
    if (made.paged) made.paged->description = made.description;
    if (made.ragged) made.ragged->description = made.description;
  }

  BuilderKind kind_;
  DType dtype_;
  Random& random_;
  LayerFixture layer_;
};

PaddedSize Padded(const Schedule& schedule, Random& random) {
  return {.num_rows = schedule.num_rows() + random.Int(0, 2),
          .num_tokens = schedule.num_tokens() + random.Int(0, 3)};
}

BuilderCase RowsCase(CaseMaker& maker, BuilderKind kind, Random& random) {
  const bool windowed = kind == BuilderKind::kWindow;
  Schedule schedule =
      DrawSchedule({.max_rows = 5, .max_seq_len = 120, .max_query_len = 12}, random);
  const bool causal = !windowed || random.OneIn(2);
  AttentionParams& params = maker.layer().params;
  if (windowed) {
    params.window_left = random.Int(0, 40);
    if (!causal) params.window_right = random.Int(0, 40);
  }
  const VisiblePairs pairs = SetByDefinition(schedule, [&](int64_t p, int64_t key) {
    if (params.window_left && key < p - *params.window_left) return false;
    return causal ? key <= p : key <= p + *params.window_right;
  });
  for (const BatchSequence& sequence : schedule.sequences) {
    if (!windowed || sequence.query_len == 0) continue;
    const KvGroupSpec group = {.retention = KvRetention::kSlidingWindow,
                               .span = *params.window_left + 1};
    std::fill_n(&schedule.entries[sequence.table_row * schedule.row_stride],
                FirstNeededBlock(group, sequence.num_computed, schedule.block_size), 0);
  }
  const ScheduledBatchMemory memory(schedule, Padded(schedule, random));
  PagedBatch batch = memory.built.batch;
  batch.causal = causal;
  return maker.Paged(batch, schedule, pairs);
}

BuilderCase ChunkedCase(CaseMaker& maker, BuilderKind kind, Random& random) {
  const bool classic = kind == BuilderKind::kLocalTable;
  const Schedule schedule = DrawSchedule(
      {.max_rows = 5, .max_seq_len = 120, .max_query_len = 12, .max_block_size = 16}, random);
  const int chunk = classic ? schedule.block_size * random.Int(1, 4) : random.Int(1, 40);
  const ScheduledBatchMemory memory(schedule, Padded(schedule, random));
  const int max_rows =
      MaxLocalRows(memory.built.batch.num_rows, memory.built.batch.num_tokens, chunk);
  std::vector<int32_t> loc(max_rows + 1), lens(max_rows + 1), row(max_rows + 1),
      start(max_rows + 1);
  const absl::StatusOr<PagedBatch> local =
      BuildLocalVirtualBatch({.batch = memory.built.batch,
                              .chunk_size = chunk,
                              .buffers = {.query_start_loc = loc.data(),
                                          .seq_lens = lens.data(),
                                          .table_row = row.data(),
                                          .key_start = start.data(),
                                          .max_rows = max_rows}});
  CHECK(local.ok()) << local.status();
  const VisiblePairs pairs = SetByDefinition(
      schedule, [&](int64_t p, int64_t key) { return key <= p && key / chunk == p / chunk; });
  if (!classic) return maker.Paged(*local, schedule, pairs);
  std::vector<int32_t> entries(static_cast<size_t>(max_rows) * chunk + 1), own_lens(max_rows + 1);
  const int width = chunk / schedule.block_size;
  ConvertTablesArgs conversion = ConversionOf(*local, schedule.block_size);
  conversion.out = {.table = {.entries = entries.data(),
                              .row_stride = width,
                              .num_tables = max_rows,
                              .max_blocks = width,
                              .block_size = schedule.block_size},
                    .seq_lens = own_lens.data()};
  const absl::Status converted = ConvertTables(conversion);
  CHECK(converted.ok()) << converted;
  return maker.Paged(ConvertedBatch(*local, conversion.out), schedule, pairs);
}

// The encoder's keys are the first part of each sequence. The decoder's keys follow in the same
// table.
BuilderCase EncoderKeysCase(CaseMaker& maker, BuilderKind kind, Random& random) {
  const bool cross = kind == BuilderKind::kCross;
  const Schedule schedule =
      DrawSchedule({.max_rows = 5, .max_seq_len = 120, .max_query_len = 12}, random);
  std::vector<BatchSequence> sequences = schedule.sequences;
  std::vector<int32_t> encoder_lens(schedule.num_tables + 1);
  for (BatchSequence& sequence : sequences) {
    sequence.key_start = random.Int(0, sequence.num_computed);
    sequence.num_computed -= sequence.key_start;
    encoder_lens[sequence.table_row] = sequence.key_start;
  }
  const PaddedSize padded = Padded(schedule, random);
  absl::StatusOr<BatchBuilder> builder = BatchBuilder::Create({.max_rows = padded.num_rows,
                                                               .max_tokens = padded.num_tokens,
                                                               .key_starts = KeyStarts::kGiven});
  CHECK(builder.ok()) << builder.status();
  const absl::StatusOr<BuiltBatch> decoder =
      builder->Build({.sequences = sequences, .table = schedule.table(), .padded = padded});
  CHECK(decoder.ok()) << decoder.status();
  VisiblePairs pairs;
  int token = 0;
  for (const BatchSequence& sequence : sequences) {
    const int start = sequence.key_start;
    for (int i = 0; i < sequence.query_len; ++i, ++token) {
      const int place = start + sequence.num_computed + i;
      const int position = cross ? start - sequence.query_len + i : place;
      for (int key = cross ? 0 : start; key < (cross ? start : place + 1); ++key) {
        pairs.push_back({token, position, key, schedule.SlotOf(sequence, key)});
      }
    }
  }
  if (!cross) return maker.Paged(decoder->batch, schedule, pairs);
  std::vector<int32_t> seq_lens(padded.num_rows + 1);
  const absl::StatusOr<PagedBatch> batch =
      BuildCrossBatch({.rows = decoder->batch,
                       .encoder_lens = encoder_lens.data(),
                       .table = schedule.table(),
                       .max_encoder_len = schedule.max_blocks * schedule.block_size,
                       .seq_lens = seq_lens.data()});
  CHECK(batch.ok()) << batch.status();
  return maker.Paged(*batch, schedule, pairs);
}

BuilderCase RaggedCase(CaseMaker& maker, RaggedKind kind, Random& random) {
  std::vector<int32_t> lens(random.Int(0, 4));
  int longest = 0;
  for (int32_t& length : lens) longest = std::max(longest, length = random.Int(0, 50));
  AttentionParams& params = maker.layer().params;
  if (random.OneIn(3)) params.window_left = random.Int(0, 20);
  if (random.OneIn(3)) params.window_right = random.Int(0, 20);
  const int num_tokens = std::accumulate(lens.begin(), lens.end(), random.Int(0, 3));
  const int num_rows = static_cast<int>(lens.size()) + random.Int(0, 2);
  lens.resize(num_rows);
  std::vector<int32_t> loc(num_rows + 1), keys(num_rows + 1), positions(num_tokens);
  const absl::StatusOr<RaggedBatch> batch = BuildRaggedGather({.lens = lens.data(),
                                                               .kind = kind,
                                                               .num_rows = num_rows,
                                                               .num_tokens = num_tokens,
                                                               .max_len = longest,
                                                               .query_start_loc = loc.data(),
                                                               .key_start_loc = keys.data(),
                                                               .positions = positions.data()});
  CHECK(batch.ok()) << batch.status();
  VisiblePairs pairs;
  int first = 0;
  for (const int32_t length : lens) {
    for (int p = 0; p < length && kind != RaggedKind::kProfileZeros; ++p) {
      for (int key = 0; key < length; ++key) {
        if (kind == RaggedKind::kProfile && key > p) continue;
        if (params.window_left && key < p - *params.window_left) continue;
        if (params.window_right && key > p + *params.window_right) continue;
        pairs.push_back({first + p, p, key, first + key});
      }
    }
    first += length;
  }
  return maker.Ragged(*batch, pairs);
}

}  // namespace

std::ostream& operator<<(std::ostream& out, BuilderKind kind) {
  constexpr const char* kNames[] = {"rows",        "window",  "chunked",
                                    "local table", "cross",   "shared table",
                                    "encoder",     "profile", "profile of zeros"};
  return out << kNames[static_cast<int>(kind)];
}

BuilderCase DrawBuilderCase(BuilderKind kind, DType dtype, Random& random) {
  CaseMaker maker(kind, dtype, random);
  switch (kind) {
    case BuilderKind::kRows:
    case BuilderKind::kWindow:
      return RowsCase(maker, kind, random);
    case BuilderKind::kChunked:
    case BuilderKind::kLocalTable:
      return ChunkedCase(maker, kind, random);
    case BuilderKind::kCross:
    case BuilderKind::kSharedTable:
      return EncoderKeysCase(maker, kind, random);
    case BuilderKind::kEncoder:
      return RaggedCase(maker, RaggedKind::kEncoder, random);
    case BuilderKind::kProfile:
      return RaggedCase(maker, RaggedKind::kProfile, random);
    case BuilderKind::kProfileZeros:
      return RaggedCase(maker, RaggedKind::kProfileZeros, random);
  }
  LOG(FATAL) << "no such kind: " << static_cast<int>(kind);
}

}  // namespace reprise
