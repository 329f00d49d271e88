// torch.ops.reprise.write_kv, write_latent_kv, read_kv, copy_blocks and swap_blocks, for caches
// that are passed as tensors. See docs/operators.md.

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/attention/torch_ops/argument_parts.h"
#include "reprise/attention/torch_ops/kv_tensors.h"
#include "reprise/attention/torch_ops/operator_call.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/ops/copy_blocks.h"
#include "reprise/cache/ops/read_kv.h"
#include "reprise/cache/ops/write_kv.h"
#include "reprise/cache/storage/block_store.h"

namespace reprise {
namespace {

absl::Status WriteKvOp(OperatorCall& call) {
  const at::Tensor k = call.Tensor("k");
  const at::Tensor v = call.Tensor("v");
  KvTensors kv;
  kv.k_cache = call.Tensor("k_cache");
  kv.v_cache = call.Tensor("v_cache");
  const at::Tensor slot_mapping = call.Tensor("slot_mapping");
  ReadCacheOptions(call, kv);
  REPRISE_ASSIGN_OR_RETURN(const KvLayer layer, KvLayerOf(kv));
  REPRISE_RETURN_IF_ERROR(CheckDevice("k_cache", kv.k_cache, k.device()));
  REPRISE_RETURN_IF_ERROR(
      WriteKv(layer, Fp8Of(k, kv.kv_dtype), Fp8Of(v, kv.kv_dtype), slot_mapping));
  call.Return({});
  return absl::OkStatus();
}

absl::Status WriteLatentKvOp(OperatorCall& call) {
  const at::Tensor latent = call.Tensor("latent");
  const at::Tensor rope = call.Tensor("rope");
  const at::Tensor cache = call.Tensor("cache");
  const at::Tensor slot_mapping = call.Tensor("slot_mapping");
  KvTensors kv;
  kv.kv_dtype = call.MaybeString("kv_dtype");
  const std::optional<at::Tensor> scale = call.MaybeTensor("scale");
  const std::optional<at::Tensor> rope_cache = call.MaybeTensor("rope_cache");
  kv.rope_cache_scale = call.MaybeTensor("rope_cache_scale");
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("latent", latent, {"num_tokens", AtLeast(1)}));
  REPRISE_RETURN_IF_ERROR(dims.Check("rope", rope, {"num_rope_tokens", AtLeast(1)}));
  REPRISE_RETURN_IF_ERROR(
      dims.Check("cache", cache,
                 {"num_blocks", "block_size", latent.size(1) + (rope_cache ? 0 : rope.size(1))}));
  if (rope_cache) {
    REPRISE_RETURN_IF_ERROR(
        dims.Check("rope_cache", *rope_cache, {"num_blocks", "block_size", rope.size(1)}));
    kv.rope_cache = rope_cache->unsqueeze(2);
  }
  REPRISE_RETURN_IF_ERROR(CheckDevice("cache", cache, latent.device()));
  kv.k_cache = cache.unsqueeze(2);
  kv.v_cache = kv.k_cache.narrow(3, 0, latent.size(1));
  REPRISE_ASSIGN_OR_RETURN(KvLayer layer, KvLayerOf(kv));
  REPRISE_ASSIGN_OR_RETURN(layer.k_scale,
                           ScaleOf("scale", scale, /*num_kv_heads=*/1, cache.device()));
  REPRISE_RETURN_IF_ERROR(
      WriteLatentKv(layer, Fp8Of(latent, kv.kv_dtype), Fp8Of(rope, kv.kv_dtype), slot_mapping));
  call.Return({});
  return absl::OkStatus();
}

// Reads K and V by slot into the caller's tensors.
absl::Status ReadInto(const KvTensors& kv, const at::Tensor& slot_mapping, const at::Tensor& k,
                      const at::Tensor& v) {
  REPRISE_ASSIGN_OR_RETURN(const KvLayer layer, KvLayerOf(kv));
  REPRISE_RETURN_IF_ERROR(CheckDevice("k_cache", kv.k_cache, slot_mapping.device()));
  return ReadKv(layer, slot_mapping, k, v);
}

absl::Status ReadKvOp(OperatorCall& call) {
  KvTensors kv;
  kv.k_cache = call.Tensor("k_cache");
  kv.v_cache = call.Tensor("v_cache");
  const at::Tensor slot_mapping = call.Tensor("slot_mapping");
  const at::ScalarType dtype = call.DType("dtype");
  ReadCacheOptions(call, kv);
  REPRISE_ASSIGN_OR_RETURN(const KvLayer layer, KvLayerOf(kv));
  const auto heads = [&](int head_dim) {
    return at::zeros({slot_mapping.numel(), layer.num_kv_heads, head_dim},
                     kv.k_cache.options().dtype(dtype));
  };
  const at::Tensor k = heads(layer.head_dim_qk);
  const at::Tensor v = heads(layer.head_dim_v);
  REPRISE_RETURN_IF_ERROR(ReadInto(kv, slot_mapping, k, v));
  call.Return({k, v});
  return absl::OkStatus();
}

absl::Status TraceReadKv(OperatorCall& call) {
  KvTensors kv;
  kv.k_cache = call.Tensor("k_cache");
  kv.v_cache = call.Tensor("v_cache");
  const at::Tensor slot_mapping = call.Tensor("slot_mapping");
  const at::ScalarType dtype = call.DType("dtype");
  ReadCacheOptions(call, kv);
  const bool is_k_packed = kv.layout == "K-packed";
  if (kv.k_cache.dim() != (is_k_packed ? 5 : 4) || kv.v_cache.dim() != 4) {
    return absl::InvalidArgumentError(
        absl::StrCat("k_cache and v_cache have the wrong rank: expected ", is_k_packed ? 5 : 4,
                     " and 4 dimensions, got ", kv.k_cache.dim(), " and ", kv.v_cache.dim()));
  }
  const c10::SymInt num_heads = kv.k_cache.sym_size(is_k_packed || kv.layout == "HND" ? 1 : 2);
  const auto heads = [&](const c10::SymInt& head_dim) {
    return at::empty_symint({slot_mapping.sym_numel(), num_heads, head_dim},
                            kv.k_cache.options().dtype(dtype));
  };
  const at::Tensor k =
      heads(is_k_packed ? kv.k_cache.sym_size(2) * kv.k_cache.sym_size(4) : kv.k_cache.sym_size(3));
  const at::Tensor v = heads(kv.v_cache.sym_size(is_k_packed ? 2 : 3));
  call.Return({k, v});
  return absl::OkStatus();
}

absl::Status ReadKvOutOp(OperatorCall& call) {
  KvTensors kv;
  kv.k_cache = call.Tensor("k_cache");
  kv.v_cache = call.Tensor("v_cache");
  const at::Tensor slot_mapping = call.Tensor("slot_mapping");
  ReadCacheOptions(call, kv);
  const at::Tensor k = call.Tensor("k");
  const at::Tensor v = call.Tensor("v");
  REPRISE_RETURN_IF_ERROR(ReadInto(kv, slot_mapping, k, v));
  call.Return({k, v});
  return absl::OkStatus();
}

absl::Status CopyBlocksOp(OperatorCall& call) {
  const std::vector<at::Tensor> caches = call.Tensors("caches");
  const at::Tensor pairs = call.Tensor("pairs");
  REPRISE_ASSIGN_OR_RETURN(const BlockStore store, BlockStore::Over(caches));
  REPRISE_RETURN_IF_ERROR(CopyBlocks(store, store, pairs));
  call.Return({});
  return absl::OkStatus();
}

absl::Status CheckSwap(const std::vector<at::Tensor>& src, const std::vector<at::Tensor>& dst,
                       const at::Tensor& pairs) {
  if (src.empty() || src.size() != dst.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("src and dst must have equal lengths of at least 1: got ", src.size(), " and ",
                     dst.size()));
  }
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("pairs", pairs, {"num_pairs", 2}, at::kInt));
  REPRISE_RETURN_IF_ERROR(CheckDevice("pairs", pairs, at::kCPU));
  for (size_t i = 0; i < src.size(); ++i) {
    const std::string name = absl::StrCat("dst[", i, "]");
    if (src[i].dim() < 1 || dst[i].dim() != src[i].dim() ||
        dst[i].sizes().slice(1) != src[i].sizes().slice(1)) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " must have blocks of the same shape as src[", i, "]"));
    }
    REPRISE_RETURN_IF_ERROR(CheckDType(name, dst[i], {src[i].scalar_type()}));
    const auto* const ids = pairs.const_data_ptr<int32_t>();
    for (int64_t p = 0; p < pairs.size(0); ++p) {
      const int64_t from = ids[p * pairs.stride(0)];
      const int64_t to = ids[p * pairs.stride(0) + pairs.stride(1)];
      if (from >= 0 && from < src[i].size(0) && to >= 0 && to < dst[i].size(0)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("pairs[", p, "] must name blocks of src and dst: expected less than ",
                       src[i].size(0), " and ", dst[i].size(0), ", got ", from, " and ", to));
    }
  }
  return absl::OkStatus();
}

absl::Status SwapBlocksOp(OperatorCall& call) {
  const std::vector<at::Tensor> src = call.Tensors("src");
  const std::vector<at::Tensor> dst = call.Tensors("dst");
  const at::Tensor pairs = call.Tensor("pairs");
  REPRISE_RETURN_IF_ERROR(CheckSwap(src, dst, pairs));
  const auto* const ids = pairs.const_data_ptr<int32_t>();
  for (size_t i = 0; i < src.size(); ++i) {
    for (int64_t p = 0; p < pairs.size(0); ++p) {
      const int32_t* const pair = ids + p * pairs.stride(0);
      dst[i]
          .select(0, pair[pairs.stride(1)])
          .copy_(src[i].select(0, pair[0]), /*non_blocking=*/true);
    }
  }
  call.Return({});
  return absl::OkStatus();
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(reprise, library) {
  DefineOperator(library,
                 "write_kv(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, "
                 "Tensor slot_mapping, *, " REPRISE_CACHE_OPTIONS_SCHEMA ") -> ()",
                 WriteKvOp);
  DefineOperator(library,
                 "write_latent_kv(Tensor latent, Tensor rope, Tensor(a!) cache, "
                 "Tensor slot_mapping, *, str? kv_dtype=None, Tensor? scale=None, "
                 "Tensor(b!)? rope_cache=None, Tensor? rope_cache_scale=None) -> ()",
                 WriteLatentKvOp);
  DefineOperator(library,
                 "read_kv(Tensor k_cache, Tensor v_cache, Tensor slot_mapping, *, "
                 "ScalarType dtype, " REPRISE_CACHE_OPTIONS_SCHEMA ") -> (Tensor k, Tensor v)",
                 ReadKvOp, TraceReadKv);
  DefineOperator(library,
                 "read_kv.out(Tensor k_cache, Tensor v_cache, Tensor slot_mapping, "
                 "*, " REPRISE_CACHE_OPTIONS_SCHEMA
                 ", Tensor(a!) k, Tensor(b!) v) -> (Tensor(a!), Tensor(b!))",
                 ReadKvOutOp);
  DefineOperator(library, "copy_blocks(Tensor(a!)[] caches, Tensor pairs) -> ()", CopyBlocksOp);
  DefineOperator(library, "swap_blocks(Tensor[] src, Tensor(a!)[] dst, Tensor pairs) -> ()",
                 SwapBlocksOp);
}

}  // namespace reprise
