// A ModelRunner as the StepRunner of an engine.
//
// Thread safety: as ModelRunner.

#ifndef ENGINE_MODEL_STEPS_H_
#define ENGINE_MODEL_STEPS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/request.h"
#include "engine/step_output.h"
#include "engine/step_runner.h"
#include "runner/model_runner.h"
#include "runner/sampling/logits_request.h"

namespace reprise {

class ModelSteps final : public StepRunner {
 public:
  // The runner must outlive it.
  explicit ModelSteps(ModelRunner* runner) : runner_(*runner) {}

  absl::Status CheckTokens(std::string_view argument,
                           absl::Span<const int32_t> tokens) const override {
    return runner_.CheckTokens(argument, tokens);
  }

  absl::Status CheckEmbeddings(std::string_view argument,
                               const EmbeddingRows& rows) const override {
    return runner_.CheckEmbeddings(argument, rows);
  }

  absl::Status CheckLogits(const LogitsRequest& request) const override {
    return runner_.CheckLogitsRequest(request);
  }

  absl::StatusOr<int64_t> Launch(const ScheduledBatch& batch) override;
  absl::StatusOr<StepOutput> Await(int64_t ticket) override;

  absl::Status status() const override { return runner_.status(); }
  int64_t num_replays() const override { return runner_.graph_report().num_replays(); }
  int64_t num_eager_steps() const override { return runner_.graph_report().num_eager_steps(); }

  // The logits from which the token of an event of the step that was awaited last was chosen
  // (Engine::logits()).
  at::Tensor logits(const TokenEvent& event) const;

 private:
  ModelRunner& runner_;
  at::Tensor logits_, earlier_logits_;  // of the step that was awaited last
};

}  // namespace reprise

#endif  // ENGINE_MODEL_STEPS_H_
