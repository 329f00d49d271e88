#include "tests/golden/rank_traffic.h"

#include <memory>

#include "gtest/gtest.h"
#include "reprise/base/dtype.h"
#include "reprise/base/status_macros.h"
#include "reprise/engine/create_engine.h"
#include "reprise/models/model_folder.h"
#include "reprise/runner/model.h"
#include "tests/golden/golden.h"

namespace reprise {
namespace {

// Sampled requests with common prefixes, of which every third is cancelled after some steps, more
// than the cache holds.
absl::StatusOr<TrafficTexts> RunTraffic(Engine& engine) {
  TrafficTexts texts;
  std::vector<SequenceId> ids;
  for (int i = 0; i < 12; ++i) {
    Request request = {.max_new_tokens = 24};
    for (int j = 0; j < 20 + i; ++j) request.prompt.push_back((3 + j * j + i / 4 * 7) % 256);
    if (i % 2 == 1) request.sampling = {.temperature = 1, .seed = static_cast<uint64_t>(i)};
    // Steps with such a row send more than one choice a row; those with the last of these all
    // logits.
    if (i % 4 == 3) request.sampling.top_k = 5 * i;
    if (i == 5) request.sampling.min_p = 0.05f;
    if (i == 7 || i == 9) request.sampling.top_p = 0.9f;
    REPRISE_ASSIGN_OR_RETURN(ids.emplace_back(), engine.Add(request));
  }
  std::vector<TokenEvent> events;
  for (int step = 0; engine.has_work(); ++step) {
    events.clear();
    if (step >= 10 && step % 5 == 0 && !ids.empty()) {
      // One that has ended cannot be cancelled.
      engine.Cancel(ids[ids.size() / 2], events).IgnoreError();
      ids.resize(ids.size() / 2);
    }
    REPRISE_RETURN_IF_ERROR(engine.Step(events));
    for (const TokenEvent& event : events) {
      REPRISE_RETURN_IF_ERROR(event.error);
      texts[event.sequence.value()].push_back(event.token.value_or(-1));
    }
  }
  return texts;
}

}  // namespace

absl::StatusOr<TrafficTexts> TrafficOverRanks(RankGrid& grid, c10::Device device) {
  const int context_ranks = grid.context().ranks().world;
  const ModelEngineOptions options = {
      .runner = {.max_num_seqs = 5,
                 .max_num_tokens = 48,
                 .max_seq_len = 64,
                 .max_steps_in_flight = 2,
                 .cache = {.block_size = 4 / context_ranks,
                           .size = NumBlocks{34},
                           .swap = NumBlocks{20}},
                 .graphs = {.mixed = MixedGraphs::kOn},
                 .ranks = {.collectives = &grid.all(), .context_ranks = context_ranks}},
      .scheduler = {.prefill_chunk = 9}};
  REPRISE_ASSIGN_OR_RETURN(const Golden golden, LoadGolden("qwen2"));
  REPRISE_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(golden.folder));
  REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                           LoadModel(golden.folder, config,
                                     {.weights = {.device = device, .dtype = DType::kFloat32},
                                      .collectives = &grid.weights(),
                                      .context = &grid.context()}));
  if (grid.all().ranks().rank != 0) {
    REPRISE_RETURN_IF_ERROR(FollowEngine(model.get(), options));
    return TrafficTexts();
  }
  REPRISE_ASSIGN_OR_RETURN(const auto engine, CreateEngine(model.get(), options));
  REPRISE_ASSIGN_OR_RETURN(TrafficTexts texts, RunTraffic(*engine));
  const EngineMetrics metrics = engine->metrics();
  EXPECT_GT(metrics.num_preemptions, 0);
  EXPECT_GT(metrics.num_prefix_tokens_hit, 0);
  EXPECT_GT(metrics.num_graph_replays, 0);
  EXPECT_GT(metrics.num_finished[static_cast<int>(FinishReason::kCancelled)], 0);
  return texts;
}

}  // namespace reprise
