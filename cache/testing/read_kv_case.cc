#include "reprise/cache/testing/read_kv_case.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <sstream>
#include <vector>

#include "reprise/base/torch_dtype.h"
#include "reprise/cache/ops/read_kv.h"
#include "reprise/cache/storage/kv_cache.h"
#include "reprise/cache/storage/kv_layout.h"

namespace reprise {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

int Below(std::mt19937& random, int n) { return static_cast<int>(random() % n); }

template <typename T>
T Pick(std::mt19937& random, std::initializer_list<T> choices) {
  return choices.begin()[Below(random, static_cast<int>(choices.size()))];
}

KvLayoutOptions RandomLayout(std::mt19937& random) {
  KvLayoutOptions o = {.num_layers = 2,
                       .num_blocks = 2 + Below(random, 20),
                       .block_size = Pick(random, {1, 2, 3, 5, 8, 16}),
                       .num_kv_heads = 1 + Below(random, 4),
                       .head_dim_qk = Pick(random, {8, 16, 64, 80, 128, 1 + Below(random, 70)}),
                       .head_dim_v = Pick(random, {8, 16, 64, 80, 128, 1 + Below(random, 70)}),
                       .dtype = Pick(random, {DType::kFloat32, DType::kFloat16, DType::kBFloat16,
                                              DType::kFp8E4M3, DType::kFp8E5M2}),
                       .order = Pick(random, {KvOrder::kNHD, KvOrder::kHND}),
                       .form = Pick(random, {KvForm::kPair, KvForm::kPacked, KvForm::kDiffKv,
                                             KvForm::kKPacked, KvForm::kLatent}),
                       .layers = Pick(random, {KvLayers::kApart, KvLayers::kWithinBlock})};
  if (o.form == KvForm::kPacked) o.head_dim_v = o.head_dim_qk;
  if (o.form == KvForm::kKPacked) o.head_dim_qk = (o.head_dim_qk + 15) / 16 * 16;
  if (o.form == KvForm::kLatent) {
    o.num_kv_heads = 1;
    o.head_dim_v = std::min(o.head_dim_v, o.head_dim_qk);
  }
  return o;
}

// A destination inside a tensor of NaN.
struct Destination {
  at::Tensor storage;
  at::Tensor view;  // [rows, heads, dim]
};

Destination MakeDestination(std::mt19937& random, at::IntArrayRef shape, at::ScalarType dtype,
                            at::Device device) {
  const int64_t padding = Pick(random, {0, 8, 3});
  Destination made;
  made.storage = at::full({shape[0] + 1, shape[1], shape[2] + padding}, kNan,
                          at::TensorOptions().dtype(dtype).device(device));
  made.view = made.storage.narrow(0, 0, shape[0]).narrow(2, 0, shape[2]);
  return made;
}

// Reads one side as cache/ops/read_kv.h defines it, from the slot of each token. Slot -1: reads 0.
// Slot -2: not written.
void Expect(const KvLayer& kv, const KvView& view, const Scale& scale, int head_dim,
            const std::vector<int64_t>& slots, const std::vector<int64_t>& table_rows,
            const at::Tensor& host_cache_bytes, const void* cache_base, const at::Tensor& to) {
  // The view has device addresses. Uses the same offsets in a host copy.
  const int64_t shift = static_cast<const char*>(view.data) - static_cast<const char*>(cache_base);
  const at::Tensor typed =
      host_cache_bytes.narrow(0, shift, host_cache_bytes.numel() - shift)
          .clone()
          .narrow(0, 0, (host_cache_bytes.numel() - shift) / SizeOf(kv.dtype) * SizeOf(kv.dtype))
          .view(ToScalarType(kv.dtype));
  const at::Tensor floats = typed.to(at::kFloat);
  const float* const from = floats.const_data_ptr<float>();
  for (size_t token = 0; token < slots.size(); ++token) {
    if (slots[token] == -2) continue;
    for (int head = 0; head < kv.num_kv_heads; ++head) {
      at::Tensor row = to[token][head].narrow(0, 0, head_dim);
      if (slots[token] < 0) {  // the table row may be invalid, too, and have no scale
        row.zero_();
        continue;
      }
      const float factor =
          scale.data == nullptr
              ? scale.value
              : scale.data[table_rows[token] * scale.row_stride + head * scale.head_stride];
      std::vector<float> values(head_dim);
      for (int dim = 0; dim < head_dim; ++dim) {
        values[dim] = from[view.Offset(slots[token] / kv.block_size, slots[token] % kv.block_size,
                                       head, dim)] *
                      factor;
      }
      row.copy_(at::tensor(values));
    }
  }
}

bool Same(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor a = got.cpu().to(at::kFloat), b = expected.to(at::kFloat);
  return a.eq(b).logical_or(a.isnan().logical_and(b.isnan())).all().item<bool>();
}

}  // namespace

std::string RandomReadDifference(std::mt19937& random, at::Device device) {
  const KvLayoutOptions options = RandomLayout(random);
  KvCache cache = *KvCache::Create(*KvLayout::Create(options), device);
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(random());
  const int num_slots = options.num_blocks * options.block_size;
  const at::ScalarType dtype = Pick(random, {at::kFloat, at::kHalf, at::kBFloat16});

  // Random values, with NaN in some of the memory.
  for (int layer = 0; layer < 2; ++layer) {
    for (const at::Tensor& tensor : cache.tensors(layer)) {
      at::Tensor values = at::randn(tensor.sizes(), generator).mul_(20);
      values.masked_fill_(at::randint(10, tensor.sizes(), generator).eq(0), kNan);
      at::Tensor(tensor).copy_(values);
    }
  }
  const int num_tables = 3, max_blocks = 4;
  at::Tensor host_scales = at::randn({num_tables, 4}, generator).abs().add_(0.1);
  const at::Tensor scales = host_scales.to(device);
  const bool has_tensor_scale = IsFp8(options.dtype) && Below(random, 2) == 0;
  const auto scales_at = [&](const at::Tensor& tensor, int64_t row_stride) -> Scale {
    if (!has_tensor_scale) return {.value = IsFp8(options.dtype) ? 0.5f : 1.0f};
    return {.data = tensor.const_data_ptr<float>(), .row_stride = row_stride, .head_stride = 1};
  };

  std::ostringstream description;
  description << options.dtype << " to " << c10::getDtypeNames(dtype).first << ", " << options.form
              << " " << options.order << " " << options.layers << ", " << options.num_blocks
              << " blocks of " << options.block_size << ", " << options.num_kv_heads << " heads of "
              << options.head_dim_qk << " and " << options.head_dim_v;

  // Reads by slots, then by rows that include empty ones.
  for (const bool by_rows : {false, true}) {
    std::vector<int64_t> slots, table_rows;  // expected source of each token
    at::Tensor slot_mapping, table, start_loc, table_row, key_start;
    int64_t capacity = 0;
    if (!by_rows) {
      std::vector<int64_t> given(Below(random, 60));
      for (int64_t& slot : given) {
        slot = Below(random, 5) == 0
                   ? Pick(random, {int64_t{-1}, int64_t{num_slots}, int64_t{num_slots} + 9,
                                   std::numeric_limits<int64_t>::min()})
                   : Below(random, num_slots);
        slots.push_back(slot >= 0 && slot < num_slots ? slot : -1);
        table_rows.push_back(0);
      }
      slot_mapping = at::tensor(given, at::kLong).to(device);
      capacity = static_cast<int64_t>(given.size()) + Below(random, 3);
    } else {
      std::vector<int32_t> starts = {0}, rows, firsts;
      const at::Tensor host_table =
          at::randint(-1, options.num_blocks + 2, {num_tables, max_blocks}, generator, at::kInt);
      const int num_rows = Below(random, 6);
      for (int row = 0; row < num_rows; ++row) {
        rows.push_back(Pick(random, {0, 1, 2, 1, 3, -1}));  // some are invalid
        firsts.push_back(Below(random, 2 * options.block_size));
        const int len = Pick(random, {0, 1, options.block_size, Below(random, 70)});
        for (int i = 0; i < len; ++i) {
          const int64_t key = firsts.back() + i, column = key / options.block_size;
          int64_t slot = -1;
          if (rows.back() >= 0 && rows.back() < num_tables && column < max_blocks) {
            const int64_t block = host_table[rows.back()][column].item<int32_t>();
            if (block >= 0 && block < options.num_blocks) {
              slot = block * options.block_size + key % options.block_size;
            }
          }
          slots.push_back(slot);
          table_rows.push_back(rows.back());
        }
        starts.push_back(starts.back() + len);
      }
      table = host_table.to(device);
      start_loc = at::tensor(starts, at::kInt).to(device);
      table_row = at::tensor(rows, at::kInt).to(device);
      key_start = at::tensor(firsts, at::kInt).to(device);
      capacity = std::max<int64_t>(static_cast<int64_t>(slots.size()) + Below(random, 7) - 3, 0);
      // Keys past the end of k are not read; rows past the keys are not written.
      slots.resize(capacity, -2);
      table_rows.resize(capacity, 0);
    }
    const int64_t row_stride = by_rows ? 4 : 0;
    cache.SetScales(1, scales_at(scales, row_stride), scales_at(scales, row_stride));
    const KvLayer& kv = cache.layer(1);
    const int64_t heads = options.num_kv_heads;
    Destination k = MakeDestination(random, {capacity, heads, options.head_dim_qk}, dtype, device);
    Destination v = MakeDestination(random, {capacity, heads, options.head_dim_v}, dtype, device);
    const at::Tensor expected_k = k.storage.cpu().clone(), expected_v = v.storage.cpu().clone();
    const at::Tensor v_given = IsLatent(kv) ? at::Tensor() : v.view;
    const absl::Status status = by_rows ? ReadKvRows(kv,
                                                     {.block_table = table,
                                                      .start_loc = start_loc,
                                                      .table_row = table_row,
                                                      .key_start = key_start},
                                                     k.view, v_given)
                                        : ReadKv(kv, slot_mapping, k.view, v_given);
    if (!status.ok()) return std::string(status.message()) + "; " + description.str();

    const Scale host_scale = scales_at(host_scales, row_stride);
    const auto expect = [&](int side, const KvView& view, int head_dim, const at::Tensor& to) {
      const std::vector<at::Tensor> tensors(cache.tensors(1).begin(), cache.tensors(1).end());
      const at::Tensor& tensor = tensors[std::min<size_t>(side, tensors.size() - 1)];
      // The whole allocation, starting at this tensor's first element.
      const int64_t bytes = static_cast<int64_t>(tensor.storage().nbytes()) -
                            tensor.storage_offset() * tensor.element_size();
      const at::Tensor flat =
          at::empty({0}, tensor.options().dtype(at::kByte))
              .set_(tensor.storage(), tensor.storage_offset() * tensor.element_size(), {bytes}, {1})
              .cpu();
      Expect(kv, view, host_scale, head_dim, slots, table_rows, flat, tensor.const_data_ptr(), to);
    };
    expect(0, kv.k, kv.head_dim_qk, expected_k);
    if (!IsLatent(kv)) expect(1, kv.v, kv.head_dim_v, expected_v);
    if (!Same(k.storage, expected_k)) {
      return "k differs " + std::string(by_rows ? "by rows; " : "by slots; ") + description.str();
    }
    if (!Same(v.storage, expected_v)) {
      return "v differs " + std::string(by_rows ? "by rows; " : "by slots; ") + description.str();
    }
  }
  return "";
}

}  // namespace reprise
