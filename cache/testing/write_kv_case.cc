#include "reprise/cache/testing/write_kv_case.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numeric>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/cache/ops/write_kv.h"
#include "reprise/cache/ops/write_kv_args.h"
#include "reprise/cache/tables/slot_mapping.h"
#include "reprise/cache/testing/write_kv_reference.h"

namespace reprise {
namespace {

constexpr int64_t kCanaryBytes = 256;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

int Below(std::mt19937& random, int n) { return static_cast<int>(random() % n); }

template <typename T>
T Pick(std::mt19937& random, std::initializer_list<T> choices) {
  return choices.begin()[Below(random, static_cast<int>(choices.size()))];
}

at::Generator GeneratorFrom(std::mt19937& random) {
  return at::make_generator<at::CPUGeneratorImpl>(random());
}

// Returns the number of elements from the first to the last, inclusive.
int64_t Extent(absl::Span<const int64_t> shape, absl::Span<const int64_t> strides) {
  int64_t extent = 1;
  for (size_t i = 0; i < shape.size(); ++i) extent += (shape[i] - 1) * strides[i];
  return extent;
}

}  // namespace

WriteKvCase WriteKvCase::Random(std::mt19937& random, const WriteKvCaseOptions& options) {
  WriteKvCase made;
  made.device_ = options.device;
  made.alignment_ = Pick(random, {Alignment::kVectors, Alignment::kAny});
  made.ChooseLayout(random);
  if (options.layout.has_value()) made.layout_ = *options.layout;
  made.source_dtype_ =
      Pick(random, {DType::kFloat32, DType::kFloat16, DType::kBFloat16, made.layout_.dtype});
  if (IsFp8(made.source_dtype_)) made.source_dtype_ = DType::kBFloat16;
  if (options.source_dtype.has_value()) made.source_dtype_ = *options.source_dtype;
  made.num_tokens_ = options.num_tokens.value_or(Pick(random, {0, 1, 2, 5, 16, 33, 100, 257}));

  made.MakeArena(random);
  made.k_ = made.MakeSource(random, made.layout_.head_dim_qk);
  made.v_ = made.MakeSource(random, made.layout_.head_dim_v);
  made.host_scales_ = at::randn({64}, GeneratorFrom(random)).abs().add_(0.05);
  made.scales_ = made.host_scales_.to(made.device_);
  made.k_scale_ = made.MakeScale(random);
  made.v_scale_ = made.MakeScale(random);
  made.host_slots_ = at::empty({made.num_tokens_}, at::kLong);
  made.slots_ =
      at::empty({made.num_tokens_}, at::TensorOptions().dtype(at::kLong).device(made.device_));
  made.ChangeSlots(random);
  return made;
}

void WriteKvCase::ChooseLayout(std::mt19937& random) {
  const bool is_cpu = device_.is_cpu();
  layout_.dtype = Pick(random, {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFp8E4M3,
                                DType::kFp8E5M2, is_cpu ? DType::kFloat64 : DType::kBFloat16});
  layout_.form = Pick(
      random, {KvForm::kPair, KvForm::kPacked, KvForm::kDiffKv, KvForm::kKPacked, KvForm::kLatent});
  layout_.order = Pick(random, {KvOrder::kNHD, KvOrder::kHND});
  layout_.block_size = Pick(random, {1, 2, 3, 5, 8, 16, 32, 64});
  layout_.num_blocks = 1 + Below(random, 1 + 200 / layout_.block_size);
  layout_.num_kv_heads = 1 + Below(random, 8);
  const auto head_dim = [&] {
    return alignment_ == Alignment::kVectors
               ? Pick(random, {16, 32, 64, 80, 96, 112, 128, 192, 256})
               : 1 + Below(random, 130);
  };
  layout_.head_dim_qk = head_dim();
  layout_.head_dim_v = head_dim();
  if (layout_.form == KvForm::kPacked) layout_.head_dim_v = layout_.head_dim_qk;
  if (layout_.form == KvForm::kLatent) {
    layout_.num_kv_heads = 1;
    layout_.head_dim_v = std::min(layout_.head_dim_v, layout_.head_dim_qk);
  }
  if (layout_.form == KvForm::kKPacked) {
    const int x = 16 / SizeOf(layout_.dtype);
    layout_.head_dim_qk = (layout_.head_dim_qk + x - 1) / x * x;
  }
}

int WriteKvCase::RandomPadding(std::mt19937& random) const {
  return alignment_ == Alignment::kVectors ? Pick(random, {0, 0, 16, 48})
                                           : Pick(random, {0, 1, 3, 8, 10});
}

void WriteKvCase::MakeArena(std::mt19937& random) {
  const KvLayout layout = *KvLayout::Create(layout_);
  int64_t end_bytes = kCanaryBytes;
  for (const KvTensorSpec& spec : layout.tensors()) {
    // Places the dimensions in the memory order of the layout, possibly with gaps between them.
    std::vector<int> dims(spec.shape.size());
    std::iota(dims.begin(), dims.end(), 0);
    std::stable_sort(dims.begin(), dims.end(),
                     [&](int a, int b) { return spec.strides[a] < spec.strides[b]; });
    CacheTensor tensor = {.strides = std::vector<int64_t>(dims.size()), .offset_bytes = end_bytes};
    const bool may_spread = alignment_ == Alignment::kAny && layout_.form != KvForm::kKPacked;
    int64_t stride = may_spread && Below(random, 6) == 0 ? 2 : 1;
    // The last dimension is the innermost, even if another dimension of size 1 has the same stride.
    std::stable_partition(dims.begin(), dims.end(),
                          [&](int dim) { return dim + 1 == static_cast<int>(dims.size()); });
    for (int dim : dims) {
      tensor.strides[dim] = stride;
      stride = stride * spec.shape[dim] + RandomPadding(random);
    }
    if (alignment_ == Alignment::kAny) {
      tensor.offset_bytes += Below(random, 9) * SizeOf(layout_.dtype);
    }
    end_bytes = tensor.offset_bytes + Extent(spec.shape, tensor.strides) * SizeOf(layout_.dtype) +
                kCanaryBytes;
    end_bytes = (end_bytes + 255) / 256 * 256;
    cache_tensors_.push_back(std::move(tensor));
  }
  expected_ =
      at::randint(256, {end_bytes}, GeneratorFrom(random), at::TensorOptions().dtype(at::kByte));
  arena_ = expected_.to(device_, /*non_blocking=*/false, /*copy=*/true);
}

WriteKvCase::Source WriteKvCase::MakeSource(std::mt19937& random, int head_dim) {
  const int64_t rows = num_tokens_ + Below(random, 4);
  const std::vector<int64_t> shape = {rows, layout_.num_kv_heads, head_dim};
  Source source;
  const int64_t dim_stride = alignment_ == Alignment::kAny && Below(random, 6) == 0 ? 2 : 1;
  const int64_t inner = head_dim * dim_stride + RandomPadding(random);
  if (Below(random, 4) == 0) {  // [heads, tokens, dim]
    source.strides = {inner, std::max<int64_t>(rows, 1) * inner + RandomPadding(random),
                      dim_stride};
  } else {
    source.strides = {layout_.num_kv_heads * inner + RandomPadding(random), inner, dim_stride};
  }
  source.offset = RandomPadding(random);
  const int64_t size = rows == 0 ? source.offset : source.offset + Extent(shape, source.strides);
  source.storage = at::full({size}, kNan, at::TensorOptions().dtype(ToScalarType(source_dtype_)));
  source.tensor = source.storage.to(device_).as_strided(shape, source.strides, source.offset);
  FillSource(random, source);
  return source;
}

void WriteKvCase::FillSource(std::mt19937& random, Source& source) const {
  const float magnitude = Pick(random, {1.0f, 30.0f, 2000.0f});
  at::Tensor values =
      at::randn({num_tokens_, layout_.num_kv_heads, source.tensor.size(2)}, GeneratorFrom(random));
  values.mul_(magnitude);
  if (values.numel() > 0 && Below(random, 4) == 0) {
    values.view(-1)[Below(random, static_cast<int>(values.numel()))] =
        -std::numeric_limits<float>::infinity();
  }
  at::Tensor on_host =
      source.storage.as_strided(source.tensor.sizes(), source.strides, source.offset)
          .narrow(0, 0, num_tokens_);
  on_host.copy_(values);
  source.tensor.narrow(0, 0, num_tokens_).copy_(on_host);
}

WriteKvCase::CaseScale WriteKvCase::MakeScale(std::mt19937& random) {
  CaseScale scale;
  const int kind = Below(random, IsFp8(layout_.dtype) ? 4 : 16);
  if (kind == 1) scale.value = 0.1f + 0.03f * Below(random, 100);
  if (kind >= 2 && kind <= 3) {
    scale.offset = Below(random, 30);
    scale.head_stride = Pick(random, {0, 1, 2});
  }
  return scale;
}

void WriteKvCase::ChangeContents(std::mt19937& random) {
  FillSource(random, k_);
  FillSource(random, v_);
  host_scales_.copy_(at::randn({64}, GeneratorFrom(random)).abs().add_(0.05));
  scales_.copy_(host_scales_);
  ChangeSlots(random);
}

void WriteKvCase::ChangeSlots(std::mt19937& random) {
  const int64_t num_slots = int64_t{layout_.num_blocks} * layout_.block_size;
  // Draws runs of consecutive slots, as in prompts, or single slots, as in decodes.
  const int longest_run = Pick(random, {1, 5, 90});
  std::vector<std::pair<int64_t, int64_t>> runs;  // first slot, end slot
  for (int64_t first = 0; first < num_slots;) {
    const int64_t end = std::min(num_slots, first + 1 + Below(random, longest_run));
    runs.emplace_back(first, end);
    first = end;
  }
  std::shuffle(runs.begin(), runs.end(), random);
  std::vector<int64_t> slots;
  for (const auto& [first, end] : runs) {
    for (int64_t slot = first; slot < end; ++slot) slots.push_back(slot);
  }
  slots.resize(std::max<int64_t>(num_slots, num_tokens_), kNoSlot);
  const int holes = Pick(random, {6, 60});  // one in this many tokens has no slot
  int64_t* written = host_slots_.mutable_data_ptr<int64_t>();
  for (int token = 0; token < num_tokens_; ++token) {
    written[token] = Below(random, holes) == 0 ? kNoSlot : slots[token];
    if (!device_.is_cpu() && Below(random, 2 * holes) == 0) {  // the CPU rejects these slots
      written[token] =
          Pick(random, {num_slots, num_slots + 7, int64_t{-2}, std::numeric_limits<int64_t>::max(),
                        std::numeric_limits<int64_t>::min()});
    }
  }
  slots_.copy_(host_slots_);
}

KvLayer WriteKvCase::LayerIn(const at::Tensor& arena, const at::Tensor& scales) const {
  std::vector<KvTensorRef> refs;
  for (const CacheTensor& tensor : cache_tensors_) {
    refs.push_back({.data = static_cast<char*>(arena.mutable_data_ptr()) + tensor.offset_bytes,
                    .strides = tensor.strides});
  }
  KvLayer layer = KvLayout::Create(layout_)->MakeKvLayer(refs);
  const auto scale = [&](const CaseScale& from) {
    Scale to = {.value = from.value, .head_stride = from.head_stride};
    if (from.offset.has_value()) to.data = scales.const_data_ptr<float>() + *from.offset;
    return to;
  };
  layer.k_scale = scale(k_scale_);
  layer.v_scale = scale(v_scale_);
  return layer;
}

absl::Status WriteKvCase::Write() {
  const KvLayer layer = LayerIn(arena_, scales_);
  return WriteKv(layer, k_.tensor, IsLatent(layer) ? at::Tensor() : v_.tensor, slots_);
}

std::string WriteKvCase::Difference() {
  const auto host = [&](const Source& source) {
    return ConstKvTokens{.data = static_cast<const char*>(source.storage.const_data_ptr()) +
                                 source.offset * SizeOf(source_dtype_),
                         .token_stride = source.strides[0],
                         .head_stride = source.strides[1],
                         .dim_stride = source.strides[2]};
  };
  WriteKvReference({.kv = LayerIn(expected_, host_scales_),
                    .k = host(k_),
                    .v = host(v_),
                    .dtype = source_dtype_,
                    .slot_mapping = host_slots_.const_data_ptr<int64_t>(),
                    .num_tokens = num_tokens_,
                    .num_sides = layout_.form == KvForm::kLatent ? 1 : 2});
  const at::Tensor got = arena_.cpu();
  if (at::equal(got, expected_)) return "";
  const at::Tensor wrong = got.ne(expected_).nonzero();
  const int64_t first = wrong[0][0].item<int64_t>();
  return absl::StrCat(wrong.size(0), " bytes of the arena differ, the first at ", first,
                      ": expected ", expected_[first].item<int>(), ", got ", got[first].item<int>(),
                      "; ", description());
}

std::string WriteKvCase::description() const {
  std::ostringstream out;
  out << source_dtype_ << " into " << layout_.dtype << ", " << layout_.form << " " << layout_.order
      << ", " << num_tokens_ << " tokens, " << layout_.num_blocks << " blocks of "
      << layout_.block_size << ", " << layout_.num_kv_heads << " heads of " << layout_.head_dim_qk
      << " and " << layout_.head_dim_v << ", sources [" << absl::StrJoin(k_.strides, ", ")
      << "] and [" << absl::StrJoin(v_.strides, ", ") << "], cache";
  for (const CacheTensor& tensor : cache_tensors_) {
    out << " at " << tensor.offset_bytes << " [" << absl::StrJoin(tensor.strides, ", ") << "]";
  }
  out << (alignment_ == Alignment::kVectors ? ", aligned" : ", unaligned");
  return out.str();
}

}  // namespace reprise
