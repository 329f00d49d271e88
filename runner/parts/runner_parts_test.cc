#include "reprise/runner/parts/runner_parts.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A part without roles.
class InertPart : public StepPart {
 public:
  int64_t bytes() const override { return 5; }
  void AddTo(Fingerprint& fingerprint) const override { fingerprint.AddValue("inert", 1); }
};

// A part with all roles. SetCache(), FillRefill() and Check() append their names to a log.
class LoggingPart final : public StepPart,
                          public BatchInput,
                          public StepStage,
                          public TokenChooser {
 public:
  LoggingPart(std::string name, std::vector<std::string>* log)
      : name_(std::move(name)), log_(*log) {}

  int64_t bytes() const override { return 100; }
  void AddTo(Fingerprint& fingerprint) const override { fingerprint.AddValue(name_, 1); }
  absl::Status SetCache() override {
    log_.push_back(name_ + " cache");
    return cache_status;
  }
  void FillRefill(const StepPlan&, RefillArgs&) const override {
    log_.push_back(name_ + " refill");
  }
  BatchInput* slot_input() override { return this; }
  BatchInput* step_input() override { return this; }
  StepStage* stage() override { return this; }
  TokenChooser* chooser() override { return this; }

  absl::Status Check(const ScheduledBatch&) const override {
    log_.push_back(name_ + " check");
    return check_status;
  }
  absl::Status Apply(const ScheduledBatch&, const StepPlan&) override { return absl::OkStatus(); }
  bool Serves(const StepPlan&) const override { return true; }
  absl::Status Choose(const StepPlan&, const LogitsStep&, int32_t*) override {
    return absl::OkStatus();
  }

  absl::Status cache_status;
  absl::Status check_status;

 private:
  std::string name_;
  std::vector<std::string>& log_;
};

class RunnerPartsTest : public testing::Test {
 protected:
  LoggingPart* Add(const std::string& name) {
    auto part = std::make_unique<LoggingPart>(name, &log_);
    LoggingPart* const added = part.get();
    parts_.Add(std::move(part));
    return added;
  }

  std::vector<std::string> log_;
  RunnerParts parts_;
};

TEST_F(RunnerPartsTest, IsEmptyAtFirst) {
  EXPECT_THAT(parts_.all(), IsEmpty());
  EXPECT_EQ(parts_.bytes(), 0);
  EXPECT_EQ(parts_.Check({}), absl::OkStatus());
  EXPECT_EQ(parts_.SetCache(), absl::OkStatus());
}

TEST_F(RunnerPartsTest, IgnoresNull) {
  parts_.Add(nullptr);
  EXPECT_THAT(parts_.all(), IsEmpty());
}

TEST_F(RunnerPartsTest, AddsOnlyTheRolesThatAPartHas) {
  parts_.Add(std::make_unique<InertPart>());
  LoggingPart* const part = Add("a");
  EXPECT_THAT(parts_.all(), SizeIs(2));
  EXPECT_THAT(parts_.slot_inputs(), ElementsAre(part));
  EXPECT_THAT(parts_.step_inputs(), ElementsAre(part));
  EXPECT_THAT(parts_.stages(), ElementsAre(part));
  EXPECT_THAT(parts_.choosers(), ElementsAre(part));
  EXPECT_EQ(parts_.bytes(), 105);
}

TEST_F(RunnerPartsTest, CallsThePartsInTheOrderOfTheList) {
  Add("a");
  Add("b");
  RefillArgs args;
  parts_.FillRefill({}, args);
  EXPECT_EQ(parts_.SetCache(), absl::OkStatus());
  EXPECT_EQ(parts_.Check({}), absl::OkStatus());
  // Once as a slot input, and once as a step input.
  EXPECT_THAT(log_, ElementsAre("a refill", "b refill", "a cache", "b cache", "a check", "b check",
                                "a check", "b check"));
}

TEST_F(RunnerPartsTest, StopsAtTheFirstPartThatRejects) {
  Add("a")->check_status = absl::InvalidArgumentError("no");
  Add("b")->check_status = absl::InternalError("never asked");
  EXPECT_EQ(parts_.Check({}), absl::InvalidArgumentError("no"));
  EXPECT_THAT(log_, ElementsAre("a check"));
}

TEST_F(RunnerPartsTest, StopsAtTheFirstPartThatHasNoMemory) {
  Add("a")->cache_status = absl::ResourceExhaustedError("full");
  Add("b");
  EXPECT_EQ(parts_.SetCache(), absl::ResourceExhaustedError("full"));
  EXPECT_THAT(log_, ElementsAre("a cache"));
}

}  // namespace
}  // namespace reprise
