#include "reprise/graphs/recorded_backend.h"

#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/allocation_counter.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<CapturedGraph> Captured(GraphBackend& backend, std::function<absl::Status()> step) {
  absl::StatusOr<std::unique_ptr<CapturedGraph>> graph = backend.Capture(std::move(step));
  EXPECT_TRUE(graph.ok()) << graph.status();
  return graph.ok() ? *std::move(graph) : nullptr;
}

TEST(RecordedBackendTest, RunsTheCallOnceAsWarmUpAndOncePerReplay) {
  const auto backend = MakeRecordedBackend();
  int num_runs = 0;
  const auto graph = Captured(*backend, [&] {
    ++num_runs;
    return absl::OkStatus();
  });
  EXPECT_EQ(num_runs, 1);
  EXPECT_TRUE(graph->Replay().ok());
  EXPECT_TRUE(graph->Replay().ok());
  EXPECT_EQ(num_runs, 3);
}

TEST(RecordedBackendTest, WorkBetweenGraphsRunsInOrder) {
  const auto backend = MakeRecordedBackend();
  std::vector<int> order;
  const auto note = [&order](int what) {
    order.push_back(what);
    return absl::OkStatus();
  };
  const auto graph = Captured(*backend, [&]() -> absl::Status {
    note(1).IgnoreError();
    absl::Status status = backend->RunBetweenGraphs([note] { return note(2); });
    note(3).IgnoreError();
    status.Update(backend->RunBetweenGraphs([note] { return note(4); }));
    return status;
  });
  EXPECT_EQ(graph->num_graphs(), 3);
  order.clear();
  ASSERT_TRUE(graph->Replay().ok());
  EXPECT_THAT(order, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(Captured(*backend, [] { return absl::OkStatus(); })->num_graphs(), 1);
}

TEST(RecordedBackendTest, ReplayFailsIfWorkBetweenGraphsFails) {
  const auto backend = MakeRecordedBackend();
  bool fails = false;
  const auto graph = Captured(*backend, [&] {
    return backend->RunBetweenGraphs([&fails]() -> absl::Status {
      if (fails) throw std::runtime_error("thrown by the work");
      return absl::OkStatus();
    });
  });
  EXPECT_TRUE(graph->Replay().ok());
  fails = true;
  EXPECT_THAT(std::string(graph->Replay().message()), HasSubstr("thrown by the work"));
  EXPECT_THAT(std::string(backend->RunBetweenGraphs(nullptr).message()),
              HasSubstr("work must be callable"));
}

// Computes out[i] = 2 in[i] for the first `rows` elements of persistent buffers, like a kernel.
struct Doubling {
  std::vector<int> in = std::vector<int>(4, 0);
  std::vector<int> out = std::vector<int>(4, -1);

  std::function<absl::Status()> Step(int rows) {
    return [in = in.data(), out = out.data(), rows] {
      for (int i = 0; i < rows; ++i) out[i] = 2 * in[i];
      return absl::OkStatus();
    };
  }
};

TEST(RecordedBackendTest, ReplayReadsTheCurrentContentsOfTheBuffers) {
  const auto backend = MakeRecordedBackend();
  Doubling doubling;
  const auto graph = Captured(*backend, doubling.Step(4));
  doubling.in = {1, 2, 3, 4};
  ASSERT_TRUE(graph->Replay().ok());
  EXPECT_THAT(doubling.out, ElementsAre(2, 4, 6, 8));
}

TEST(RecordedBackendTest, ScramblingDoesNotChangeValuesCapturedByValue) {
  const auto backend = MakeRecordedBackend();
  Doubling doubling;
  doubling.in = {1, 2, 3, 4};
  int rows = 2;
  const auto graph = Captured(*backend, doubling.Step(rows));
  rows = 0x5a5a5a5a;  // reading it at the replay would access memory far outside the buffers
  ASSERT_TRUE(graph->Replay().ok());
  EXPECT_THAT(doubling.out, ElementsAre(2, 4, -1, -1));
}

// Scrambling finds a host value that a GPU would read only at the capture.
TEST(RecordedBackendTest, ScramblingRevealsValuesCapturedByReference) {
  const auto backend = MakeRecordedBackend();
  std::vector<int> out(4, -1);
  int rows = 2;
  const auto graph = Captured(*backend, [&] {
    for (int i = 0; i < rows; ++i) out[i] = i;
    return absl::OkStatus();
  });
  rows = 4;
  ASSERT_TRUE(graph->Replay().ok());
  EXPECT_THAT(out, ElementsAre(0, 1, 2, 3));  // a CUDA graph would have left the last two at -1
}

TEST(RecordedBackendTest, AFailingStepIsNotCapturedAndItsErrorReturned) {
  const auto backend = MakeRecordedBackend();
  const auto graph = backend->Capture([] { return absl::ResourceExhaustedError("no blocks"); });
  EXPECT_EQ(graph.status(), absl::ResourceExhaustedError("no blocks"));
}

TEST(RecordedBackendTest, AThrowingStepBecomesAStatusAndTheBackendStaysUsable) {
  const auto backend = MakeRecordedBackend();
  const auto standard =
      backend->Capture([]() -> absl::Status { throw std::runtime_error("shape mismatch"); });
  EXPECT_EQ(standard.status(), absl::InternalError("shape mismatch"));
  const auto memory = backend->Capture([]() -> absl::Status { throw std::bad_alloc(); });
  EXPECT_EQ(memory.status().code(), absl::StatusCode::kResourceExhausted);
  const auto odd = backend->Capture([]() -> absl::Status { throw 42; });
  EXPECT_EQ(odd.status().code(), absl::StatusCode::kInternal);

  Doubling doubling;
  const auto graph = Captured(*backend, doubling.Step(1));
  doubling.in[0] = 21;
  ASSERT_TRUE(graph->Replay().ok());
  EXPECT_EQ(doubling.out[0], 42);
}

TEST(RecordedBackendTest, AnErrorAtReplayIsReturnedAndTheNextReplayRuns) {
  const auto backend = MakeRecordedBackend();
  enum { kFine, kFails, kThrows } behaviour = kFine;
  const auto graph = Captured(*backend, [&]() -> absl::Status {
    if (behaviour == kFails) return absl::InvalidArgumentError("bad row");
    if (behaviour == kThrows) throw std::logic_error("at() out of range");
    return absl::OkStatus();
  });
  behaviour = kFails;
  EXPECT_EQ(graph->Replay(), absl::InvalidArgumentError("bad row"));
  behaviour = kThrows;
  EXPECT_EQ(graph->Replay(), absl::InternalError("at() out of range"));
  behaviour = kFine;
  EXPECT_TRUE(graph->Replay().ok());
}

TEST(RecordedBackendTest, RejectsEmptyCalls) {
  const auto backend = MakeRecordedBackend();
  const absl::Status captured = backend->Capture(nullptr).status();
  EXPECT_EQ(captured.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(captured.message()), HasSubstr("step must be callable"));
  EXPECT_EQ(backend->TrialCapture(nullptr).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(RecordedBackendTest, DestroysTheCallWithTheGraph) {
  const auto backend = MakeRecordedBackend();
  auto held = std::make_shared<int>(0);
  std::weak_ptr<int> alive = held;
  auto graph = Captured(*backend, [held] {
    ++*held;
    return absl::OkStatus();
  });
  held.reset();
  ASSERT_FALSE(alive.expired());
  EXPECT_TRUE(graph->Replay().ok());
  EXPECT_EQ(*alive.lock(), 2);
  graph.reset();
  EXPECT_TRUE(alive.expired());
}

TEST(RecordedBackendTest, ATrialRunsTheStepMeasuresNothingAndKeepsNothing) {
  const auto backend = MakeRecordedBackend();
  auto num_runs = std::make_shared<int>(0);
  const absl::StatusOr<GraphBytes> bytes = backend->TrialCapture([num_runs] {
    ++*num_runs;
    return absl::OkStatus();
  });
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(*bytes, GraphBytes{});
  EXPECT_EQ(*num_runs, 1);
  EXPECT_EQ(num_runs.use_count(), 1);
  EXPECT_EQ(backend->TrialCapture([] { return absl::AbortedError("stop"); }).status(),
            absl::AbortedError("stop"));
}

TEST(RecordedBackendTest, ReplayAllocatesNothing) {
  const auto backend = MakeRecordedBackend();
  Doubling doubling;
  const auto graph = Captured(*backend, doubling.Step(4));
  AllocationCounter allocations;
  const bool ok = graph->Replay().ok();
  EXPECT_EQ(allocations.count(), 0);
  EXPECT_TRUE(ok);
}

}  // namespace
}  // namespace reprise
