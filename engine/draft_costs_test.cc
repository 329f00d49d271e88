#include "engine/draft_costs.h"

#include <limits>

#include "gtest/gtest.h"

namespace reprise {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Steps as a device takes them: `plain_us`, or `drafts_us` with four drafts a row.
struct Device {
  double plain_us = 0;
  double drafts_us = 0;
  int num_accepted = 0;  // of each row

  // Whether the step had drafts.
  bool Run(DraftCosts& costs, int num_rows) const {
    const bool has_drafts = costs.Decide(num_rows);
    costs.Observe({.num_rows = num_rows,
                   .num_drafts = has_drafts ? 4 * num_rows : 0,
                   .num_new_tokens = has_drafts ? (1 + num_accepted) * num_rows : num_rows,
                   .us = has_drafts ? drafts_us : plain_us});
    return has_drafts;
  }
  int CountDrafts(DraftCosts& costs, int num_rows, int num_steps) const {
    int count = 0;
    for (int i = 0; i < num_steps; ++i) count += Run(costs, num_rows) ? 1 : 0;
    return count;
  }
};

// Steps until both kinds are measured: the first of each kind does not count.
constexpr int kStart = 1 + DraftCosts::kFirstSteps + 1 + DraftCosts::kNumTimes;
constexpr int kInterval = DraftCosts::kProbeInterval;

TEST(DraftCostsTest, MeasuresBothKindsFirst) {
  DraftCosts costs;
  const Device device = {.plain_us = 100, .drafts_us = 120, .num_accepted = 1};
  for (int i = 0; i < 1 + DraftCosts::kFirstSteps; ++i) {
    EXPECT_TRUE(costs.pays(8));
    EXPECT_TRUE(device.Run(costs, 8)) << i;
  }
  for (int i = 0; i < 1 + DraftCosts::kNumTimes; ++i) EXPECT_FALSE(device.Run(costs, 8)) << i;
  EXPECT_TRUE(device.Run(costs, 8));
}

TEST(DraftCostsTest, DraftsStayWhileTheyBringMoreTokensASecond) {
  DraftCosts costs;
  const Device device = {.plain_us = 100, .drafts_us = 190, .num_accepted = 1};
  device.CountDrafts(costs, 1, kStart);
  EXPECT_EQ(device.CountDrafts(costs, 1, 3 * kInterval), 3 * (kInterval - DraftCosts::kProbeSteps));
  EXPECT_TRUE(costs.pays(1));
}

TEST(DraftCostsTest, DraftsThatCostMoreThanTheySaveFallToProbes) {
  DraftCosts costs;
  const Device device = {.plain_us = 100, .drafts_us = 210, .num_accepted = 1};
  device.CountDrafts(costs, 64, kStart);
  EXPECT_EQ(device.CountDrafts(costs, 64, 3 * kInterval), 3 * DraftCosts::kProbeSteps);
  EXPECT_FALSE(costs.pays(64));
  // A text that accepts more is found by the probes, after some of them.
  const Device better = {.plain_us = 100, .drafts_us = 210, .num_accepted = 4};
  better.CountDrafts(costs, 64, 4 * kInterval);
  EXPECT_TRUE(costs.pays(64));
  EXPECT_GT(better.CountDrafts(costs, 64, kInterval), kInterval / 2);
}

// The host is a step ahead: what Await() of a step takes is what the launch of the next one does.
TEST(DraftCostsTest, StepsThatTakeTheTimeOfTheNextAreTakenForWhatTheyAre) {
  for (const double drafts_us : {150.0, 250.0}) {
    SCOPED_TRACE(testing::Message() << drafts_us);
    DraftCosts costs;
    bool has_drafts = costs.Decide(1);
    for (int i = 0; i < 8 * kInterval; ++i) {
      const bool next = costs.Decide(1);
      costs.Observe({.num_rows = 1,
                     .num_drafts = has_drafts ? 4 : 0,
                     .num_new_tokens = has_drafts ? 2 : 1,
                     .us = next ? drafts_us : 100});
      has_drafts = next;
      if (i <= 2 * kStart) continue;
      EXPECT_EQ(costs.pays(1), drafts_us < 200) << i;
    }
  }
}

TEST(DraftCostsTest, StepsBesidePromptsAreNotMeasured) {
  DraftCosts costs;
  for (int i = 0; i < 1000; ++i) {
    costs.ObserveOther();
    costs.Observe({.num_rows = 1, .num_drafts = 1, .num_new_tokens = 1, .us = 1e6});
    costs.ObserveOther();
    costs.Observe({.num_rows = 1, .num_new_tokens = 1, .us = 1});
  }
  EXPECT_TRUE(costs.pays(1));
}

TEST(DraftCostsTest, NumbersOfRowsAreMeasuredApart) {
  DraftCosts costs;
  const Device cheap = {.plain_us = 100, .drafts_us = 110, .num_accepted = 1};
  const Device dear = {.plain_us = 100, .drafts_us = 400, .num_accepted = 1};
  for (const int num_rows : {1, 2, 3}) cheap.CountDrafts(costs, num_rows, 200);
  for (const int num_rows : {64, 127, 100'000}) dear.CountDrafts(costs, num_rows, 200);
  for (const int num_rows : {1, 2, 3}) EXPECT_TRUE(costs.pays(num_rows)) << num_rows;
  for (const int num_rows : {64, 100, 32'768}) EXPECT_FALSE(costs.pays(num_rows)) << num_rows;
  EXPECT_TRUE(costs.pays(4)) << "never seen";
}

// Steps that waited for something else are no measure of what steps take.
TEST(DraftCostsTest, AFewLongStepsDecideNothing) {
  DraftCosts costs;
  const Device device = {.plain_us = 100, .drafts_us = 120, .num_accepted = 1};
  device.CountDrafts(costs, 1, 100);
  for (int i = 0; i < DraftCosts::kNumTimes / 2; ++i) {
    costs.Observe({.num_rows = 1, .num_drafts = 4, .num_new_tokens = 2, .us = 1e9});
  }
  EXPECT_TRUE(costs.pays(1));
  costs.Observe({.num_rows = 1, .num_drafts = 4, .num_new_tokens = 2, .us = 1e9});
  EXPECT_FALSE(costs.pays(1));
}

TEST(DraftCostsTest, TimesOfAClockThatWasSetBackDoNotCount) {
  DraftCosts costs;
  for (int i = 0; i < 100; ++i) {
    for (const double us : {0.0, -5.0, kNan}) {
      costs.Observe({.num_rows = 1, .num_drafts = 4, .num_new_tokens = 2, .us = us});
      costs.Observe({.num_rows = 1, .num_new_tokens = 1, .us = us});
    }
  }
  EXPECT_TRUE(costs.Decide(1)) << "nothing is measured";
}

// The tokens of a row are a mean over many steps: a passage whose drafts are all wrong is none.
TEST(DraftCostsTest, AFewStepsWithoutAcceptedDraftsDecideNothing) {
  DraftCosts costs;
  const Device device = {.plain_us = 100, .drafts_us = 120, .num_accepted = 2};
  device.CountDrafts(costs, 1, kStart + 50);
  const Device wrong = {.plain_us = 100, .drafts_us = 120, .num_accepted = 0};
  wrong.CountDrafts(costs, 1, 10);
  EXPECT_TRUE(costs.pays(1));
  wrong.CountDrafts(costs, 1, 60);
  EXPECT_FALSE(costs.pays(1));
}

}  // namespace
}  // namespace reprise
