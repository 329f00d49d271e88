#include "reprise/runner/trace/step_trace.h"

#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "reprise/base/testing/allocation_counter.h"

namespace reprise {
namespace {

using nlohmann::json;

constexpr GraphKey kKey = {.padded_num_seqs = 4, .padded_num_tokens = 4};

// Returns spans and counters, without metadata events.
std::vector<json> EventsOf(const StepTrace& trace) {
  const json parsed = json::parse(trace.ToJson());
  std::vector<json> events;
  for (const json& event : parsed.at("traceEvents")) {
    if (event.at("ph") != "M") events.push_back(event);
  }
  return events;
}

std::vector<std::string> NamesOf(const std::vector<json>& events) {
  std::vector<std::string> names;
  for (const json& event : events) names.push_back(event.at("name"));
  return names;
}

TEST(StepTraceTest, EmptyTraceIsValidJson) {
  EXPECT_TRUE(EventsOf(StepTrace()).empty());
  EXPECT_EQ(StepTrace().num_events(), 0);
}

TEST(StepTraceTest, OuterSpansPrecedeInnerSpans) {
  StepTrace trace;
  {
    const StepTrace::Span launch(&trace, "launch", 7);
    { const StepTrace::Span plan(&trace, "plan", 7); }
    {
      StepTrace::Span forward(&trace, "forward", 7);
      forward.SetDecision({.kind = GraphDecision::Kind::kReplay, .key = kKey});
    }
  }
  { const StepTrace::Span await(&trace, "await", 7); }
  const std::vector<json> events = EventsOf(trace);
  ASSERT_THAT(NamesOf(events), testing::ElementsAre("launch", "plan", "replay", "await"));
  const auto begin = [&](int i) { return events[i].at("ts").get<double>(); };
  const auto end = [&](int i) { return begin(i) + events[i].at("dur").get<double>(); };
  const double rounding = 0.002;
  for (const int inner : {1, 2}) {
    EXPECT_GE(begin(inner), begin(0));
    EXPECT_LE(end(inner), end(0) + rounding);
  }
  EXPECT_LE(end(1), begin(2) + rounding);
  EXPECT_LE(end(0), begin(3) + rounding);
  for (const json& event : events) {
    EXPECT_EQ(event.at("ph"), "X");
    EXPECT_EQ(event.at("pid"), 1);
    EXPECT_EQ(event.at("tid"), 1);
    EXPECT_EQ(event.at("args").at("step"), 7);
  }
  EXPECT_EQ(events[2].at("args").at("key"), ToString(kKey));
  EXPECT_FALSE(events[2].at("args").contains("reason"));
}

TEST(StepTraceTest, DeviceSpansHaveASeparateTrack) {
  StepTrace trace;
  const int64_t now = trace.now_ns();
  trace.AddDeviceSpan("forward", 3, now + 5000, now + 7500,
                      GraphDecision{.kind = GraphDecision::Kind::kReplay, .key = kKey});
  trace.AddDeviceSpan("refill", 3, now + 4000, now + 5000);
  const std::vector<json> events = EventsOf(trace);
  ASSERT_THAT(NamesOf(events), testing::ElementsAre("refill", "replay"));
  for (const json& event : events) EXPECT_EQ(event.at("tid"), 2);
  EXPECT_NEAR(events[1].at("dur").get<double>(), 2.5, 1e-9);
  EXPECT_NEAR(events[1].at("ts").get<double>(), (now + 5000) / 1e3, 2e-3);
  EXPECT_EQ(events[1].at("args").at("key"), ToString(kKey));
  std::vector<std::string> tracks;
  const json parsed = json::parse(trace.ToJson());
  for (const json& event : parsed.at("traceEvents")) {
    if (event.at("name") == "thread_name") tracks.push_back(event.at("args").at("name"));
  }
  EXPECT_THAT(tracks, testing::ElementsAre("host", "device"));
}

TEST(StepTraceTest, EagerStepHasItsReason) {
  StepTrace trace;
  for (int reason = 1; reason < kNumEagerReasons; ++reason) {
    StepTrace::Span span(&trace, "forward", reason);
    span.SetDecision({.kind = GraphDecision::Kind::kEager,
                      .reason = static_cast<EagerReason>(reason),
                      .key = kKey});
  }
  { const StepTrace::Span failed(&trace, "forward", 99); }
  const std::vector<json> events = EventsOf(trace);
  ASSERT_EQ(events.size(), static_cast<size_t>(kNumEagerReasons));
  std::set<std::string> reasons;
  for (int i = 0; i + 1 < kNumEagerReasons; ++i) {
    EXPECT_EQ(events[i].at("name"), "eager");
    reasons.insert(events[i].at("args").at("reason").get<std::string>());
  }
  EXPECT_EQ(reasons.size(), static_cast<size_t>(kNumEagerReasons) - 1);
  EXPECT_TRUE(reasons.contains("query too long"));
  EXPECT_EQ(events.back().at("name"), "forward");
}

TEST(StepTraceTest, CountsBecomeTwoCounters) {
  StepTrace trace;
  trace.AddCounts({.num_seqs = 3, .num_tokens = 20},
                  {.padded_num_seqs = 8, .padded_num_tokens = 64});
  const std::vector<json> events = EventsOf(trace);
  ASSERT_THAT(NamesOf(events), testing::ElementsAre("rows", "tokens"));
  EXPECT_EQ(events[0].at("ph"), "C");
  EXPECT_EQ(events[0].at("args"), (json{{"live", 3}, {"padding", 5}}));
  EXPECT_EQ(events[1].at("args"), (json{{"live", 20}, {"padding", 44}}));
}

TEST(StepTraceTest, KeepsTheNewestEvents) {
  StepTrace trace(/*capacity=*/3);
  for (int step = 0; step < 10; ++step) {
    const StepTrace::Span span(&trace, "launch", step);
  }
  EXPECT_EQ(trace.num_events(), 3);
  EXPECT_EQ(trace.num_dropped(), 7);
  const std::vector<json> events = EventsOf(trace);
  ASSERT_EQ(events.size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(events[i].at("args").at("step"), 7 + i);
}

TEST(StepTraceTest, TimesAscend) {
  StepTrace trace;
  for (int step = 0; step < 50; ++step) {
    const StepTrace::Span outer(&trace, "outer", step);
    const StepTrace::Span inner(&trace, "inner", step);
    trace.AddCounts({.num_seqs = 1}, kKey);
  }
  double last = 0;
  for (const json& event : EventsOf(trace)) {
    EXPECT_GE(event.at("ts").get<double>(), last);
    last = event.at("ts").get<double>();
  }
  EXPECT_GT(last, 0);
}

TEST(StepTraceTest, AddingEventsAllocatesNothingAndWithoutATraceDoesNothing) {
  StepTrace trace(/*capacity=*/16);
  AllocationCounter allocations;
  for (int step = 0; step < 40; ++step) {
    for (StepTrace* to : {&trace, static_cast<StepTrace*>(nullptr)}) {
      StepTrace::Span span(to, "launch", step);
      span.SetDecision({.kind = GraphDecision::Kind::kReplay, .key = kKey});
    }
    trace.AddCounts({.num_seqs = 1}, kKey);
  }
  EXPECT_EQ(allocations.count(), 0);
  EXPECT_EQ(trace.num_events(), 16);
  EXPECT_EQ(trace.num_dropped(), 64);
}

}  // namespace
}  // namespace reprise
