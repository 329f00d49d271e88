#include "runner/ranks/replicated_model.h"

#include <utility>

#include "base/status_macros.h"
#include "distributed/share.h"
#include "runner/ranks/context_attention.h"

namespace reprise {
namespace {

class ReplicatedModel final : public Model {
 public:
  ReplicatedModel(std::unique_ptr<Model> model, Collectives* collectives)
      : model_(std::move(model)), collectives_(collectives) {}

  const ModelSpec& spec() const override { return model_->spec(); }

  absl::StatusOr<at::Tensor> Forward(const Step& step) override {
    REPRISE_ASSIGN_OR_RETURN(at::Tensor logits, model_->Forward(step));
    return OfFirstRank(collectives_, std::move(logits));
  }

  absl::StatusOr<ForwardOutput> ForwardHidden(const Step& step) override {
    REPRISE_ASSIGN_OR_RETURN(ForwardOutput out, model_->ForwardHidden(step));
    REPRISE_ASSIGN_OR_RETURN(out.logits, OfFirstRank(collectives_, std::move(out.logits)));
    REPRISE_ASSIGN_OR_RETURN(out.hidden, OfFirstRank(collectives_, std::move(out.hidden)));
    return out;
  }

  absl::Status Encode(const EncoderStep& step) override { return model_->Encode(step); }

 private:
  std::unique_ptr<Model> model_;
  Collectives* collectives_;
};

}  // namespace

std::unique_ptr<Model> ReplicateOverRanks(std::unique_ptr<Model> model, Collectives* collectives) {
  if (RanksOf(collectives).world == 1) return model;
  return std::make_unique<ReplicatedModel>(std::move(model), collectives);
}

}  // namespace reprise
