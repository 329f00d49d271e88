#include "reprise/runner/trace/device_spans.h"

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "reprise/base/testing/allocation_counter.h"

namespace reprise {
namespace {

using nlohmann::json;

constexpr GraphDecision kReplay = {.kind = GraphDecision::Kind::kReplay,
                                   .reason = EagerReason::kNone,
                                   .key = {.padded_num_seqs = 4, .padded_num_tokens = 4}};

// A device whose clock the test sets, and which can refuse to report times.
struct FakeDevice {
  double now_ns = 5e9;  // unrelated to the host's clock
  bool tells = true;
};

class FakeTimer : public DeviceTimer {
 public:
  FakeTimer(FakeDevice* device, int num_marks) : device_(device), marks_(num_marks) {}
  void Mark(int mark) override { marks_.at(mark) = device_->now_ns; }
  absl::StatusOr<double> NsBetween(int from, int to) override {
    if (!device_->tells || !marks_.at(from) || !marks_.at(to)) {
      return absl::FailedPreconditionError("not set");
    }
    return *marks_.at(to) - *marks_.at(from);
  }

 private:
  FakeDevice* device_;
  std::vector<std::optional<double>> marks_;
};

struct Span {
  std::string name;
  int step = 0;
  double begin_us = 0;
  double us = 0;
};

class DeviceSpansTest : public testing::Test {
 protected:
  static constexpr int kNumOutputs = 3;

  // Launches a step after a pause. All its parts except the encoder run: for 1, 20 and 3 us.
  void Launch(int64_t step, double pause_us) {
    const int output = static_cast<int>(step % kNumOutputs);
    device_.now_ns += 1e3 * pause_us;
    spans_.Begin(output);
    device_.now_ns += 1e3;
    spans_.End(output, DevicePart::kRefill);
    device_.now_ns += 20e3;
    spans_.End(output, DevicePart::kForward);
    device_.now_ns += 3e3;
    spans_.End(output, DevicePart::kSample);
  }
  void Collect(int64_t step) {
    spans_.Collect(static_cast<int>(step % kNumOutputs), step, kReplay);
  }
  std::vector<Span> Spans() const {
    std::vector<Span> spans;
    const json trace = json::parse(trace_.ToJson());
    for (const json& event : trace.at("traceEvents")) {
      if (event.at("ph") != "X") continue;
      EXPECT_EQ(event.at("tid"), 2);
      spans.push_back(
          {event.at("name"), event.at("args").at("step"), event.at("ts"), event.at("dur")});
    }
    return spans;
  }
  static void Sleep(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

  StepTrace trace_;
  FakeDevice device_;
  DeviceSpans spans_{&trace_,
                     std::make_unique<FakeTimer>(&device_, DeviceSpans::NumMarks(kNumOutputs)),
                     kNumOutputs};
};

TEST_F(DeviceSpansTest, PartsFollowEachOtherAndTheForwardPassHasItsKey) {
  const double before_us = trace_.now_ns() / 1e3;
  Launch(0, 0);
  Sleep(1);
  Collect(0);
  const std::vector<Span> spans = Spans();
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[0].name, "refill");
  EXPECT_EQ(spans[1].name, "replay");
  EXPECT_EQ(spans[2].name, "sample");
  EXPECT_NEAR(spans[0].us, 1, 2e-3);
  EXPECT_NEAR(spans[1].us, 20, 2e-3);
  EXPECT_NEAR(spans[2].us, 3, 2e-3);
  EXPECT_NEAR(spans[1].begin_us, spans[0].begin_us + 1, 2e-3);
  EXPECT_NEAR(spans[2].begin_us, spans[1].begin_us + 20, 2e-3);
  EXPECT_GE(spans[0].begin_us, before_us);
  EXPECT_LE(spans[2].begin_us + 3, trace_.now_ns() / 1e3);
  EXPECT_NE(trace_.ToJson().find(ToString(kReplay.key)), std::string::npos);
}

TEST_F(DeviceSpansTest, StepsKeepTheRelativeTimesOfTheDevice) {
  Launch(0, 0);
  Launch(1, 7);
  Launch(2, 50);
  Sleep(1);
  for (int step = 0; step < 3; ++step) Collect(step);
  const std::vector<Span> spans = Spans();
  ASSERT_EQ(spans.size(), 9u);
  EXPECT_NEAR(spans[3].begin_us - spans[0].begin_us, 24 + 7, 0.01);
  EXPECT_NEAR(spans[6].begin_us - spans[3].begin_us, 24 + 50, 0.01);
}

TEST_F(DeviceSpansTest, StepsLieBetweenLaunchAndCompletion) {
  double launched_us = 0;
  for (int step = 0; step < 20; ++step) {
    Sleep(step % 3);
    launched_us = trace_.now_ns() / 1e3;
    // The device reports a pause of 1 s, or none, whatever the host's clock reports.
    Launch(step, step % 2 == 0 ? 1e6 : 0);
    Sleep(1);
    Collect(step);
    const std::vector<Span> spans = Spans();
    ASSERT_EQ(spans.size(), 3u * (step + 1));
    EXPECT_GE(spans[3 * step].begin_us, launched_us - 0.01) << step;
    EXPECT_LE(spans[3 * step + 2].begin_us + 3, trace_.now_ns() / 1e3 + 0.01) << step;
    if (step > 0) {
      const Span& before = spans[3 * step - 1];
      EXPECT_GE(spans[3 * step].begin_us, before.begin_us + before.us - 0.01);
    }
  }
}

TEST_F(DeviceSpansTest, StepHasOnlyTheSpansOfItsParts) {
  spans_.Begin(0);
  device_.now_ns += 2e3;
  spans_.End(0, DevicePart::kRefill);
  device_.now_ns += 5e3;
  spans_.End(0, DevicePart::kEncode);  // then the step fails
  Sleep(1);
  Collect(0);
  // Marks of the previous step with this output must not count.
  spans_.Begin(0);
  device_.now_ns += 4e3;
  spans_.End(0, DevicePart::kRefill);
  Sleep(1);
  spans_.Collect(0, 3, kReplay);
  const std::vector<Span> spans = Spans();
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[0].name, "refill");
  EXPECT_EQ(spans[1].name, "encode");
  EXPECT_NEAR(spans[1].us, 5, 2e-3);
  EXPECT_EQ(spans[2].name, "refill");
  EXPECT_EQ(spans[2].step, 3);
  EXPECT_NEAR(spans[2].us, 4, 2e-3);
}

TEST_F(DeviceSpansTest, StepsWithoutDeviceTimesHaveNoSpans) {
  for (int step = 0; step < 3; ++step) {
    device_.tells = step != 1;
    Launch(step, 0);
    Sleep(1);
    Collect(step);
  }
  std::map<int, int> counts;
  for (const Span& span : Spans()) ++counts[span.step];
  EXPECT_EQ(counts, (std::map<int, int>{{0, 3}, {2, 3}}));
}

TEST_F(DeviceSpansTest, AllocatesNothing) {
  Launch(0, 0);
  Collect(0);
  AllocationCounter allocations;
  for (int step = 1; step < 50; ++step) {
    Launch(step, 1);
    Collect(step);
  }
  EXPECT_EQ(allocations.count(), 0);
  EXPECT_EQ(trace_.num_events(), 150);
}

}  // namespace
}  // namespace reprise
