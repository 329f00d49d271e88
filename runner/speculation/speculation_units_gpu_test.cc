// The device finds the same n-grams as the host over random steps that replay a captured graph. The
// tests compare every byte of the memory.

#include <random>

#include "gtest/gtest.h"
#include "reprise/base/testing/builder_twins.h"
#include "reprise/base/testing/device_array.h"
#include "reprise/runner/speculation/ngram_drafts.h"
#include "reprise/runner/testing/speculation_cases.h"

namespace reprise {
namespace {

class SpeculationUnitsGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasCudaDevice()) GTEST_SKIP() << "no GPU on this machine";
  }
};

// Captures each shape once, and replays the graph over several steps.
TEST_F(SpeculationUnitsGpuTest, NgramDraftsMatchTheHost) {
  std::mt19937 random(1);
  for (int i = 0; i < 120; ++i) {
    const SpeculationShape shape = DrawSpeculationShape(random);
    SCOPED_TRACE(testing::Message() << "case " << i << ": " << shape);
    BuilderTwins<NgramDraftsArgs> twins(
        [&](ArrayCarver& carver) { return CarveNgramDrafts(shape, carver); }, LaunchNgramDrafts);
    for (int replay = 0; replay < 4; ++replay) {
      twins.Poison();
      DrawNgramDrafts(random, shape, twins.args());
      ASSERT_EQ(twins.Compare(NgramDraftsOnHost), "") << "replay " << replay;
    }
  }
}

TEST_F(SpeculationUnitsGpuTest, TheNewestOfTheLongestMatchesIsFoundInALongText) {
  // Covers vector loads, remainders and unaligned histories, with matches in all threads.
  for (const int offset : {0, 1}) {
    for (const int vocab_size : {2, 3, 50}) {
      SpeculationShape shape = {.num_rows = 4,
                                .num_slots = 4,
                                .max_drafts = 16,
                                .vocab_size = vocab_size,
                                .max_positions = 40000,
                                .history_offset = offset,
                                .history_gap = offset,
                                .min_ngram = 1,
                                .max_ngram = 16};
      std::mt19937 random(2);
      BuilderTwins<NgramDraftsArgs> twins(
          [&](ArrayCarver& carver) { return CarveNgramDrafts(shape, carver); }, LaunchNgramDrafts);
      for (int replay = 0; replay < 5; ++replay) {
        twins.Poison();
        DrawNgramDrafts(random, shape, twins.args());
        ASSERT_EQ(twins.Compare(NgramDraftsOnHost), "") << shape << ", replay " << replay;
      }
    }
  }
}

}  // namespace
}  // namespace reprise
