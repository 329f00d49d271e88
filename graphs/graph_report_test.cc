#include "reprise/graphs/graph_report.h"

#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/allocation_counter.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

GraphKey Key(int num_seqs, int query_len = 1) {
  return {.padded_num_seqs = num_seqs,
          .padded_num_tokens = num_seqs * query_len,
          .max_query_len = query_len};
}

std::map<std::string, double> FieldsOf(const GraphReport& report) {
  std::map<std::string, double> fields;
  for (const ReportField& field : report.Fields()) {
    EXPECT_TRUE(fields.emplace(field.name, field.value).second) << field.name;
  }
  return fields;
}

TEST(GraphReportTest, StartsAtZero) {
  const GraphReport report;
  EXPECT_TRUE(report.graphs().empty());
  EXPECT_EQ(report.num_steps(), 0);
  EXPECT_EQ(report.graph_bytes(), 0);
  EXPECT_EQ(report.Find(Key(1)), nullptr);
  for (const auto& [name, value] : FieldsOf(report)) EXPECT_EQ(value, 0) << name;
}

TEST(GraphReportTest, KeepsTheCostOfEachGraphInCaptureOrder) {
  GraphReport report;
  report.AddGraph(Key(16), {.pool = 3 << 20, .driver = 1 << 20}, 12.5);
  report.AddGraph(Key(8), {.pool = 0, .driver = 1 << 20}, 2.5);
  ASSERT_EQ(report.graphs().size(), 2u);
  EXPECT_EQ(report.graphs()[0].key, Key(16));
  EXPECT_EQ(report.graphs()[1].key, Key(8));
  EXPECT_EQ(report.Find(Key(16))->bytes.total(), 4 << 20);
  EXPECT_EQ(report.graph_bytes(), 5 << 20);
  EXPECT_EQ(report.capture_ms(), 15.0);
}

TEST(GraphReportTest, CountsEachStepAsReplayOrAsEagerWithOneReason) {
  GraphReport report;
  report.AddGraph(Key(16), {}, 0);
  report.AddReplay(Key(16), 13);                           // 3 padded
  report.AddReplay(Key(16), 16);                           // no padding
  report.AddEagerStep(EagerReason::kTooManySeqs, 17, 17);  // no padding
  report.AddEagerStep(EagerReason::kDisabled, 5, 8);       // 3 padded
  report.AddEagerStep(EagerReason::kDisabled, 8, 8);       // no padding
  EXPECT_EQ(report.num_replays(), 2);
  EXPECT_EQ(report.num_eager_steps(), 3);
  EXPECT_EQ(report.num_eager_steps(EagerReason::kDisabled), 2);
  EXPECT_EQ(report.num_eager_steps(EagerReason::kTooManySeqs), 1);
  EXPECT_EQ(report.num_eager_steps(EagerReason::kOverBudget), 0);
  EXPECT_EQ(report.num_steps(), 5);
  EXPECT_EQ(report.live_rows(), 13 + 16 + 17 + 5 + 8);
  EXPECT_EQ(report.padded_rows(), 3 + 3);
  EXPECT_EQ(report.Find(Key(16))->num_replays, 2);
  EXPECT_EQ(report.Find(Key(16))->live_rows, 29);
  EXPECT_EQ(report.Find(Key(16))->padded_rows, 3);
}

TEST(GraphReportTest, FieldsNameEveryReasonAndAddUp) {
  GraphReport report;
  report.AddGraph(Key(4), {.pool = 100, .driver = 20}, 1.5);
  report.AddReplay(Key(4), 3);
  for (int i = 1; i < kNumEagerReasons; ++i) {
    report.AddEagerStep(static_cast<EagerReason>(i), i, i);  // i rows for reason i
  }
  const std::map<std::string, double> fields = FieldsOf(report);
  EXPECT_EQ(fields.at("graphs"), 1);
  EXPECT_EQ(fields.at("graph_bytes"), 120);
  EXPECT_EQ(fields.at("graph_capture_ms"), 1.5);
  EXPECT_EQ(fields.at("graph_replays"), 1);
  EXPECT_EQ(fields.at("live_rows"), 3 + kNumEagerReasons * (kNumEagerReasons - 1) / 2);
  EXPECT_EQ(fields.at("padded_rows"), 1);
  EXPECT_EQ(fields.at("eager_steps"), kNumEagerReasons - 1);
  EXPECT_EQ(fields.at("eager_steps_too_many_sequences"), 1);
  EXPECT_EQ(fields.size(), 7u + kNumEagerReasons - 1);
  for (const auto& [name, value] : fields) {
    EXPECT_THAT(name, Not(HasSubstr(" ")));  // a JSON key that queries need not quote
  }
}

TEST(GraphReportTest, TableHasOneLinePerGraphTotalsAndTheReasonsThatOccurred) {
  GraphReport report;
  report.AddGraph(Key(16, 5), {.pool = 1 << 20, .driver = 1 << 19}, 7.25);
  report.AddReplay(Key(16, 5), 10);
  report.AddEagerStep(EagerReason::kQueryTooLong, 1, 1);
  const std::string table = report.ToString();
  EXPECT_THAT(table, HasSubstr("16 seqs x 5, tokens"));
  EXPECT_THAT(table, HasSubstr("1.50"));  // MiB
  EXPECT_THAT(table, HasSubstr("all, 1 eager steps"));
  EXPECT_THAT(table, HasSubstr("query too long"));
  EXPECT_THAT(table, Not(HasSubstr("over memory budget")));
}

TEST(GraphReportTest, ACopyIsASnapshot) {
  GraphReport report;
  report.AddGraph(Key(2), {}, 0);
  const GraphReport before = report;
  report.AddReplay(Key(2), 1);
  EXPECT_EQ(before.num_replays(), 0);
  EXPECT_EQ(report.num_replays(), 1);
}

TEST(GraphReportTest, CountingAStepAllocatesNothing) {
  GraphReport report;
  for (int size = 1; size <= 64; ++size) report.AddGraph(Key(size), {}, 0);
  AllocationCounter allocations;
  report.AddReplay(Key(17), 16);
  report.AddEagerStep(EagerReason::kQueryTooLong, 3, 3);
  EXPECT_EQ(allocations.count(), 0);
}

TEST(GraphReportDeathTest, DiesOnImpossibleCounts) {
  GraphReport report;
  report.AddGraph(Key(4), {}, 0);
  EXPECT_DEATH(report.AddGraph(Key(4), {}, 0), "recorded twice: 4 seqs x 1, tokens");
  EXPECT_DEATH(report.AddReplay(Key(8), 1), "never captured: 8 seqs x 1, tokens");
  EXPECT_DEATH(report.AddReplay(Key(4), 5), "5 vs. 4");
  EXPECT_DEATH(report.AddReplay(Key(4), -1), "-1 vs. 0");
  EXPECT_DEATH(report.AddEagerStep(EagerReason::kNone, 1, 1), "must have a reason");
  EXPECT_DEATH(report.AddEagerStep(EagerReason::kDisabled, 2, 1), "2 vs. 1");
}

}  // namespace
}  // namespace reprise
