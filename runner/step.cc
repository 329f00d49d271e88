#include "reprise/runner/step.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/where.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "reprise/attention/attention.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/base/torch_status.h"
#include "reprise/cache/ops/kv_scale.h"
#include "reprise/cache/ops/write_kv.h"
#include "reprise/runner/ops/rotary.h"

namespace reprise {
namespace {

at::Tensor OutputOf(const AttentionParams& params, const at::Tensor& q, int num_tokens,
                    DType model_dtype) {
  const at::ScalarType dtype = q.element_size() == 1 ? ToScalarType(model_dtype) : q.scalar_type();
  return at::empty({num_tokens, params.num_q_heads, params.head_dim_v}, q.options().dtype(dtype));
}

AttentionPart PartOf(const AttentionParams& params, const at::Tensor& q, int num_tokens,
                     DType model_dtype) {
  return {.out = OutputOf(params, q, num_tokens, model_dtype),
          .lse = at::empty({num_tokens, params.num_q_heads}, q.options().dtype(at::kFloat))};
}

// Returns a tensor over the same memory for work that its graph keeps. The memory belongs to the
// graph's pool, so later tensors of the step may reuse it, as in a single graph.
at::Tensor Borrowed(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options());
}

// Attention over a cache, with all its arguments.
struct Paged {
  AttentionParams params;
  PagedBatch batch;
  BatchSchedule work;
  at::Tensor q;
  KvLayer kv;
  at::Tensor out;
  at::Tensor lse;  // may be undefined
  AttentionExtras extras = {};
  // Replace the pointers of `extras`; undefined if `extras` lacks them.
  at::Tensor new_k = {};
  at::Tensor new_v = {};
  at::Tensor out_block_scales = {};

  absl::Status operator()() {
    extras.new_k = new_k.defined() ? &new_k : nullptr;
    extras.new_v = new_v.defined() ? &new_v : nullptr;
    extras.out_block_scales = out_block_scales.defined() ? &out_block_scales : nullptr;
    return PagedAttention(params, batch, work, q, kv, {out, lse.defined() ? &lse : nullptr},
                          extras);
  }
  void Borrow() {
    for (at::Tensor* tensor : {&q, &out, &lse, &new_k, &new_v, &out_block_scales}) {
      *tensor = Borrowed(*tensor);
    }
  }
};

// Attention over keys of the step, with all its arguments.
struct Ragged {
  AttentionParams params;
  RaggedBatch batch;
  BatchSchedule work;
  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
  at::Tensor out;
  at::Tensor lse;

  absl::Status operator()() { return RaggedAttention(params, batch, work, q, {k, v}, {out, &lse}); }
  void Borrow() {
    for (at::Tensor* tensor : {&q, &k, &v, &out, &lse}) *tensor = Borrowed(*tensor);
  }
};

}  // namespace

absl::StatusOr<at::Tensor> Step::Embed(const at::Tensor& from_ids) const {
  if (input() == StepInput::kTokens) return from_ids;
  const at::Tensor& given = parts_.embeddings;
  ShapeChecker dims;
  dims.Bind("num_tokens", given.size(0));
  dims.Bind("input_embedding_dim", given.size(1));
  REPRISE_RETURN_IF_ERROR(
      dims.Check("from_ids", from_ids, {"num_tokens", "input_embedding_dim"}, given.scalar_type()));
  return CatchTorchOr([&]() -> absl::StatusOr<at::Tensor> {
    return at::where(parts_.is_embedded, given, from_ids);
  });
}

absl::Status Step::KeepLogits(const at::Tensor& returned) const {
  const at::Tensor& kept = parts_.logits;
  ShapeChecker dims;
  dims.Bind("num_logits", kept.size(0));
  dims.Bind("vocab_size", kept.size(1));
  REPRISE_RETURN_IF_ERROR(
      dims.Check("logits of the model", returned, {"num_logits", "vocab_size"}));
  if (returned.data_ptr() != kept.data_ptr()) kept.copy_(returned);
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> Step::Attend(int layer, const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const AttendOptions& options) const {
  REPRISE_RETURN_IF_ERROR(Write(layer, k, v));
  if (options.new_keys == AttendOptions::NewKeys::kCached) return Attend(layer, q, options);
  AttendOptions exact = options;
  exact.extras.new_k = &k;
  exact.extras.new_v = &v;
  return Attend(layer, q, exact);
}

absl::StatusOr<at::Tensor> Step::Attend(int layer, const at::Tensor& q, const at::Tensor& latent,
                                        const AttendOptions& options) const {
  REPRISE_RETURN_IF_ERROR(Write(layer, latent));
  if (options.new_keys == AttendOptions::NewKeys::kCached) return Attend(layer, q, options);
  const at::Tensor v = latent.narrow(2, 0, spec(layer).params.head_dim_v);
  AttendOptions exact = options;
  exact.extras.new_k = &latent;
  exact.extras.new_v = &v;
  return Attend(layer, q, exact);
}

absl::StatusOr<at::Tensor> Step::Attend(int layer, const at::Tensor& q,
                                        const AttendOptions& options) const {
  REPRISE_RETURN_IF_ERROR(CheckHasCache(layer));
  if (options.new_keys == AttendOptions::NewKeys::kExact && options.extras.new_k == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "new_keys of layer ", layer, " are exact, so the call must bring them: got q alone"));
  }
  REPRISE_RETURN_IF_ERROR(CheckQuery(layer, q));
  if (batch(layer).key_positions.world > 1 && !options.lse.defined()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the keys of layer ", layer, " are divided over ", batch(layer).key_positions.world,
        " ranks, whose results must be merged (runner/ranks/context_attention.h): expected lse, ",
        "got none"));
  }
  const AttentionParams& params = spec(layer).params;
  return CatchTorchOr([&]() -> absl::StatusOr<at::Tensor> {
    at::Tensor out =
        options.out.defined() ? options.out : OutputOf(params, q, num_tokens(), parts_.dtype);
    Watch("layer", layer, "q", q);
    const AttentionExtras& extras = options.extras;
    const auto given = [](const at::Tensor* tensor) { return tensor ? *tensor : at::Tensor(); };
    REPRISE_RETURN_IF_ERROR(Run(Paged{.params = params,
                                      .batch = batch(layer),
                                      .work = work(layer),
                                      .q = q,
                                      .kv = parts_.kv[layer],
                                      .out = out,
                                      .lse = options.lse,
                                      .extras = extras,
                                      .new_k = given(extras.new_k),
                                      .new_v = given(extras.new_v),
                                      .out_block_scales = given(extras.out_block_scales)}));
    Watch("layer", layer, "out", out);
    return out;
  });
}

absl::Status Step::Write(int layer, const at::Tensor& k, const at::Tensor& v) const {
  REPRISE_RETURN_IF_ERROR(CheckIsWritten(layer));
  REPRISE_RETURN_IF_ERROR(CheckKeepsPair(layer));
  REPRISE_RETURN_IF_ERROR(Calibrate(layer, k, v));
  Watch("layer", layer, "k", k);
  Watch("layer", layer, "v", v);
  return WriteKv(parts_.kv[layer], k, v, slot_mapping(layer));
}

absl::Status Step::Write(int layer, const at::Tensor& k, const at::Tensor& v,
                         const RotaryWrite& rotary) const {
  REPRISE_RETURN_IF_ERROR(CheckIsWritten(layer));
  REPRISE_RETURN_IF_ERROR(CheckKeepsPair(layer));
  if (parts_.calibrated == nullptr && parts_.watch == nullptr) {
    return RotaryWriteKv(rotary.q, k, v, positions(), rotary.table, parts_.kv[layer],
                         slot_mapping(layer), rotary.norm);
  }
  // Scales and watches need the rotated k, which the fused kernel writes only to the cache.
  REPRISE_RETURN_IF_ERROR(Rotary(rotary.q, k, positions(), rotary.table, rotary.norm));
  return Write(layer, k, v);
}

absl::Status Step::Write(int layer, const at::Tensor& latent) const {
  REPRISE_RETURN_IF_ERROR(CheckIsWritten(layer));
  if (!spec(layer).v_in_k) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer ", layer, " stores K and V separately: expected k and v, got one latent"));
  }
  REPRISE_RETURN_IF_ERROR(Calibrate(layer, latent, /*v=*/at::Tensor()));
  Watch("layer", layer, "latent", latent);
  return WriteKv(parts_.kv[layer], latent, /*v=*/at::Tensor(), slot_mapping(layer));
}

absl::Status Step::Calibrate(int layer, const at::Tensor& k, const at::Tensor& v) const {
  if (parts_.calibrated == nullptr) return absl::OkStatus();
  const KvScales::Layer& scales = parts_.calibrated->layer(place(layer));
  const KvScaleOptions options = {.cache_dtype = parts_.kv[layer].dtype};
  REPRISE_RETURN_IF_ERROR(ComputeKvScales(k, slot_mapping(layer), scales.k, options));
  if (!v.defined()) {  // V is a part of K
    scales.v.copy_(scales.k);
    return absl::OkStatus();
  }
  return ComputeKvScales(v, slot_mapping(layer), scales.v, options);
}

absl::StatusOr<AttentionPart> Step::AttendWithin(int attention, const at::Tensor& q,
                                                 const at::Tensor& k, const at::Tensor& v) const {
  REPRISE_RETURN_IF_ERROR(CheckHasWithin());
  const absl::Span<const AttentionParams> within = parts_.metadata->within();
  if (attention < 0 || attention >= static_cast<int>(within.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention is not in `within` of the model's spec: expected 0 to ",
                     static_cast<int>(within.size()) - 1, ", got ", attention));
  }
  const AttentionParams& params = within[attention];
  return CatchTorchOr([&]() -> absl::StatusOr<AttentionPart> {
    AttentionPart part = PartOf(params, q, num_tokens(), parts_.dtype);
    REPRISE_RETURN_IF_ERROR(Run(Ragged{.params = params,
                                       .batch = parts_.batches.within,
                                       .work = parts_.batches.within_work[attention],
                                       .q = q,
                                       .k = k,
                                       .v = v,
                                       .out = part.out,
                                       .lse = part.lse}));
    Watch("within", attention, "out", part.out);
    return part;
  });
}

absl::StatusOr<AttentionPart> Step::AttendBefore(int layer, const at::Tensor& q) const {
  REPRISE_RETURN_IF_ERROR(CheckHasCache(layer));
  REPRISE_RETURN_IF_ERROR(CheckHasWithin());
  const int class_index = classes().class_of_layer[place(layer)];
  if (classes().classes[class_index].batch != ClassBatch::kRows) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer ", layer, " has chunks or an encoder's keys: expected full attention or a window"));
  }
  REPRISE_RETURN_IF_ERROR(CheckQuery(layer, q));
  const AttentionParams& params = spec(layer).params;
  return CatchTorchOr([&]() -> absl::StatusOr<AttentionPart> {
    AttentionPart part = PartOf(params, q, num_tokens(), parts_.dtype);
    REPRISE_RETURN_IF_ERROR(Run(Paged{.params = params,
                                      .batch = parts_.batches.before[class_index],
                                      .work = parts_.batches.before_work[class_index],
                                      .q = q,
                                      .kv = parts_.kv[layer],
                                      .out = part.out,
                                      .lse = part.lse}));
    Watch("layer", layer, "out before the step", part.out);
    return part;
  });
}

absl::Status Step::RunBetweenGraphs(std::function<absl::Status()> work) const {
  if (work == nullptr) {
    return absl::InvalidArgumentError("work must be callable: got an empty function");
  }
  return parts_.graphs != nullptr ? parts_.graphs->RunBetweenGraphs(std::move(work)) : work();
}

template <typename Attention>
absl::Status Step::Run(Attention attention) const {
  if (!parts_.attends_between_graphs || parts_.graphs == nullptr) return attention();
  attention.Borrow();
  return RunBetweenGraphs([attention = std::move(attention)]() mutable { return attention(); });
}

void Step::See(std::string_view name, const at::Tensor& tensor, WatchedRows rows) const {
  parts_.watch->See(name, tensor, rows);
}

void Step::Watch(const char* place, int index, const char* what, const at::Tensor& tensor) const {
  if (parts_.watch == nullptr) return;
  See(absl::StrCat(place, " ", index, " ", what), tensor, WatchedRows::kTokens);
}

const at::Tensor& Step::slot_mapping(int layer) const {
  const std::optional<int> group = classes().group_of_layer.at(place(layer));
  CHECK(group.has_value()) << "layer " << layer << " has no cache";
  return parts_.slot_mappings[*group];
}

const PagedBatch& Step::batch(int layer) const {
  return parts_.batches.of_class[classes().class_of_layer.at(place(layer))];
}

const BatchSchedule& Step::work(int layer) const {
  return parts_.batches.work[classes().class_of_layer.at(place(layer))];
}

absl::Status Step::CheckHasCache(int layer) const {
  const int num_layers = static_cast<int>(parts_.kv.size());
  if (layer < 0 || layer >= num_layers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer is not in the model's spec: expected 0 to ", num_layers - 1, ", got ", layer));
  }
  if (classes().group_of_layer[place(layer)]) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "layer ", layer, " is an encoder layer: expected a decoder or encoder-decoder layer"));
}

absl::Status Step::CheckIsWritten(int layer) const {
  REPRISE_RETURN_IF_ERROR(CheckHasCache(layer));
  if (spec(layer).shares_kv_with) {
    return absl::InvalidArgumentError(absl::StrCat("layer ", layer, " reads the keys of layer ",
                                                   *spec(layer).shares_kv_with,
                                                   " and writes none: expected q alone"));
  }
  if (spec(layer).kind == AttentionKind::kEncoderDecoder) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer ", layer, " reads the encoder's keys and writes none: expected q alone"));
  }
  return absl::OkStatus();
}

absl::Status Step::CheckKeepsPair(int layer) const {
  if (!spec(layer).v_in_k) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "layer ", layer, " stores V within K: expected one latent for both, got k and v"));
}

// Also checked on the CPU, which does not plan work, so that a wrong dtype does not first appear on
// a GPU.
absl::Status Step::CheckQuery(int layer, const at::Tensor& q) const {
  const at::ScalarType expected = ToScalarType(spec(layer).q_dtype.value_or(parts_.dtype));
  if (q.scalar_type() == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "q of layer ", layer, " has the wrong dtype: expected ", at::toString(expected),
      ", as LayerSpec::q_dtype or the model's spec says, got ", at::toString(q.scalar_type())));
}

absl::Status Step::CheckHasWithin() const {
  if (parts_.batches.has_within()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "attention in two parts requires steps with several tokens per row, and a model whose spec ",
      "has attention `within`: expected max_query_len above 1, got ", max_query_len(), ", and ",
      parts_.metadata->within().size(), " in `within`"));
}

}  // namespace reprise
