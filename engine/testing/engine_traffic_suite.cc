#include "reprise/engine/testing/engine_traffic_suite.h"

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/base/testing/test_seed.h"
#include "reprise/engine/testing/engine_traffic.h"

namespace reprise {

// A build without CUDA does not instantiate the suite for GPUs.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(EngineTrafficSuite);

namespace {

// 300 seeds on the CPU and 50 on a GPU, or REPRISE_TRAFFIC_SEEDS. REPRISE_SEED=<seed> runs one
// seed.
std::vector<unsigned> Seeds(c10::Device device) {
  const char* text = std::getenv("REPRISE_TRAFFIC_SEEDS");
  const int count = text != nullptr ? std::atoi(text) : device.is_cuda() ? 50 : 300;
  std::vector<unsigned> seeds;
  for (int i = 0; i < count; ++i) seeds.push_back(static_cast<unsigned>(i));
  return std::getenv("REPRISE_SEED") != nullptr ? TestSeeds({0u}) : seeds;
}

TEST_P(EngineTrafficSuite, TextsDoNotDependOnOtherSequences) {
  int64_t num_preemptions = 0;
  int64_t num_swaps = 0;
  int64_t num_replays = 0;
  int64_t num_accepted = 0;
  // num_drafting_*: counts over runs with accepted drafts.
  int64_t num_drafting_preemptions = 0;
  int64_t num_drafting_swaps = 0;
  int64_t num_drafting_hits = 0;
  int64_t num_rejected = 0;
  int num_tokens = 0;
  int num_near_ties = 0;
  const std::vector<unsigned> seeds = Seeds(GetParam());
  for (const unsigned seed : seeds) {
    SCOPED_TRACE("REPRISE_SEED=" + std::to_string(seed));
    EngineTraffic traffic({.device = GetParam(), .seed = seed});
    traffic.Run();
    if (HasFatalFailure()) return;
    num_preemptions += traffic.num_preemptions();
    num_swaps += traffic.num_swaps();
    num_replays += traffic.num_replays();
    const SpeculationStatistics drafts = traffic.drafts();
    num_accepted += drafts.num_accepted;
    num_rejected += drafts.num_drafts - drafts.num_accepted;
    if (drafts.num_accepted > 0) {
      num_drafting_preemptions += traffic.num_preemptions();
      num_drafting_swaps += traffic.num_swaps();
      num_drafting_hits += traffic.num_prefix_tokens_hit();
    }
    num_tokens += traffic.num_tokens();
    num_near_ties += traffic.num_near_ties();
  }
  RecordProperty("tokens", num_tokens);
  RecordProperty("near_ties", num_near_ties);
  EXPECT_LE(num_near_ties, 1 + num_tokens / 500);
  if (seeds.size() < 20) return;
  EXPECT_GT(num_preemptions, 10);
  EXPECT_GT(num_swaps, 5);
  EXPECT_GT(num_replays, 500);
  EXPECT_GT(num_accepted, 100);
  EXPECT_GT(num_rejected, 100);
  EXPECT_GT(num_drafting_preemptions, 3);
  EXPECT_GT(num_drafting_swaps, 1);
  EXPECT_GT(num_drafting_hits, 50);
}

}  // namespace
}  // namespace reprise
