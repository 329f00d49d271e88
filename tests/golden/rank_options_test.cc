// Ranks whose options differ are told which, before they wait for each other in unlike steps.

#include <ATen/Parallel.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status_macros.h"
#include "distributed/testing/thread_ranks.h"
#include "engine/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runner/model.h"
#include "tests/golden/golden.h"
#include "tests/golden/golden_model.h"

namespace reprise {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using Mode = GraphSetOptions::Mode;
using Proposer = SpeculationOptions::Proposer;

using Change = std::function<void(ModelRunnerOptions&)>;

struct Row {
  const char* name;  // of the option that differs
  Change of_other;   // what rank 1 has
  Change of_both = [](ModelRunnerOptions&) {};
};

void SpeculateByNgrams(ModelRunnerOptions& options) {
  options.speculation = {.max_drafts = 3, .proposer = Proposer::kNgram};
}
void SpeculateByTrees(ModelRunnerOptions& options) {
  options.speculation = {.max_drafts = 3, .shape = DraftShape::kTree};
}
void CaptureMixed(ModelRunnerOptions& options) { options.mixed_graphs = MixedGraphs::kOn; }

const std::vector<Row>& Rows() {
  static const auto& rows = *new std::vector<Row>{
      {"max_num_seqs", [](auto& options) { options.max_num_seqs = 3; }},
      {"max_num_tokens", [](auto& options) { options.max_num_tokens = 48; }},
      {"max_seq_len", [](auto& options) { options.max_seq_len = 32; }},
      {"block_size", [](auto& options) { options.block_size = 8; }},
      {"swaps", [](auto& options) { options.num_swap_blocks = 8; }},
      {"kv_dtype", [](auto& options) { options.kv_dtype = DType::kBFloat16; }},
      {"kv_order", [](auto& options) { options.kv_order = KvOrder::kHND; }},
      {"kv_form", [](auto& options) { options.kv_form = KvForm::kPacked; }},
      {"graphs", [](auto& options) { options.graphs = Mode::kEager; }},
      {"graph_sizes",
       [](auto& options) {
         options.graph_sizes = {1, 4};
       }},
      {"graph_memory_budget_bytes",
       [](auto& options) { options.graph_memory_budget_bytes = 1 << 20; }},
      {"mixed_graphs", CaptureMixed},
      {"mixed_graph_tokens", [](auto& options) { options.mixed_graph_tokens = {32}; },
       CaptureMixed},
      {"mixed_graph_sizes", [](auto& options) { options.mixed_graph_sizes = {2}; }, CaptureMixed},
      {"attention_in_graphs", [](auto& options) { options.attention_in_graphs = false; }},
      {"replay_check", [](auto& options) { options.replay_check = ReplayCheck::kEveryReplay; }},
      {"cascade", [](auto& options) { options.cascade = CascadeMode::kAuto; }},
      {"cascade_costs", [](auto& options) { options.cascade_costs.call_us += 1; },
       [](auto& options) { options.cascade = CascadeMode::kAuto; }},
      {"max_steps_in_flight", [](auto& options) { options.max_steps_in_flight = 3; }},
      {"step_logits", [](auto& options) { options.step_logits = StepLogits::kOfEvery; }},
      {"speculation.max_drafts", SpeculateByNgrams},
      {"speculation.proposer", SpeculateByNgrams,
       [](auto& options) { options.speculation.max_drafts = 3; }},
      {"speculation.ngram.max_ngram",
       [](auto& options) { options.speculation.ngram.max_ngram = 2; }, SpeculateByNgrams},
      {"speculation.shape", SpeculateByTrees,
       [](auto& options) { options.speculation.max_drafts = 3; }},
      {"speculation.acceptance",
       [](auto& options) { options.speculation.acceptance = DraftAcceptance::kRejection; },
       SpeculateByNgrams},
      {"speculation.graph_num_drafts",
       [](auto& options) { options.speculation.graph_num_drafts = {3}; }, SpeculateByNgrams},
      {"max_earlier_logits", [](auto& options) { options.max_earlier_logits = 5; }},
      {"logits.penalties", [](auto& options) { options.logits.penalties = true; }},
      {"logits.max_biases", [](auto& options) { options.logits.max_biases = 5; }},
      {"logits.allowed_tokens", [](auto& options) { options.logits.allowed_tokens = true; }},
      {"logits.max_log_probs", [](auto& options) { options.logits.max_log_probs = 2; }},
      {"batch_invariance", [](auto& options) { options.batch_invariance = BatchInvariance::kOn; }},
      {"sample_shards", [](auto& options) { options.sample_shards = false; }}};
  return rows;
}

ModelRunnerOptions CommonOptions(Collectives& collectives) {
  return {.max_num_seqs = 4,
          .max_num_tokens = 64,
          .max_seq_len = 64,
          .block_size = 4,
          .num_blocks = 32,
          .max_steps_in_flight = 2,
          .collectives = &collectives};
}

// As rank 0 or another one. The ranks may go on to other engines.
absl::Status CreateOnRank(Model* model, const ModelRunnerOptions& options) {
  if (options.collectives->ranks().rank > 0) return Engine::Follow(model, {.runner = options});
  return Engine::Create(model, {.runner = options}).status();
}

absl::StatusOr<std::unique_ptr<Model>> ModelOfRank(Collectives& collectives, DType dtype) {
  at::set_num_threads(1);
  REPRISE_ASSIGN_OR_RETURN(const Golden golden, LoadGolden("qwen2"));
  return LoadGoldenModel(golden, c10::kCPU, dtype, MlaCache::kLatent, &collectives);
}

TEST(RankOptionsTest, AnOptionThatDiffersIsNamedToAllRanks) {
  const std::vector<absl::Status> results =
      RunThreadRanks(2, [](Collectives& collectives) -> absl::Status {
        REPRISE_ASSIGN_OR_RETURN(const auto model, ModelOfRank(collectives, DType::kFloat32));
        for (const Row& row : Rows()) {
          ModelRunnerOptions options = CommonOptions(collectives);
          row.of_both(options);
          if (collectives.ranks().rank == 1) row.of_other(options);
          const absl::Status status = CreateOnRank(model.get(), options);
          EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition)
              << row.name << ": " << status;
          EXPECT_THAT(std::string(status.message()),
                      StartsWith(std::string(row.name) + " must be the same on all ranks: "));
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(results, testing::Each(absl::OkStatus()));
}

TEST(RankOptionsTest, ADtypeThatDiffersIsNamedToAllRanks) {
  const std::vector<absl::Status> results =
      RunThreadRanks(2, [](Collectives& collectives) -> absl::Status {
        const bool is_first = collectives.ranks().rank == 0;
        REPRISE_ASSIGN_OR_RETURN(
            const auto model,
            ModelOfRank(collectives, is_first ? DType::kFloat32 : DType::kBFloat16));
        return CreateOnRank(model.get(), CommonOptions(collectives));
      });
  for (const absl::Status& status : results) {
    EXPECT_EQ(status, absl::FailedPreconditionError(
                          "dtype must be the same on all ranks: expected float32 as on rank 0, got "
                          "bfloat16 on rank 1"));
  }
}

// All have what the least of them has.
TEST(RankOptionsTest, TheSizeOfTheCacheMayDiffer) {
  const std::vector<absl::Status> results =
      RunThreadRanks(2, [](Collectives& collectives) -> absl::Status {
        REPRISE_ASSIGN_OR_RETURN(const auto model, ModelOfRank(collectives, DType::kFloat32));
        ModelRunnerOptions options = CommonOptions(collectives);
        const bool is_first = collectives.ranks().rank == 0;
        options.num_blocks = is_first ? 32 : 24;
        options.num_swap_blocks = is_first ? 8 : 12;
        return CreateOnRank(model.get(), options);
      });
  EXPECT_THAT(results, testing::Each(absl::OkStatus()));
}

}  // namespace
}  // namespace reprise
