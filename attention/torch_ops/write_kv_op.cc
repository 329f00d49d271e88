// torch.ops.reprise.write_kv: WriteKv() (cache/write_kv.h) with cache tensors. See
// docs/operators.md.

#include <torch/library.h>

#include "attention/torch_ops/kv_tensors.h"
#include "attention/torch_ops/operator_call.h"
#include "base/shape_check.h"
#include "base/status_macros.h"
#include "cache/write_kv.h"

namespace reprise {
namespace {

absl::Status WriteKvOp(OperatorCall& call) {
  const at::Tensor k = call.Tensor("k");
  const at::Tensor v = call.Tensor("v");
  KvTensors kv;
  kv.k_cache = call.Tensor("k_cache");
  kv.v_cache = call.Tensor("v_cache");
  const at::Tensor slot_mapping = call.Tensor("slot_mapping");
  kv.layout = call.String("layout");
  kv.kv_dtype = call.MaybeString("kv_dtype");
  kv.k_scale = call.MaybeTensor("k_scale");
  kv.v_scale = call.MaybeTensor("v_scale");
  REPRISE_ASSIGN_OR_RETURN(const KvLayer layer, KvLayerOf(kv));
  REPRISE_RETURN_IF_ERROR(CheckDevice("k_cache", kv.k_cache, k.device()));
  REPRISE_RETURN_IF_ERROR(WriteKv(layer, k, v, slot_mapping));
  call.Return({});
  return absl::OkStatus();
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(reprise, library) {
  DefineOperator(library,
                 "write_kv(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, "
                 "Tensor slot_mapping, *, str layout=\"NHD\", str? kv_dtype=None, "
                 "Tensor? k_scale=None, Tensor? v_scale=None) -> ()",
                 WriteKvOp);
}

}  // namespace reprise
