#include "reprise/engine/draft_costs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::Le;
using ::testing::Pair;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int kInterval = DraftCosts::kProbeInterval;

// Simulates the step times and the acceptance of a device.
struct Device {
  std::map<int, double> us;        // step time by draft count of the graph
  std::vector<double> acceptance;  // by draft position
  int num_rows = 1;
  int most = 8;  // maximum number of drafts per row
  std::mt19937 rng{7};

  int Accepted(int num_drafts) {
    int accepted = 0;
    while (accepted < num_drafts &&
           std::uniform_real_distribution<double>()(rng) < acceptance[accepted]) {
      ++accepted;
    }
    return accepted;
  }

  // Runs a step. Returns its draft count.
  int Run(DraftCosts& costs) {
    const int num_drafts =
        costs.Choose({.num_rows = num_rows, .num_drafting = num_rows, .most = most});
    costs.ObserveStep(
        {.num_rows = num_rows, .num_drafts = num_drafts, .us = us.lower_bound(num_drafts)->second});
    for (int row = 0; row < num_rows && num_drafts > 0; ++row) {
      costs.ObserveRow(
          {.num_drafts = num_drafts, .num_accepted = Accepted(num_drafts), .num_rows = num_rows});
    }
    return num_drafts;
  }

  // Runs `num_steps` steps. Returns the number of steps by draft count.
  std::map<int, int> Count(DraftCosts& costs, int num_steps) {
    std::map<int, int> counts;
    for (int i = 0; i < num_steps; ++i) ++counts[Run(costs)];
    return counts;
  }

  // Returns the tokens per second of steps with `num_drafts` drafts.
  double Rate(int num_drafts) const {
    double tokens = 1;
    double all_before = 1;
    for (int i = 0; i < num_drafts; ++i) tokens += all_before *= acceptance[i];
    return 1e6 * num_rows * tokens / us.at(num_drafts);
  }
};

// Step times of SmallModel() with 32 rows on an H200.
const std::map<int, double> kSmallUs32 = {{0, 198}, {1, 380}, {2, 500}, {4, 736}, {8, 1208}};

int Best(const DraftCosts& costs, const Device& device) {
  return costs.Best(
      {.num_rows = device.num_rows, .num_drafting = device.num_rows, .most = device.most});
}

// A model of 6.6 M parameters with a draft model of 1 M: 4.4 tokens per row with 4 drafts, 5.6 with
// 8.
Device SmallModel(int num_rows, std::map<int, double> us) {
  return {.us = std::move(us),
          .acceptance = {0.94, 0.93, 0.92, 0.91, 0.68, 0.68, 0.68, 0.68},
          .num_rows = num_rows};
}

TEST(DraftCostsTest, ChoosesTheDraftCountWithTheHighestThroughput) {
  const std::map<int, double>& small = kSmallUs32;
  const std::map<int, double> large = {{0, 5597}, {1, 5830}, {2, 6190}, {4, 6750}, {8, 8100}};
  const std::map<int, double> bound = {{0, 100}, {1, 190}, {2, 290}, {4, 480}, {8, 900}};
  for (const auto& [us, num_rows] :
       {std::pair(small, 1), {small, 32}, {large, 8}, {large, 32}, {bound, 64}}) {
    Device device = SmallModel(num_rows, us);
    SCOPED_TRACE(testing::Message() << us.at(0) << " us, " << num_rows << " rows");
    int best = 0;
    for (const auto& [number, time] : us) {
      if (device.Rate(number) > device.Rate(best)) best = number;
    }
    DraftCosts costs({1, 2, 4, 8});
    device.Count(costs, 200);
    const int chosen = Best(costs, device);
    EXPECT_GT(device.Rate(chosen), 0.97 * device.Rate(best)) << chosen << " instead of " << best;
    const std::map<int, int> counts = device.Count(costs, 8 * kInterval);
    for (const auto& [number, count] : counts) {
      if (count < kInterval) continue;
      EXPECT_GT(device.Rate(number), 0.97 * device.Rate(best)) << number;
    }
  }
  // With eight drafts, the throughput would be lower than without drafts.
  Device device = SmallModel(32, kSmallUs32);
  ASSERT_LT(device.Rate(8), device.Rate(4));
  DraftCosts costs({1, 2, 4, 8});
  device.Count(costs, 100);
  EXPECT_EQ(Best(costs, device), 4);
}

TEST(DraftCostsTest, MeasuresEachDraftCountInAFewSteps) {
  Device device = SmallModel(32, kSmallUs32);
  DraftCosts costs({1, 2, 4, 8});
  constexpr int kEach =
      1 + DraftCosts::kMinTimes;  // the first step with a new draft count does not count
  for (const int number : {8, 0, 4, 2, 1}) {
    for (int i = 0; i < kEach; ++i) EXPECT_EQ(device.Run(costs), number) << i;
  }
  for (int i = 0; i < 50; ++i) EXPECT_EQ(device.Run(costs), 4) << i;

  // If verification costs little, draft counts between 0 and the largest cannot be better, so they
  // are not measured.
  Device cheap = {.us = {{0, 100}, {1, 102}, {2, 104}, {4, 106}, {8, 110}},
                  .acceptance = std::vector<double>(8, 0.9),
                  .num_rows = 16};
  DraftCosts other({1, 2, 4, 8});
  EXPECT_THAT(cheap.Count(other, 200)[8], Ge(200 - kEach));
}

TEST(DraftCostsTest, ChoosesNoDraftsAtLowAcceptance) {
  for (const int num_rows : {1, 8, 32}) {
    SCOPED_TRACE(num_rows);
    Device device = SmallModel(num_rows, {{0, 100}, {1, 130}, {2, 150}, {4, 190}, {8, 270}});
    device.acceptance = std::vector<double>(8, 0.08);
    DraftCosts costs({1, 2, 4, 8});
    device.Count(costs, 100);
    EXPECT_EQ(Best(costs, device), 0);
    EXPECT_THAT(device.Count(costs, 4 * kInterval)[0],
                Ge(4 * (kInterval - DraftCosts::kProbeSteps) - 20));
  }
}

// Acceptance falls and rises. Checks how many steps the draft count takes to follow.
TEST(DraftCostsTest, DraftCountFollowsAcceptance) {
  struct Change {
    int num_rows;
    int down_steps;
    int up_steps;  // steps have no drafts, so only probes measure acceptance
  };
  for (const Change& change : {Change{1, 100, 6 * kInterval}, Change{8, 60, 4 * kInterval},
                               Change{32, 40, 4 * kInterval}}) {
    SCOPED_TRACE(change.num_rows);
    Device device = SmallModel(change.num_rows, {{0, 100}, {1, 125}, {2, 150}, {4, 190}, {8, 270}});
    const std::vector<double> high = device.acceptance;
    DraftCosts costs({1, 2, 4, 8});
    device.Count(costs, 200);
    EXPECT_GE(Best(costs, device), 4);
    for (int round = 0; round < 3; ++round) {
      device.acceptance = std::vector<double>(8, 0.05);
      device.Count(costs, change.down_steps);
      EXPECT_EQ(Best(costs, device), 0);
      device.acceptance = high;
      device.Count(costs, change.up_steps);
      EXPECT_GE(Best(costs, device), 4);
    }
  }
}

// Probes also find changes of step times.
TEST(DraftCostsTest, DraftCountFollowsStepTimes) {
  Device device = SmallModel(8, {{0, 100}, {1, 125}, {2, 150}, {4, 190}, {8, 500}});
  DraftCosts costs({1, 2, 4, 8});
  device.Count(costs, 200);
  EXPECT_EQ(Best(costs, device), 4);
  device.us = {{0, 100}, {1, 400}, {2, 500}, {4, 700}, {8, 800}};
  device.Count(costs, 40);
  EXPECT_NE(Best(costs, device), 4) << "the times of the current draft count are always recent";
  device.Count(costs, 20 * kInterval);
  EXPECT_EQ(Best(costs, device), 0);
  device.us = {{0, 100}, {1, 105}, {2, 110}, {4, 120}, {8, 130}};
  device.Count(costs, 20 * kInterval);
  EXPECT_EQ(Best(costs, device), 8);
}

TEST(DraftCostsTest, KeepsTheDraftCountIfAnotherIsWithinTheMargin) {
  DraftCosts costs({1, 2});
  Device device = {.us = {{0, 100}, {1, 100}, {2, 145}}, .acceptance = {1, 1}, .most = 2};
  device.Count(costs, 100);  // 2 tokens per 100 us, or 3 tokens per 145 us
  const int chosen = Best(costs, device);
  device.us = {{0, 100}, {1, 100}, {2, 155}};
  int num_changes = 0;
  int last = chosen;
  for (int i = 0; i < 50; ++i) {
    device.us[2] = i % 2 == 0 ? 149.0 : 151.0;
    device.Count(costs, 20);
    num_changes += Best(costs, device) == last ? 0 : 1;
    last = Best(costs, device);
  }
  EXPECT_LE(num_changes, 1);
}

// The host launches one step ahead: the measured time of a step is the time of the next step.
TEST(DraftCostsTest, ToleratesTimesThatBelongToTheNextStep) {
  for (const double drafts_us : {150.0, 250.0}) {
    SCOPED_TRACE(testing::Message() << drafts_us);
    DraftCosts costs({1});
    const DraftableStep step = {.num_rows = 1, .num_drafting = 1, .most = 1};
    int num_drafts = costs.Choose(step);
    for (int i = 0; i < 8 * kInterval; ++i) {
      const int next = costs.Choose(step);
      costs.ObserveStep(
          {.num_rows = 1, .num_drafts = num_drafts, .us = next > 0 ? drafts_us : 100});
      if (num_drafts > 0) costs.ObserveRow({.num_drafts = 1, .num_accepted = 1, .num_rows = 1});
      num_drafts = next;
      if (i <= 100) continue;
      EXPECT_EQ(costs.Best(step), drafts_us < 200 ? 1 : 0) << i;
    }
  }
}

// Runs `num_steps` steps that all have prefill chunks, and rows that may have drafts. Returns the
// number of steps by draft count.
std::map<int, int> CountBesidePrompts(DraftCosts& costs, Device& device, int num_steps) {
  std::map<int, int> counts;
  for (int i = 0; i < num_steps; ++i) {
    const int num_drafts = costs.ChooseBesidePrompts(
        {.num_rows = device.num_rows, .num_drafting = device.num_rows, .most = device.most});
    costs.ObserveOtherStep();
    for (int row = 0; row < device.num_rows && num_drafts > 0; ++row) {
      costs.ObserveRow({.num_drafts = num_drafts,
                        .num_accepted = device.Accepted(num_drafts),
                        .num_rows = device.num_rows});
    }
    ++counts[num_drafts];
  }
  return counts;
}

TEST(DraftCostsTest, ChoosesByAcceptanceIfAllStepsHavePrompts) {
  for (const int num_rows : {1, 8}) {
    SCOPED_TRACE(num_rows);
    Device device = {
        .us = {}, .acceptance = std::vector<double>(4, 0.0), .num_rows = num_rows, .most = 4};
    DraftCosts costs({1, 2, 4});
    EXPECT_THAT(CountBesidePrompts(costs, device, 16 / num_rows),
                ElementsAre(Pair(4, 16 / num_rows)))
        << "acceptance is not known yet";
    EXPECT_THAT(CountBesidePrompts(costs, device, 4 * kInterval),
                ElementsAre(Pair(0, 4 * (kInterval - DraftCosts::kProbeSteps)),
                            Pair(4, 4 * DraftCosts::kProbeSteps)));
    // Probes find that acceptance has risen: 0.9^4 = 0.66. Twelve intervals have 48 probes.
    device.acceptance = std::vector<double>(4, 0.9);
    CountBesidePrompts(costs, device, 12 * kInterval);
    EXPECT_THAT(CountBesidePrompts(costs, device, 100)[4], Ge(95));
  }
  // 0.7^3 = 0.34 and 0.7^4 = 0.24: the fifth draft is reached and accepted too rarely.
  Device device = {.us = {}, .acceptance = {1, 0.7, 0.7, 0.7, 0.7}, .num_rows = 64, .most = 5};
  DraftCosts costs({1, 2, 4, 8});
  CountBesidePrompts(costs, device, 100);
  EXPECT_THAT(CountBesidePrompts(costs, device, 100)[4], Ge(90));
}

// Steps of decodes alternate with steps with prompts. Fewer of the steps of decodes count.
TEST(DraftCostsTest, SomeStepsAfterStepsWithPromptsAreMeasured) {
  for (const double acceptance : {0.0, 0.95}) {
    SCOPED_TRACE(acceptance);
    Device device = {.us = {{0, 100}, {1, 125}, {2, 150}, {4, 190}},
                     .acceptance = std::vector<double>(4, acceptance),
                     .num_rows = 4,
                     .most = 4};
    DraftCosts costs({1, 2, 4});
    for (int i = 0; i < 300; ++i) {
      device.Run(costs);
      costs.ObserveOtherStep();
    }
    const int best = acceptance > 0 ? 4 : 0;
    EXPECT_EQ(Best(costs, device), best);
    EXPECT_THAT(device.Count(costs, 100)[best], Ge(90));
    EXPECT_THAT(CountBesidePrompts(costs, device, 100)[best], Ge(90));
  }
}

TEST(DraftCostsTest, RowCountsAreMeasuredSeparately) {
  DraftCosts costs({1, 2, 4, 8});
  Device cheap = SmallModel(1, {{0, 100}, {1, 105}, {2, 110}, {4, 115}, {8, 120}});
  Device dear = SmallModel(64, {{0, 100}, {1, 400}, {2, 600}, {4, 900}, {8, 1700}});
  for (const int num_rows : {1, 2, 3}) {
    cheap.num_rows = num_rows;
    cheap.Count(costs, 100);
  }
  for (const int num_rows : {64, 127}) {
    dear.num_rows = num_rows;
    dear.Count(costs, 100);
  }
  for (const int num_rows : {1, 2, 3}) {
    cheap.num_rows = num_rows;
    EXPECT_EQ(Best(costs, cheap), 8);
  }
  for (const int num_rows : {64, 100, 127}) {
    dear.num_rows = num_rows;
    EXPECT_EQ(Best(costs, dear), 0);
  }
  dear.num_rows = 200;
  EXPECT_EQ(Best(costs, dear), 8) << "this row count was never measured";
}

// Row counts alternate if, for example, some sequences take part only in every other step
// (TokenMasker).
TEST(DraftCostsTest, AlternatingRowCountsAreMeasured) {
  DraftCosts costs({1, 2, 4, 8});
  Device cheap = SmallModel(1, {{0, 100}, {1, 101}, {2, 102}, {4, 104}, {8, 108}});
  Device dear = SmallModel(2, {{0, 100}, {1, 400}, {2, 600}, {4, 900}, {8, 1700}});
  for (int i = 0; i < 200; ++i) {
    cheap.Run(costs);
    dear.Run(costs);
  }
  EXPECT_EQ(Best(costs, cheap), 8);
  EXPECT_EQ(Best(costs, dear), 0);
  int num_plain = 0;
  for (int i = 0; i < 2 * kInterval; ++i) {
    cheap.Run(costs);
    num_plain += dear.Run(costs) == 0;
  }
  EXPECT_GE(num_plain, 2 * (kInterval - DraftCosts::kProbeSteps));
  // Changes of step times are found, too.
  dear.us = cheap.us;
  for (int i = 0; i < 16 * kInterval; ++i) {
    cheap.Run(costs);
    dear.Run(costs);
  }
  EXPECT_EQ(Best(costs, dear), 8);
}

// The requests limit drafts to fewer than the largest captured draft count. A step takes the time
// of the smallest graph that is sufficient, and generates the tokens of its own draft count.
TEST(DraftCostsTest, RespectsTheMaximumNumberOfDraftsPerRow) {
  for (const int most : {1, 2, 3, 5}) {
    SCOPED_TRACE(most);
    Device device = SmallModel(4, {{0, 100}, {1, 105}, {2, 110}, {4, 115}, {8, 120}});
    device.most = most;
    DraftCosts costs({1, 2, 4, 8});
    for (int i = 0; i < 2 * kInterval; ++i) EXPECT_LE(device.Run(costs), most);
    EXPECT_EQ(Best(costs, device), most);
  }
  DraftCosts costs({1, 2, 4, 8});
  EXPECT_EQ(costs.Choose({.num_rows = 3, .num_drafting = 0, .most = 0}), 0);
  EXPECT_EQ(costs.Best({.num_rows = 3, .num_drafting = 0, .most = 0}), 0);
}

// Rows without drafts are delayed by rows with drafts.
TEST(DraftCostsTest, RowsWithoutDraftsCountInTheThroughput) {
  Device device = SmallModel(16, {{0, 100}, {1, 130}, {2, 160}, {4, 200}, {8, 280}});
  DraftCosts costs({1, 2, 4, 8});
  device.Count(costs, 100);
  EXPECT_GT(costs.Best({.num_rows = 16, .num_drafting = 16, .most = 8}), 0);
  EXPECT_EQ(costs.Best({.num_rows = 16, .num_drafting = 1, .most = 8}), 0);
}

// A few steps that are delayed by other work do not change the median.
TEST(DraftCostsTest, IgnoresAFewLongSteps) {
  DraftCosts costs({4});
  Device device = {.us = {{0, 100}, {4, 120}}, .acceptance = {1, 0, 0, 0}, .most = 4};
  device.Count(costs, 100);
  for (int i = 0; i < DraftCosts::kNumTimes / 2; ++i) {
    costs.ObserveStep({.num_rows = 1, .num_drafts = 4, .us = 1e9});
  }
  EXPECT_EQ(Best(costs, device), 4);
  costs.ObserveStep({.num_rows = 1, .num_drafts = 4, .us = 1e9});
  EXPECT_EQ(Best(costs, device), 0);
}

TEST(DraftCostsTest, IgnoresTimesThatAreNotPositive) {
  DraftCosts costs({4});
  for (int i = 0; i < 100; ++i) {
    for (const double us : {0.0, -5.0, kNan}) {
      costs.ObserveStep({.num_rows = 1, .num_drafts = 4, .us = us});
      costs.ObserveStep({.num_rows = 1, .num_drafts = 4, .us = us});
      costs.ObserveStep({.num_rows = 1, .us = us});
      costs.ObserveStep({.num_rows = 1, .us = us});
    }
    costs.ObserveRow({.num_drafts = 4, .num_accepted = 0, .num_rows = 1});
  }
  EXPECT_EQ(costs.Choose({.num_rows = 1, .num_drafting = 1, .most = 4}), 4)
      << "no time is measured";
}

// Acceptance is an average over many rows: a few rows with wrong drafts do not change the draft
// count.
TEST(DraftCostsTest, IgnoresAFewStepsWithoutAcceptedDrafts) {
  DraftCosts costs({4});
  Device device = {.us = {{0, 100}, {4, 120}}, .acceptance = {1, 1, 0, 0}, .most = 4};
  device.Count(costs, 50);
  device.acceptance = {0, 0, 0, 0};
  device.Count(costs, 10);
  EXPECT_EQ(Best(costs, device), 4);
  device.Count(costs, 80);
  EXPECT_EQ(Best(costs, device), 0);
}

TEST(DraftCostsTest, AcceptanceIsPerDraftPosition) {
  DraftCosts costs({4});
  for (int i = 0; i < 4000; ++i) {
    costs.ObserveRow({.num_drafts = 3, .num_accepted = i % 4 == 0 ? 0 : 2, .num_rows = 1});
  }
  EXPECT_NEAR(costs.acceptance(0), 0.75, 0.05);
  EXPECT_NEAR(costs.acceptance(1), 1, 1e-9);
  EXPECT_NEAR(costs.acceptance(2), 0, 1e-9);
  EXPECT_NEAR(costs.acceptance(3), 0, 1e-9) << "equal to the last known position";
  EXPECT_EQ(DraftCosts({4}).acceptance(2), 1);
}

}  // namespace
}  // namespace reprise
