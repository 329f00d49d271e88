// All decisions about a step that precede its device work. ModelRunner::Launch() creates the plan
// once; the parts of the runner read it.

#ifndef REPRISE_RUNNER_STEP_PLAN_H_
#define REPRISE_RUNNER_STEP_PLAN_H_

#include <cstdint>

#include "reprise/graphs/graph_key.h"
#include "reprise/runner/sampling/logits_request.h"
#include "reprise/runner/sampling/sampling_params.h"

namespace reprise {

struct StepPlan {
  int64_t step = 0;  // the step's number
  int output = 0;    // index of the step's output in the ring (StepOutputs)
  int num_rows = 0;  // rows of the batch; 0 for an idle step, even if its shape has one inert row
  StepShape shape = {};
  // How the step runs, and at which key. The forward pass updates the decision to the one that was
  // taken: a replay becomes eager if the step calibrates, or if a lazy capture exceeds the budget.
  GraphDecision decision = {};
  SamplingFeatures features = SamplingFeatures::kGreedy;  // required by the sampling of its rows
  int common_prefix_len = 0;  // keys that the step reads once for all rows
  // Input of the logits stages. Valid during Launch().
  LogitsBatch logits = {};
  bool has_logits_stages = false;  // a row that samples needs a stage
  bool scores_known_tokens = false;
  bool keeps_logits = false;       // the caller can read the step's logits
  bool verifies_in_graph = false;  // the replayed graph verifies the step's drafts

  bool has_drafts() const { return shape.num_drafts > 0; }
  // Returns the number of rows of logits that the forward pass computes.
  int num_logits() const { return decision.key.padded_num_seqs + decision.key.num_earlier_logits; }
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_STEP_PLAN_H_
