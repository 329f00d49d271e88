#include "reprise/cache/storage/kv_layout.h"

#include <glog/logging.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

// Larger than any memory, and small enough that offsets within a cache never overflow int64.
constexpr int64_t kMaxBytes = int64_t{1} << 62;

// Default number of contiguous bytes of a head in the K-packed layout, if x is not given.
constexpr int kKPackedBytes = 16;

// Alignment of layers with KvLayers::kApart. Aligns 16-byte accesses and memory sectors.
constexpr int64_t kLayerAlignmentBytes = 256;

int KPackedX(const KvLayoutOptions& options) {
  return options.k_packed_x > 0 ? options.k_packed_x : kKPackedBytes / SizeOf(options.dtype);
}

std::optional<int64_t> Product(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (int64_t factor : factors) {
    if (__builtin_mul_overflow(product, factor, &product)) return std::nullopt;
  }
  return product;
}

// Checks all options except num_blocks. Returns the bytes of a block over all layers.
absl::StatusOr<int64_t> BytesPerBlock(const KvLayoutOptions& options) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_layers", options.num_layers, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("block_size", options.block_size, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_kv_heads", options.num_kv_heads, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("head_dim_qk", options.head_dim_qk, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("head_dim_v", options.head_dim_v, 1));
  if (options.form == KvForm::kPacked && options.head_dim_qk != options.head_dim_v) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_dim_v must equal head_dim_qk in a packed cache: expected ",
                     options.head_dim_qk, ", got ", options.head_dim_v));
  }
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("k_packed_x", options.k_packed_x, 0));
  const int x = KPackedX(options);
  if (options.form == KvForm::kKPacked && options.head_dim_qk % x != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_dim_qk must be a multiple of x in a K-packed cache: expected a multiple "
                     "of ",
                     x, ", got ", options.head_dim_qk));
  }
  const bool is_latent = options.form == KvForm::kLatent;
  if (is_latent && options.num_kv_heads != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "num_kv_heads must be 1 in a latent cache: expected 1, got ", options.num_kv_heads));
  }
  if (is_latent && options.head_dim_v > options.head_dim_qk) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_dim_v must not exceed head_dim_qk in a latent cache: expected at most ",
                     options.head_dim_qk, ", got ", options.head_dim_v));
  }
  const std::optional<int64_t> bytes = Product(
      {options.num_layers, options.block_size, options.num_kv_heads,
       int64_t{options.head_dim_qk} + (is_latent ? 0 : options.head_dim_v), SizeOf(options.dtype)});
  if (!bytes.has_value() || *bytes > kMaxBytes) {
    return absl::InvalidArgumentError("a block is too large: expected at most 2^62 bytes");
  }
  return *bytes;
}

// A tensor over all layers, of shape [num_layers, num_blocks, ...].
struct AllLayers {
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
};

// Contiguous memory in the order of `memory_order`, which lists the dimensions from outermost to
// innermost. If the layer dimension is outermost, each layer begins aligned.
AllLayers AllLayersOf(std::vector<int64_t> shape, std::initializer_list<int> memory_order,
                      DType dtype) {
  AllLayers all = {.shape = std::move(shape), .strides = {}};
  all.strides.resize(all.shape.size());
  int64_t stride = 1;
  for (auto dim = std::rbegin(memory_order); dim != std::rend(memory_order); ++dim) {
    const int64_t unit = kLayerAlignmentBytes / SizeOf(dtype);
    if (*dim == 0 && *memory_order.begin() == 0) stride = (stride + unit - 1) / unit * unit;
    all.strides[*dim] = stride;
    stride *= all.shape[*dim];
  }
  return all;
}

std::vector<AllLayers> TensorsOf(const KvLayoutOptions& options) {
  const int64_t num_layers = options.num_layers, num_blocks = options.num_blocks;
  const int64_t block_size = options.block_size, heads = options.num_kv_heads;
  const int64_t dim_qk = options.head_dim_qk, dim_v = options.head_dim_v;
  const DType dtype = options.dtype;
  const bool is_nhd = options.order == KvOrder::kNHD;
  const bool is_apart = options.layers == KvLayers::kApart;
  const auto tokens_and_heads = [&](int64_t dim) {  // [layers, blocks, tokens, heads, dim]
    const std::vector<int64_t> shape = {num_layers, num_blocks, block_size, heads, dim};
    if (is_apart) {
      return is_nhd ? AllLayersOf(shape, {0, 1, 2, 3, 4}, dtype)
                    : AllLayersOf(shape, {0, 1, 3, 2, 4}, dtype);
    }
    return is_nhd ? AllLayersOf(shape, {1, 0, 2, 3, 4}, dtype)
                  : AllLayersOf(shape, {1, 3, 0, 2, 4}, dtype);
  };
  switch (options.form) {
    case KvForm::kPair:
      return {tokens_and_heads(dim_qk), tokens_and_heads(dim_v)};
    case KvForm::kDiffKv:
      return {tokens_and_heads(dim_qk + dim_v)};
    case KvForm::kLatent:
      return {tokens_and_heads(dim_qk)};
    case KvForm::kPacked: {  // [layers, blocks, 2, tokens, heads, dim]
      const std::vector<int64_t> shape = {num_layers, num_blocks, 2, block_size, heads, dim_qk};
      if (is_apart) {
        return {is_nhd ? AllLayersOf(shape, {0, 1, 2, 3, 4, 5}, dtype)
                       : AllLayersOf(shape, {0, 1, 2, 4, 3, 5}, dtype)};
      }
      return {is_nhd ? AllLayersOf(shape, {1, 0, 2, 3, 4, 5}, dtype)
                     : AllLayersOf(shape, {1, 4, 0, 2, 3, 5}, dtype)};
    }
    case KvForm::kKPacked: {
      const int64_t x = KPackedX(options);
      const std::vector<int64_t> k = {num_layers, num_blocks, heads, dim_qk / x, block_size, x};
      const std::vector<int64_t> v = {num_layers, num_blocks, heads, dim_v, block_size};
      if (is_apart) {
        return {AllLayersOf(k, {0, 1, 2, 3, 4, 5}, dtype), AllLayersOf(v, {0, 1, 2, 3, 4}, dtype)};
      }
      return {AllLayersOf(k, {1, 0, 2, 3, 4, 5}, dtype), AllLayersOf(v, {1, 0, 2, 3, 4}, dtype)};
    }
  }
  LOG(FATAL) << "unknown form: " << static_cast<int>(options.form);
  return {};
}

// Returns a view with a stride of `dim_stride` between dims: one chunk of `head_dim` if they are
// contiguous, and chunks of one dim otherwise.
KvView ViewOf(void* data, int64_t block_stride, int64_t token_stride, int64_t head_stride,
              int64_t dim_stride, int head_dim) {
  return {.data = data,
          .block_stride = block_stride,
          .token_stride = token_stride,
          .head_stride = head_stride,
          .dim_chunk = dim_stride == 1 ? head_dim : 1,
          .dim_chunk_stride = dim_stride == 1 ? head_dim : dim_stride};
}

}  // namespace

std::string_view KvOrderName(KvOrder order) { return order == KvOrder::kNHD ? "NHD" : "HND"; }

absl::StatusOr<KvOrder> ParseKvOrder(std::string_view name) {
  if (name == "NHD") return KvOrder::kNHD;
  if (name == "HND") return KvOrder::kHND;
  return absl::InvalidArgumentError(absl::StrCat("unknown KV layout: expected NHD or HND, got \"",
                                                 absl::string_view(name.data(), name.size()),
                                                 "\""));
}

std::string_view KvFormName(KvForm form) {
  switch (form) {
    case KvForm::kPair:
      return "pair";
    case KvForm::kPacked:
      return "packed";
    case KvForm::kDiffKv:
      return "diffkv";
    case KvForm::kKPacked:
      return "K-packed";
    case KvForm::kLatent:
      return "latent";
  }
  return "unknown";
}

std::string_view KvLayersName(KvLayers layers) {
  return layers == KvLayers::kApart ? "apart" : "within block";
}

absl::StatusOr<DType> ParseKvCacheDType(std::string_view name, DType model_dtype) {
  if (name == "auto") return model_dtype;
  const std::optional<DType> dtype = ParseDType(name);
  if (dtype.has_value()) return *dtype;
  return absl::InvalidArgumentError(
      absl::StrCat("unknown KV cache dtype: expected auto, float32, float16, bfloat16, fp8, "
                   "fp8_e4m3 or fp8_e5m2, got \"",
                   absl::string_view(name.data(), name.size()), "\""));
}

absl::StatusOr<KvLayout> KvLayout::Create(const KvLayoutOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(const int64_t bytes_per_block, BytesPerBlock(options));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_blocks", options.num_blocks, 1));
  if (options.num_blocks > kMaxBytes / bytes_per_block) {
    return absl::InvalidArgumentError(
        absl::StrCat("the cache is too large: expected at most 2^62 bytes, got ",
                     options.num_blocks, " blocks of ", bytes_per_block));
  }
  KvLayout layout(options);
  layout.bytes_per_block_ = bytes_per_block;
  return layout;
}

KvLayout::KvLayout(const KvLayoutOptions& options) : options_(options) {
  for (const AllLayers& all : TensorsOf(options)) {
    tensors_.push_back({.shape = {all.shape.begin() + 1, all.shape.end()},
                        .strides = {all.strides.begin() + 1, all.strides.end()}});
    layer_strides_.push_back(all.strides[0]);
    const bool is_apart = options.layers == KvLayers::kApart;
    allocation_elements_.push_back(is_apart ? all.shape[0] * all.strides[0]
                                            : all.shape[1] * all.strides[1]);
  }
}

KvLayer KvLayout::MakeKvLayer(absl::Span<const KvTensorRef> refs) const {
  CHECK_EQ(refs.size(), tensors_.size()) << "refs must have one entry per tensor of the layer";
  for (size_t i = 0; i < refs.size(); ++i) {
    CHECK_EQ(refs[i].strides.size(), tensors_[i].shape.size()) << "dimensions of tensor " << i;
  }
  KvLayer layer;
  layer.dtype = options_.dtype;
  layer.num_blocks = options_.num_blocks;
  layer.block_size = options_.block_size;
  layer.num_kv_heads = options_.num_kv_heads;
  layer.head_dim_qk = options_.head_dim_qk;
  layer.head_dim_v = options_.head_dim_v;

  // Advances a pointer by a number of elements.
  const auto advance = [&](void* data, int64_t num_elements) -> void* {
    return static_cast<char*>(data) + num_elements * SizeOf(options_.dtype);
  };
  const KvTensorRef& first = refs.front();
  const absl::Span<const int64_t> s = first.strides;
  switch (options_.form) {
    case KvForm::kPair: {
      const absl::Span<const int64_t> t = refs[1].strides;
      layer.k = ViewOf(first.data, s[0], s[1], s[2], s[3], options_.head_dim_qk);
      layer.v = ViewOf(refs[1].data, t[0], t[1], t[2], t[3], options_.head_dim_v);
      break;
    }
    case KvForm::kPacked:
      layer.k = ViewOf(first.data, s[0], s[2], s[3], s[4], options_.head_dim_qk);
      layer.v = layer.k;
      layer.v.data = advance(first.data, s[1]);
      break;
    case KvForm::kDiffKv:
      layer.k = ViewOf(first.data, s[0], s[1], s[2], s[3], options_.head_dim_qk);
      layer.v = ViewOf(advance(first.data, options_.head_dim_qk * s[3]), s[0], s[1], s[2], s[3],
                       options_.head_dim_v);
      break;
    case KvForm::kLatent:
      layer.k = ViewOf(first.data, s[0], s[1], s[2], s[3], options_.head_dim_qk);
      layer.v = ViewOf(first.data, s[0], s[1], s[2], s[3], options_.head_dim_v);
      break;
    case KvForm::kKPacked: {
      CHECK_EQ(s[4], 1) << "the last stride of k";
      const absl::Span<const int64_t> t = refs[1].strides;
      layer.k = {.data = first.data,
                 .block_stride = s[0],
                 .token_stride = s[3],
                 .head_stride = s[1],
                 .dim_chunk = KPackedX(options_),
                 .dim_chunk_stride = s[2]};
      layer.v = ViewOf(refs[1].data, t[0], t[3], t[1], t[2], options_.head_dim_v);
      break;
    }
  }
  return layer;
}

absl::StatusOr<int> NumBlocksForBytes(const KvLayoutOptions& options, int64_t budget_bytes) {
  REPRISE_ASSIGN_OR_RETURN(const int64_t bytes_per_block, BytesPerBlock(options));
  const int64_t num_blocks = budget_bytes / bytes_per_block;
  if (num_blocks < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("budget_bytes must hold the null block and one more: expected at least ",
                     2 * bytes_per_block, ", got ", budget_bytes));
  }
  return static_cast<int>(std::min<int64_t>(num_blocks, std::numeric_limits<int>::max()));
}

}  // namespace reprise
