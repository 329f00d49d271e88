// Ranks whose options differ are told which, before they wait for each other in unlike steps.

#include <ATen/Parallel.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/dtype.h"
#include "reprise/base/status_macros.h"
#include "reprise/distributed/testing/thread_ranks.h"
#include "reprise/engine/create_engine.h"
#include "reprise/runner/model.h"
#include "tests/golden/golden.h"
#include "tests/golden/golden_model.h"

namespace reprise {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using Mode = GraphSetOptions::Mode;
using Change = std::function<void(ModelRunnerOptions&)>;

struct Row {
  const char* name;  // of the option that differs
  Change of_other;   // what rank 1 has
  Change of_both = [](ModelRunnerOptions&) {};
};

void SpeculateByNgrams(ModelRunnerOptions& options) {
  options.speculation = {.max_drafts = 3, .proposer = NgramProposer{}};
}
void SpeculateByTrees(ModelRunnerOptions& options) {
  options.speculation = {.max_drafts = 3, .shape = DraftShape::kTree};
}
void CaptureMixed(ModelRunnerOptions& options) { options.graphs.mixed = MixedGraphs::kOn; }

const std::vector<Row>& Rows() {
  static const auto& rows = *new std::vector<Row>{
      {"max_num_seqs", [](auto& options) { options.max_num_seqs = 3; }},
      {"max_num_tokens", [](auto& options) { options.max_num_tokens = 48; }},
      {"max_seq_len", [](auto& options) { options.max_seq_len = 32; }},
      {"cache.block_size", [](auto& options) { options.cache.block_size = 8; }},
      {"swaps", [](auto& options) { options.cache.swap = NumBlocks{8}; }},
      {"cache.dtype", [](auto& options) { options.cache.dtype = DType::kBFloat16; }},
      {"cache.order", [](auto& options) { options.cache.order = KvOrder::kHND; }},
      {"cache.form", [](auto& options) { options.cache.form = KvForm::kPacked; }},
      {"graphs.mode", [](auto& options) { options.graphs.mode = Mode::kEager; }},
      {"graphs.sizes",
       [](auto& options) {
         options.graphs.sizes = {1, 4};
       }},
      {"graphs.memory_budget_bytes",
       [](auto& options) { options.graphs.memory_budget_bytes = 1 << 20; }},
      {"graphs.mixed", CaptureMixed},
      {"graphs.mixed_tokens", [](auto& options) { options.graphs.mixed_tokens = {32}; },
       CaptureMixed},
      {"debug.mixed_graph_sizes", [](auto& options) { options.debug.mixed_graph_sizes = {2}; },
       CaptureMixed},
      {"debug.attention",
       [](auto& options) { options.debug.attention = AttentionLaunch::kBetweenGraphs; }},
      {"debug.replay_check",
       [](auto& options) { options.debug.replay_check = ReplayCheck::kEveryReplay; }},
      {"device.cascade", [](auto& options) { options.device.cascade = CascadeMode::kAuto; }},
      {"device.profile.cascade_costs",
       [](auto& options) {
         options.device.profile = H200Profile();
         options.device.profile->cascade_costs.call_us += 1;
       },
       [](auto& options) { options.device.cascade = CascadeMode::kAuto; }},
      {"max_steps_in_flight", [](auto& options) { options.max_steps_in_flight = 3; }},
      {"logits.step_logits",
       [](auto& options) { options.logits.step_logits = StepLogits::kOfEvery; }},
      {"speculation.max_drafts", SpeculateByNgrams},
      {"speculation.proposer", SpeculateByNgrams,
       [](auto& options) { options.speculation.max_drafts = 3; }},
      {"max_ngram of speculation.proposer",
       [](auto& options) { std::get<NgramProposer>(options.speculation.proposer).max_ngram = 2; },
       SpeculateByNgrams},
      {"speculation.shape", SpeculateByTrees,
       [](auto& options) { options.speculation.max_drafts = 3; }},
      {"speculation.acceptance",
       [](auto& options) { options.speculation.acceptance = DraftAcceptance::kRejection; },
       SpeculateByNgrams},
      {"speculation.graph_num_drafts",
       [](auto& options) { options.speculation.graph_num_drafts = {3}; }, SpeculateByNgrams},
      {"logits.max_earlier_logits", [](auto& options) { options.logits.max_earlier_logits = 5; }},
      {"logits.penalties", [](auto& options) { options.logits.penalties = true; }},
      {"logits.max_biases", [](auto& options) { options.logits.max_biases = 5; }},
      {"logits.allowed_tokens", [](auto& options) { options.logits.allowed_tokens = true; }},
      {"logits.max_log_probs", [](auto& options) { options.logits.max_log_probs = 2; }},
      {"device.batch_invariance",
       [](auto& options) { options.device.batch_invariance = BatchInvariance::kOn; }},
      {"debug.sample_shards", [](auto& options) { options.debug.sample_shards = false; }}};
  return rows;
}

ModelRunnerOptions CommonOptions(Collectives& collectives) {
  return {.max_num_seqs = 4,
          .max_num_tokens = 64,
          .max_seq_len = 64,
          .max_steps_in_flight = 2,
          .cache = {.block_size = 4, .size = NumBlocks{32}},
          .ranks = {.collectives = &collectives}};
}

// As rank 0 or another one. The ranks may go on to other engines.
absl::Status CreateOnRank(Model* model, const ModelRunnerOptions& options) {
  if (options.ranks.collectives->ranks().rank > 0) return FollowEngine(model, {.runner = options});
  return CreateEngine(model, {.runner = options}).status();
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
        options.cache.size = NumBlocks{is_first ? 32 : 24};
        options.cache.swap = NumBlocks{is_first ? 8 : 12};
        return CreateOnRank(model.get(), options);
      });
  EXPECT_THAT(results, testing::Each(absl::OkStatus()));
}

}  // namespace
}  // namespace reprise
