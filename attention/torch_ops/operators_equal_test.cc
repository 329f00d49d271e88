// Compares torch.ops.reprise.* with the plain calls: bitwise identical results for any batch, layer
// and cache, and the text of a Status as an exception.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/attention.h"
#include "reprise/attention/testing/batch_generator.h"
#include "reprise/attention/testing/ragged_generator.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/cache/ops/write_kv.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

// The arguments of a call by name. Other arguments of the schema have their defaults.
using Arguments = std::map<std::string, c10::IValue>;

std::vector<c10::IValue> Call(const char* name, const char* overload, Arguments arguments) {
  const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  std::vector<c10::IValue> stack;
  for (const c10::Argument& argument : op.schema().arguments()) {
    const auto given = arguments.find(argument.name());
    if (given == arguments.end()) {
      EXPECT_TRUE(argument.default_value().has_value()) << argument.name();
      stack.push_back(*argument.default_value());
      continue;
    }
    stack.push_back(given->second);
    arguments.erase(given);
  }
  EXPECT_TRUE(arguments.empty()) << "no argument is called " << arguments.begin()->first;
  op.callBoxed(&stack);
  return stack;
}

at::Tensor Tensor(void* data, std::vector<int64_t> sizes, std::vector<int64_t> strides,
                  at::ScalarType type) {
  return at::from_blob(data, sizes, strides, at::TensorOptions().dtype(type));
}

template <typename T>
c10::IValue Array(const std::vector<T>& values, at::ScalarType type) {
  if (values.empty()) return {};
  return at::from_blob(const_cast<T*>(values.data()), {static_cast<int64_t>(values.size())},
                       at::TensorOptions().dtype(type));
}

at::Tensor TensorOf(const TokenView& view, int num_tokens, int num_heads, int head_dim) {
  return Tensor(view.data, {num_tokens, num_heads, head_dim},
                {view.token_stride, view.head_stride, 1}, ToScalarType(view.dtype));
}

// A scale in the form that operators accept: the host reads a number on the CPU.
c10::IValue ScaleTensor(const Scale& scale, int num_tables, int num_heads) {
  if (scale.data == nullptr) return at::full({1}, scale.value);
  auto* const data = const_cast<float*>(scale.data);
  return Tensor(data, {num_tables, num_heads}, {scale.row_stride, scale.head_stride}, at::kFloat);
}

void AddCache(const KvLayer& kv, int num_tables, Arguments& arguments) {
  const at::ScalarType type = ToScalarType(kv.dtype);
  if (kv.k.dim_chunk < kv.key_dim() || kv.v.dim_chunk < kv.head_dim_v) {
    arguments["layout"] = "K-packed";
    arguments["k_cache"] = Tensor(
        kv.k.data,
        {kv.num_blocks, kv.num_kv_heads, kv.head_dim_qk / kv.k.dim_chunk, kv.block_size,
         kv.k.dim_chunk},
        {kv.k.block_stride, kv.k.head_stride, kv.k.dim_chunk_stride, kv.k.token_stride, 1}, type);
    arguments["v_cache"] = Tensor(
        kv.v.data, {kv.num_blocks, kv.num_kv_heads, kv.head_dim_v, kv.block_size},
        {kv.v.block_stride, kv.v.head_stride, kv.v.dim_chunk_stride, kv.v.token_stride}, type);
  } else {
    const auto cache = [&](const KvView& view, int head_dim, DType dtype) {
      return Tensor(view.data, {kv.num_blocks, kv.block_size, kv.num_kv_heads, head_dim},
                    {view.block_stride, view.token_stride, view.head_stride, 1},
                    ToScalarType(dtype));
    };
    arguments["k_cache"] = cache(kv.k, kv.key_dim(), kv.dtype);
    arguments["v_cache"] = cache(kv.v, kv.head_dim_v, kv.dtype);
    if (kv.rope_dim > 0) {
      arguments["rope_cache"] = cache(kv.rope, kv.rope_dim, kv.rope_dtype);
      arguments["rope_cache_scale"] = ScaleTensor(kv.rope_scale, num_tables, kv.num_kv_heads);
    }
  }
  arguments["k_scale"] = ScaleTensor(kv.k_scale, num_tables, kv.num_kv_heads);
  arguments["v_scale"] = ScaleTensor(kv.v_scale, num_tables, kv.num_kv_heads);
}

void AddLayer(const AttentionParams& layer, int num_tables, Arguments& arguments) {
  const auto per_head = [&](const float* values) -> c10::IValue {
    if (values == nullptr) return {};
    return at::from_blob(const_cast<float*>(values), {layer.num_q_heads}, at::kFloat);
  };
  if (layer.scale) arguments["scale"] = double{*layer.scale};
  if (layer.softcap) arguments["softcap"] = double{*layer.softcap};
  if (layer.window_left) arguments["window_left"] = *layer.window_left;
  if (layer.window_right) arguments["window_right"] = *layer.window_right;
  arguments["alibi_slopes"] = layer.alibi_row_stride > 0
                                  ? c10::IValue(Tensor(const_cast<float*>(layer.alibi_slopes),
                                                       {num_tables, layer.num_q_heads},
                                                       {layer.alibi_row_stride, 1}, at::kFloat))
                                  : per_head(layer.alibi_slopes);
  arguments["q_head_scales"] = per_head(layer.q_head_scales);
  arguments["sinks"] = per_head(layer.sinks);
  arguments["q_scale"] = ScaleTensor(layer.q_scale, num_tables, layer.num_kv_heads);
  if (layer.rotary) {
    arguments["rope_theta"] = double{layer.rotary->rope_theta};
    arguments["rope_scale"] = double{layer.rotary->rope_scale};
    arguments["rotary_dim"] = layer.rotary->rotary_dim;
  }
  if (layer.sparse) {
    arguments["block_sparse"] = std::vector<int64_t>{
        layer.sparse->local_blocks, layer.sparse->vertical_stride, layer.sparse->block_size,
        layer.sparse->head_sliding_step, layer.sparse->tp_rank};
  }
}

// Returns the operator's arguments for a fixture.
Arguments ArgumentsOf(const PagedFixture& fixture) {
  const AttentionParams layer = fixture.Layer(OnHost);
  const PagedBatch batch = fixture.Batch(OnHost);
  const NewKeys keys = fixture.New(OnHost);
  Arguments arguments;
  arguments["q"] =
      TensorOf(fixture.Q(OnHost), batch.num_tokens, layer.num_q_heads, layer.head_dim_qk);
  arguments["block_table"] =
      Tensor(const_cast<int32_t*>(batch.block_table), {batch.num_tables, batch.max_blocks},
             {batch.block_table_stride, 1}, at::kInt);
  arguments["query_start_loc"] = Array(fixture.query_start_loc, at::kInt);
  arguments["seq_lens"] =
      fixture.seq_lens.empty() ? at::empty({0}, at::kInt) : Array(fixture.seq_lens, at::kInt);
  arguments["table_row"] = Array(fixture.table_row, at::kInt);
  arguments["key_start"] = Array(fixture.key_start, at::kInt);
  arguments["query_positions"] = Array(fixture.query_positions, at::kInt);
  arguments["tail_len"] = Array(fixture.tail_len, at::kInt);
  arguments["tail_mask"] = Array(fixture.tail_mask, at::kLong);
  arguments["common_prefix_len"] = Array(fixture.common_prefix_len, at::kInt);
  arguments["custom_mask"] = Array(fixture.custom_mask, at::kByte);
  arguments["custom_mask_offset"] = Array(fixture.custom_mask_offset, at::kLong);
  const KeyPositions& positions = batch.key_positions;
  arguments["key_positions"] =
      std::vector<int64_t>{positions.rank, positions.world, positions.interleave};
  arguments["causal"] = batch.causal;
  arguments["max_query_len"] = batch.max_query_len;
  arguments["max_seq_len"] = batch.max_seq_len;
  AddCache(fixture.Kv(OnHost), batch.num_tables, arguments);
  AddLayer(layer, batch.num_tables, arguments);
  if (keys.k.data != nullptr) {
    arguments["new_k"] = TensorOf(keys.k, batch.num_tokens, layer.num_kv_heads, layer.head_dim_qk);
    arguments["new_v"] = TensorOf(keys.v, batch.num_tokens, layer.num_kv_heads, layer.head_dim_v);
  }
  return arguments;
}

at::Tensor Bytes(const at::Tensor& tensor) { return tensor.contiguous().view(at::kByte); }

// Calls PagedAttention() directly, with these outputs.
absl::Status RunDirectly(const PagedFixture& fixture, at::Tensor& out, at::Tensor& lse,
                         AttentionExtras extras) {
  const AttentionParams layer = fixture.Layer(OnHost);
  const PagedBatch batch = fixture.Batch(OnHost);
  const at::Tensor q =
      TensorOf(fixture.Q(OnHost), batch.num_tokens, layer.num_q_heads, layer.head_dim_qk);
  at::Tensor new_k, new_v;
  if (const NewKeys keys = fixture.New(OnHost); keys.k.data != nullptr) {
    new_k = TensorOf(keys.k, batch.num_tokens, layer.num_kv_heads, layer.head_dim_qk);
    new_v = TensorOf(keys.v, batch.num_tokens, layer.num_kv_heads, layer.head_dim_v);
    extras.new_k = &new_k;
    extras.new_v = &new_v;
  }
  return PagedAttention(layer, batch, {}, q, fixture.Kv(OnHost), {out, &lse}, extras);
}

TEST(PagedOperatorTest, AnyCallIsBitwiseIdenticalToPagedAttention) {
  std::map<int, int> counts;  // number of cases per feature
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const PagedFixture fixture =
        MakePagedFixture({.seed = seed, .allowed = FeatureSet::All(), .max_seq_len = 60});
    SCOPED_TRACE(fixture.description);
    for (int f = 0; f < static_cast<int>(Feature::kNumFeatures); ++f) {
      counts[f] += fixture.features.Has(static_cast<Feature>(f));
    }
    const AttentionParams layer = fixture.Layer(OnHost);
    const int num_tokens = fixture.Batch(OnHost).num_tokens;
    const bool quantised = seed % 3 == 0;
    Arguments arguments = ArgumentsOf(fixture);
    const at::ScalarType q_type = arguments["q"].toTensor().scalar_type();
    const at::ScalarType type = quantised ? at::kFloat8_e4m3fn : q_type;
    at::Tensor out = at::empty({num_tokens, layer.num_q_heads, layer.head_dim_v}, type);
    at::Tensor lse = at::full({num_tokens, layer.num_q_heads}, NAN);
    AttentionExtras extras;
    if (quantised) {
      extras.out_scale.value = 0.03125f;
      arguments["out_scale"] = at::full({1}, 0.03125f);
      arguments["out_dtype"] = static_cast<int64_t>(type);
    }
    const absl::Status status = RunDirectly(fixture, out, lse, extras);
    ASSERT_TRUE(status.ok()) << status;
    const std::vector<c10::IValue> made = Call("reprise::paged_attention", "", arguments);
    ASSERT_EQ(made.size(), 2u);
    EXPECT_TRUE(at::equal(Bytes(made[0].toTensor()), Bytes(out)));
    EXPECT_TRUE(at::equal(Bytes(made[1].toTensor()), Bytes(lse)));

    arguments.erase("out_dtype");
    arguments["out"] = at::empty_like(out);
    arguments["lse"] = at::empty_like(lse);
    Call("reprise::paged_attention", "out", arguments);
    EXPECT_TRUE(at::equal(Bytes(arguments["out"].toTensor()), Bytes(out)));
    EXPECT_TRUE(at::equal(Bytes(arguments["lse"].toTensor()), Bytes(lse)));
  }
  for (const auto& [feature, count] : counts) EXPECT_GT(count, 5) << feature;
}

TEST(RaggedOperatorTest, AnyCallIsBitwiseIdenticalToRaggedAttention) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const RaggedFixture fixture = MakeRaggedFixture({.seed = seed});
    SCOPED_TRACE(fixture.description);
    const AttentionParams layer = fixture.layer.View(OnHost);
    const RaggedBatch batch = fixture.Batch(OnHost);
    const at::Tensor q =
        TensorOf(fixture.q.View(OnHost), batch.num_tokens, layer.num_q_heads, layer.head_dim_qk);
    const at::Tensor k =
        TensorOf(fixture.k.View(OnHost), batch.num_keys, layer.num_kv_heads, layer.head_dim_qk);
    const at::Tensor v =
        TensorOf(fixture.v.View(OnHost), batch.num_keys, layer.num_kv_heads, layer.head_dim_v);
    at::Tensor out =
        at::empty({batch.num_tokens, layer.num_q_heads, layer.head_dim_v}, q.options());
    at::Tensor lse = at::full({batch.num_tokens, layer.num_q_heads}, NAN);
    const absl::Status status = RaggedAttention(layer, batch, {}, q, {k, v}, {out, &lse});
    ASSERT_TRUE(status.ok()) << status;

    Arguments arguments = {{"q", q},
                           {"k", k},
                           {"v", v},
                           {"query_start_loc", Array(fixture.query_start_loc, at::kInt)},
                           {"key_start_loc", Array(fixture.key_start_loc, at::kInt)},
                           {"query_positions", Array(fixture.query_positions, at::kInt)},
                           {"custom_mask", Array(fixture.custom_mask, at::kByte)},
                           {"custom_mask_offset", Array(fixture.custom_mask_offset, at::kLong)},
                           {"causal", batch.causal},
                           {"max_query_len", batch.max_query_len},
                           {"max_seq_len", batch.max_seq_len}};
    AddLayer(layer, batch.num_rows, arguments);
    const std::vector<c10::IValue> made = Call("reprise::ragged_attention", "", arguments);
    EXPECT_TRUE(at::equal(Bytes(made[0].toTensor()), Bytes(out)));
    EXPECT_TRUE(at::equal(Bytes(made[1].toTensor()), Bytes(lse)));
  }
}

// Returns the text of the exception that a call throws.
std::string TextOf(const char* overload, const Arguments& arguments,
                   const char* name = "reprise::paged_attention") {
  try {
    Call(name, overload, arguments);
  } catch (const c10::Error& error) {
    return error.msg();
  }
  return "nothing was thrown";
}

TEST(PagedOperatorTest, StatusBecomesAnExceptionWithTheSameText) {
  const PagedFixture fixture = MakePagedFixture({.seed = 5,
                                                 .allowed = {},
                                                 .q_dtype = DType::kFloat32,
                                                 .kv_dtype = DType::kFloat32,
                                                 .layout = KvMemoryLayout::kNhd,
                                                 .num_kv_heads = 2,
                                                 .group_size = 2,
                                                 .head_dim_qk = 16});
  const AttentionParams layer = fixture.Layer(OnHost);
  const PagedBatch batch = fixture.Batch(OnHost);
  const KvLayer kv = fixture.Kv(OnHost);
  const at::Tensor q = TensorOf(fixture.Q(OnHost), batch.num_tokens, 4, 16);
  at::Tensor out = at::empty({batch.num_tokens, 4, 16});
  const auto direct = [&](const AttentionParams& params, const PagedBatch& rows,
                          const at::Tensor& queries, at::Tensor result,
                          const AttentionExtras& extras = {}) {
    return std::string(PagedAttention(params, rows, {}, queries, kv, {result}, extras).message());
  };
  Arguments good = ArgumentsOf(fixture);
  good["out"] = out;
  ASSERT_EQ(direct(layer, batch, q, out), "");

  Arguments call = good;
  call["q"] = q.slice(1, 0, 3);
  AttentionParams other = layer;
  other.num_q_heads = 3;
  EXPECT_EQ(TextOf("out", call), direct(other, batch, q.slice(1, 0, 3), out));

  call = good;
  call["softcap"] = -1.0;
  other = layer;
  other.softcap = -1.0f;
  EXPECT_EQ(TextOf("out", call), direct(other, batch, q, out));

  call = good;
  call["out"] = out.slice(0, 0, batch.num_tokens - 1);
  EXPECT_EQ(TextOf("out", call), direct(layer, batch, q, out.slice(0, 0, batch.num_tokens - 1)));

  call = good;
  const at::Tensor wide = at::empty({batch.num_tokens, 4, 32});
  call["out"] = wide.slice(2, 0, 32, 2);
  EXPECT_EQ(TextOf("out", call), direct(layer, batch, q, wide.slice(2, 0, 32, 2)));

  call = good;
  call["out"] = out.to(at::kDouble);
  EXPECT_EQ(TextOf("out", call), direct(layer, batch, q, out.to(at::kDouble)));

  call = good;
  call["out"] = at::empty(out.sizes(), at::TensorOptions(at::kMeta));
  EXPECT_EQ(TextOf("out", call), "q has the wrong device: expected meta, got cpu");

  call = good;
  call["q"] = at::empty({batch.num_tokens, 4, 32}).slice(2, 0, 32, 2);
  EXPECT_EQ(TextOf("out", call), direct(layer, batch, call["q"].toTensor(), out));

  call = good;
  call["new_k"] = q;
  const at::Tensor new_k = q;
  EXPECT_EQ(TextOf("out", call), direct(layer, batch, q, out, {.new_k = &new_k}));

  call = good;
  call["max_seq_len"] = 1;
  PagedBatch rows = batch;
  rows.max_seq_len = 1;
  EXPECT_EQ(TextOf("out", call), direct(layer, rows, q, out));
  EXPECT_THAT(TextOf("out", call), HasSubstr("max_seq_len"));
}

TEST(WriteKvOperatorTest, StatusBecomesAnExceptionWithTheSameText) {
  const at::Tensor cache = at::full({3, 4, 2, 16}, 0.0f);
  const KvView view = {.data = cache.data_ptr(),
                       .block_stride = cache.stride(0),
                       .token_stride = cache.stride(1),
                       .head_stride = cache.stride(2),
                       .dim_chunk = 16};
  const KvLayer layer = {.k = view,
                         .v = view,
                         .num_blocks = 3,
                         .block_size = 4,
                         .num_kv_heads = 2,
                         .head_dim_qk = 16,
                         .head_dim_v = 16};
  const at::Tensor k = at::full({5, 2, 16}, 1.0f);
  const at::Tensor slots = at::full({5}, 3, at::kLong);
  struct Fault {
    at::Tensor k, v, slots;
  };
  const std::vector<Fault> faults = {
      {k.slice(0, 0, 4), k, slots},         {k, k.slice(1, 0, 1), slots},
      {k, k.slice(2, 0, 8), slots},         {k.to(at::kDouble), k, slots},
      {k, k.to(at::kHalf), slots},          {k, k, slots.to(at::kInt)},
      {k, k, at::full({5}, 12, at::kLong)},  // outside the cache
      {k, k, at::full({5}, -2, at::kLong)}, {k, k, slots.view({5, 1, 1})},
  };
  for (const Fault& fault : faults) {
    const std::string expected(WriteKv(layer, fault.k, fault.v, fault.slots).message());
    EXPECT_NE(expected, "");
    EXPECT_EQ(TextOf("",
                     {{"k", fault.k},
                      {"v", fault.v},
                      {"k_cache", cache},
                      {"v_cache", cache},
                      {"slot_mapping", fault.slots}},
                     "reprise::write_kv"),
              expected);
  }
}

}  // namespace
}  // namespace reprise
