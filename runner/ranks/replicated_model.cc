#include "reprise/runner/ranks/replicated_model.h"

#include <utility>

#include "reprise/base/status_macros.h"
#include "reprise/distributed/share.h"
#include "reprise/runner/ranks/context_attention.h"

namespace reprise {
namespace {

class ReplicatedModel final : public Model {
 public:
  ReplicatedModel(std::unique_ptr<Model> model, Collectives* collectives)
      : model_(std::move(model)), collectives_(collectives) {}

  const ModelSpec& spec() const override { return model_->spec(); }

  absl::StatusOr<at::Tensor> Forward(const Step& step) override {
    Step::TakeHidden take_hidden;
    if (step.keeps_hidden()) {
      take_hidden = [&](const Step&, const at::Tensor& hidden) -> absl::Status {
        REPRISE_ASSIGN_OR_RETURN(const at::Tensor of_first, OfFirstRank(collectives_, hidden));
        return step.KeepHidden(of_first);
      };
    }
    REPRISE_ASSIGN_OR_RETURN(at::Tensor logits, model_->Forward(step.WithHidden(take_hidden)));
    return OfFirstRank(collectives_, std::move(logits));
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
