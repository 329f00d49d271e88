// Fails one allocation at a time: a tensor on the CPU, mapped memory or a fence. Creation returns a
// Status, a failed step ends only its own sequences, and later requests are not affected.

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/engine/create_engine.h"
#include "reprise/runner/device/device_driver.h"
#include "reprise/runner/testing/forwarding_driver.h"
#include "reprise/runner/testing/toy_model.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

// Replaces LibTorch's CPU allocator during its lifetime. Fails one allocation on request.
class FailingAllocator final : public c10::Allocator {
 public:
  FailingAllocator() : allocator_(c10::GetAllocator(c10::kCPU)) {
    c10::SetAllocator(c10::kCPU, this, kPriority);
  }
  ~FailingAllocator() override { c10::SetAllocator(c10::kCPU, allocator_, kPriority); }

  // Fails the allocation after the next `count` allocations. -1: no failure.
  void FailAfter(int count) {
    num_left_ = count;
    has_failed_ = false;
  }
  bool has_failed() const { return has_failed_; }

  c10::DataPtr allocate(size_t bytes) override {
    if (num_left_ >= 0 && num_left_-- == 0) {
      has_failed_ = true;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "no memory for ", bytes, " bytes");
    }
    return allocator_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return allocator_->raw_deleter(); }
  void copy_data(void* dest, const void* src, size_t count) const override {
    default_copy_data(dest, src, count);
  }

 private:
  static constexpr uint8_t kPriority = 255;
  c10::Allocator* allocator_;
  int num_left_ = -1;
  bool has_failed_ = false;
};

constexpr int kVocab = 61;

ModelEngineOptions Options(GraphSetOptions::Mode graphs) {
  return {.runner = {.max_num_seqs = 3,
                     .max_num_tokens = 12,
                     .max_steps_in_flight = 2,
                     .cache = {.block_size = 4, .size = NumBlocks{30}},
                     .graphs = {.mode = graphs}}};
}

std::vector<Request> Requests() {
  return {{.prompt = {5, 6, 7}, .max_new_tokens = 6},
          {.prompt = {9}, .max_new_tokens = 9},
          {.prompt = {1, 2, 3, 4, 5, 6, 7, 8}, .max_new_tokens = 4},
          {.prompt = {11, 12}, .max_new_tokens = 5}};
}

struct Answer {
  std::vector<int32_t> tokens;
  absl::Status error;
};

// Runs the requests and returns their answers in order. The allocation after `num_allocations`
// allocations fails; -1: none.
std::vector<Answer> RunAll(Engine& engine, FailingAllocator& allocator, int num_allocations) {
  std::map<SequenceId, Answer> answers;
  for (const Request& request : Requests()) {
    const auto id = engine.Add(request);
    EXPECT_TRUE(id.ok()) << id.status();
    answers[*id] = {};
  }
  allocator.FailAfter(num_allocations);
  std::vector<TokenEvent> events;
  while (engine.has_work()) {
    events.clear();
    const absl::Status status = engine.Step(events);
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) break;
    engine.scheduler().CheckInvariants();
    for (const TokenEvent& event : events) {
      Answer& answer = answers[event.sequence];
      if (event.token.has_value()) answer.tokens.push_back(*event.token);
      answer.error.Update(event.error);
    }
  }
  allocator.FailAfter(-1);
  std::vector<Answer> result;
  for (auto& [id, answer] : answers) result.push_back(std::move(answer));
  return result;
}

TEST(AllocationFailureTest, CreateReturnsAStatusIfAnyAllocationFails) {
  ToyModel model({.vocab_size = kVocab, .max_position = 64});
  FailingAllocator allocator;
  int num_failures = 0;
  for (int i = 0; i < 10000; ++i) {
    allocator.FailAfter(i);
    const auto engine = CreateEngine(&model, Options(GraphSetOptions::Mode::kEager));
    const bool has_failed = allocator.has_failed();
    allocator.FailAfter(-1);
    ASSERT_EQ(engine.ok(), !has_failed) << "allocation " << i << ": " << engine.status();
    if (!has_failed) break;
    EXPECT_THAT(engine.status().message(), HasSubstr("no memory for")) << i;
    ++num_failures;
  }
  EXPECT_GT(num_failures, 10);
}

// A driver that fails one call: the call after `*num_left` calls of AllocateMapped() and
// MakeFence().
class NothingLeft final : public ForwardingDriver {
 public:
  NothingLeft(std::unique_ptr<DeviceDriver> driver, int* num_left)
      : ForwardingDriver(std::move(driver)), num_left_(num_left) {}
  absl::StatusOr<MappedBuffer> AllocateMapped(int64_t bytes) override {
    if ((*num_left_)-- == 0) return absl::ResourceExhaustedError("no mapped memory");
    return ForwardingDriver::AllocateMapped(bytes);
  }
  absl::StatusOr<std::unique_ptr<Fence>> MakeFence() override {
    if ((*num_left_)-- == 0) return absl::ResourceExhaustedError("no fence");
    return ForwardingDriver::MakeFence();
  }

 private:
  int* num_left_;
};

TEST(AllocationFailureTest, RunnerCreateReturnsTheStatusOfTheDriver) {
  ToyModel model({.vocab_size = kVocab, .max_position = 64});
  int num_failures = 0;
  for (int i = 0;; ++i) {
    ASSERT_LT(i, 10000);
    int num_left = i;
    auto driver = MakeDeviceDriver(c10::kCPU, {});
    ASSERT_TRUE(driver.ok());
    const auto runner =
        ModelRunner::Create(&model, Options(GraphSetOptions::Mode::kLazy).runner,
                            std::make_unique<NothingLeft>(*std::move(driver), &num_left));
    ASSERT_EQ(runner.ok(), num_left >= 0) << i << ": " << runner.status();
    if (runner.ok()) break;
    EXPECT_EQ(runner.status().code(), absl::StatusCode::kResourceExhausted) << i;
    ++num_failures;
  }
  EXPECT_GT(num_failures, 5);
}

TEST(AllocationFailureTest, OutOfMemoryInAStepFailsOnlyItsSequences) {
  ToyModel model({.vocab_size = kVocab, .max_position = 64});
  FailingAllocator allocator;
  for (const auto graphs : {GraphSetOptions::Mode::kOff, GraphSetOptions::Mode::kLazy}) {
    std::vector<Answer> expected;
    {
      const auto engine = CreateEngine(&model, Options(graphs));
      ASSERT_TRUE(engine.ok()) << engine.status();
      expected = RunAll(**engine, allocator, -1);
    }
    const auto engine = CreateEngine(&model, Options(graphs));
    ASSERT_TRUE(engine.ok()) << engine.status();
    int num_runs = 0;
    for (int i = 0;; i += 1 + i / 8) {
      ASSERT_LT(i, 100000);
      const std::vector<Answer> answers = RunAll(**engine, allocator, i);
      int num_errors = 0;
      for (size_t r = 0; r < answers.size(); ++r) {
        if (answers[r].error.ok()) {
          EXPECT_EQ(answers[r].tokens, expected[r].tokens) << "allocation " << i;
          continue;
        }
        ++num_errors;
        EXPECT_THAT(answers[r].error.message(), HasSubstr("no memory for"));
        // The tokens before the failure are correct.
        ASSERT_LE(answers[r].tokens.size(), expected[r].tokens.size());
        EXPECT_TRUE(std::equal(answers[r].tokens.begin(), answers[r].tokens.end(),
                               expected[r].tokens.begin()))
            << "allocation " << i;
      }
      if (num_errors == 0) break;
      ++num_runs;
      EXPECT_EQ((*engine)->metrics().num_blocks_used, 0);
    }
    EXPECT_GT(num_runs, 20);
  }
}

}  // namespace
}  // namespace reprise
