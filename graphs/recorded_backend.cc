#include "reprise/graphs/recorded_backend.h"

#include <exception>
#include <functional>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

// Runs the call. Converts exceptions to a Status.
absl::Status Run(const std::function<absl::Status()>& step) {
  try {
    return step();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("host memory ran out in a recorded step");
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  } catch (...) {
    return absl::InternalError("a recorded step threw something that is not a std::exception");
  }
}

class RecordedGraph : public CapturedGraph {
 public:
  RecordedGraph(std::function<absl::Status()> step, int num_graphs)
      : step_(std::move(step)), num_graphs_(num_graphs) {}

  absl::Status Replay() override { return Run(step_); }
  int num_graphs() const override { return num_graphs_; }
  GraphBytes bytes() const override { return {}; }

 private:
  const std::function<absl::Status()> step_;
  const int num_graphs_;
};

class RecordedBackend : public GraphBackend {
 public:
  absl::StatusOr<std::unique_ptr<CapturedGraph>> Capture(
      std::function<absl::Status()> step) override {
    if (step == nullptr) {
      return absl::InvalidArgumentError("step must be callable: got an empty function");
    }
    num_works_ = 0;
    REPRISE_RETURN_IF_ERROR(Run(step));
    return std::make_unique<RecordedGraph>(std::move(step), 1 + num_works_);
  }

  // Runs `work` in the warm-up and in each replay, because the recorded call contains this call.
  absl::Status RunBetweenGraphs(std::function<absl::Status()> work) override {
    if (work == nullptr) {
      return absl::InvalidArgumentError("work must be callable: got an empty function");
    }
    ++num_works_;
    return Run(work);
  }

  absl::StatusOr<GraphBytes> TrialCapture(std::function<absl::Status()> step) override {
    REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<CapturedGraph> graph, Capture(std::move(step)));
    return graph->bytes();
  }

 private:
  int num_works_ = 0;  // since the last capture began
};

}  // namespace

std::unique_ptr<GraphBackend> MakeRecordedBackend() { return std::make_unique<RecordedBackend>(); }

}  // namespace reprise
