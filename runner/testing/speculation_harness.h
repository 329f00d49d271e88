// Generates texts with a ModelRunner, with or without drafts. For tests that compare the two.
//
//   auto harness = *SpeculationHarness::Create(options, {.layers = ...});
//   harness->Join(0, prompt, sampling);
//   ASSERT_OK(harness->Step({{.slot = 0}}));                      // the prompt
//   ASSERT_OK(harness->Step({{.slot = 0, .num_drafts = 4}}));     // 1 to 5 tokens
//   harness->text(0);
//
// Each slot has its own blocks, enough for the longest sequence.

#ifndef REPRISE_RUNNER_TESTING_SPECULATION_HARNESS_H_
#define REPRISE_RUNNER_TESTING_SPECULATION_HARNESS_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/runner/model_runner.h"
#include "reprise/runner/testing/layered_model.h"

namespace reprise {

// A slot's row in a step. The first row of a slot passes its prompt.
struct SpeculationRow {
  int slot = 0;
  int num_drafts = 0;
  std::vector<int32_t> drafts = {};   // replace num_drafts
  std::vector<int32_t> parents = {};  // parents of the drafts in a tree
};

class SpeculationHarness {
 public:
  // `draft`: replaces the model of a ModelProposer. `driver`: see ModelRunner::Create().
  static absl::StatusOr<std::unique_ptr<SpeculationHarness>> Create(
      const ModelRunnerOptions& options, const LayeredModelOptions& model,
      const LayeredModelOptions& draft = {}, std::unique_ptr<DeviceDriver> driver = nullptr);

  // A placeholder for a ModelProposer's model, which Create() replaces. Must not be used otherwise.
  static Model& AnyDraftModel();

  void Join(int slot, std::vector<int32_t> prompt, const SamplingParams& sampling = {});
  // Joins a greedy sequence with a request to the logits stages.
  void JoinWith(const LogitsRequest& request, std::vector<int32_t> prompt);
  void Leave(int slot);

  absl::Status Launch(const std::vector<SpeculationRow>& rows);
  absl::Status Await();  // awaits the oldest step in flight
  absl::Status Step(const std::vector<SpeculationRow>& rows);

  // The prompt and the tokens that followed it.
  const std::vector<int32_t>& text(int slot) const { return texts_[slot]; }
  // Number of new tokens of each row of the step that was awaited last.
  const std::vector<int>& num_new() const { return num_new_; }
  const GraphDecision& decision() const { return decision_; }
  ModelRunner& runner() { return *runner_; }

 private:
  struct Launched {
    int64_t ticket;
    std::vector<int> slots;
  };

  SpeculationHarness(const LayeredModelOptions& model, const LayeredModelOptions& draft,
                     int max_num_seqs);

  LayeredModel model_;
  std::unique_ptr<LayeredModel> draft_;
  std::unique_ptr<ModelRunner> runner_;
  std::vector<std::vector<int32_t>> texts_;  // by slot
  std::vector<bool> is_new_;
  std::vector<SlotJoin> joins_;
  std::vector<SlotId> leaves_;
  std::vector<LogitsRequest> requests_;
  std::vector<BlockTableUpdate> updates_;
  std::deque<Launched> launched_;
  std::vector<int> num_new_;
  GraphDecision decision_;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_SPECULATION_HARNESS_H_
