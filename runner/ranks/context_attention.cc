#include "reprise/runner/ranks/context_attention.h"

#include <ATen/ops/empty.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"
#include "reprise/distributed/share.h"
#include "reprise/runner/ops/merge_attention.h"

namespace reprise {
namespace {

constexpr int64_t kAlignment = 16;

int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// The memory layout of a rank's result: out, then lse, so that one collective gathers both.
class PartLayout {
 public:
  explicit PartLayout(const AttentionShape& shape)
      : shape_(shape),
        dtype_(shape.options.dtype().toScalarType()),
        out_bytes_(shape.num_tokens * shape.num_heads * shape.head_dim_v *
                   static_cast<int64_t>(c10::elementSize(dtype_))),
        lse_bytes_(shape.num_tokens * shape.num_heads * int64_t{sizeof(float)}) {}

  int64_t bytes() const { return Aligned(out_bytes_) + Aligned(lse_bytes_); }

  // Returns the `out` part of a rank's result.
  at::Tensor Out(const at::Tensor& part) const {
    return part.narrow(0, 0, out_bytes_)
        .view(dtype_)
        .view({shape_.num_tokens, shape_.num_heads, shape_.head_dim_v});
  }
  at::Tensor Lse(const at::Tensor& part) const {
    return part.narrow(0, Aligned(out_bytes_), lse_bytes_)
        .view(at::kFloat)
        .view({shape_.num_tokens, shape_.num_heads});
  }

 private:
  AttentionShape shape_;
  at::ScalarType dtype_;
  int64_t out_bytes_;
  int64_t lse_bytes_;
};

AttentionShape ShapeOf(const Step& step, const at::Tensor& q, int64_t head_dim_v) {
  return {.num_tokens = step.num_tokens(),
          .num_heads = q.size(1),
          .head_dim_v = head_dim_v,
          .options = q.options()};
}

// Checks that the runner shards the keys of `layer` over the ranks that merge.
absl::Status CheckSameRanks(const Ranks& context, const Step& step, int layer) {
  const KeyPositions& keys = step.batch(layer).key_positions;
  if (keys.world == context.world && keys.rank == context.rank) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the model's context and ModelRunnerOptions must divide keys over the same ranks: "
      "the model is rank ",
      context.rank, " of ", context.world, ", the keys of layer ", layer, " belong to rank ",
      keys.rank, " of ", keys.world));
}

}  // namespace

absl::StatusOr<AttentionPart> MergeOverRanks(
    Collectives& context, const AttentionShape& shape,
    absl::FunctionRef<absl::Status(const at::Tensor& out, const at::Tensor& lse)> attend) {
  const PartLayout layout(shape);
  const Ranks& ranks = context.ranks();
  at::Tensor parts = at::empty({ranks.world, layout.bytes()}, shape.options.dtype(at::kByte));
  const at::Tensor own = parts.select(0, ranks.rank);
  REPRISE_RETURN_IF_ERROR(attend(layout.Out(own), layout.Lse(own)));
  REPRISE_RETURN_IF_ERROR(context.AllGather(own, parts));
  std::vector<at::Tensor> outs;
  std::vector<at::Tensor> lses;
  for (int rank = 0; rank < ranks.world; ++rank) {
    const at::Tensor part = parts.select(0, rank);
    outs.push_back(layout.Out(part));
    lses.push_back(layout.Lse(part));
  }
  AttentionPart merged = {
      .out = at::empty({shape.num_tokens, shape.num_heads, shape.head_dim_v}, shape.options),
      .lse = at::empty({shape.num_tokens, shape.num_heads}, shape.options.dtype(at::kFloat))};
  REPRISE_RETURN_IF_ERROR(MergeAttention(outs, lses, merged.out, merged.lse));
  return merged;
}

absl::StatusOr<at::Tensor> AttendOverRanks(Collectives* context, const Step& step, int layer,
                                           const at::Tensor& q, int64_t head_dim_v) {
  if (RanksOf(context).world == 1) return step.Attend(layer, q);
  REPRISE_RETURN_IF_ERROR(CheckSameRanks(context->ranks(), step, layer));
  REPRISE_ASSIGN_OR_RETURN(
      const AttentionPart merged,
      MergeOverRanks(*context, ShapeOf(step, q, head_dim_v),
                     [&](const at::Tensor& out, const at::Tensor& lse) {
                       return step.Attend(layer, q, {.out = out, .lse = lse}).status();
                     }));
  return merged.out;
}

absl::StatusOr<AttentionPart> AttendBeforeOverRanks(Collectives* context, const Step& step,
                                                    int layer, const at::Tensor& q,
                                                    int64_t head_dim_v) {
  if (RanksOf(context).world == 1) return step.AttendBefore(layer, q);
  REPRISE_RETURN_IF_ERROR(CheckSameRanks(context->ranks(), step, layer));
  return MergeOverRanks(*context, ShapeOf(step, q, head_dim_v),
                        [&](const at::Tensor& out, const at::Tensor& lse) -> absl::Status {
                          REPRISE_ASSIGN_OR_RETURN(const AttentionPart part,
                                                   step.AttendBefore(layer, q));
                          out.copy_(part.out);
                          lse.copy_(part.lse);
                          return absl::OkStatus();
                        });
}

absl::Status CopyFromFirstRank(Collectives* context, const at::Tensor& tensor) {
  if (RanksOf(context).world == 1) return absl::OkStatus();
  at::Tensor same = tensor;  // shares the memory of `tensor`
  return context->Broadcast(same, /*root=*/0);
}

absl::StatusOr<at::Tensor> OfFirstRank(Collectives* collectives, at::Tensor tensor) {
  if (RanksOf(collectives).world == 1) return tensor;
  tensor = tensor.contiguous();
  REPRISE_RETURN_IF_ERROR(CopyFromFirstRank(collectives, tensor));
  return tensor;
}

absl::Status CheckShardings(const Collectives* weights, const Collectives* context) {
  if (RanksOf(weights).world == 1 || weights != context) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("ranks that divide keys must have the same heads: expected collectives and "
                   "context of two groups of a grid, got one of ",
                   RanksOf(weights).world, " ranks as both"));
}

}  // namespace reprise
