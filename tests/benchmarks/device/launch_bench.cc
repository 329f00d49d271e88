// Times the host's part of steady decode steps: ModelRunner::Launch(), over a small model.
//
//   launch_bench                              on a GPU if there is one, otherwise on the CPU
//   launch_bench --rows 1,8,64 --steps 4000
//   launch_bench --device cpu --rows 1 --steps 200
//
// Prints a JSON line for each number of rows: the median and the 90th percentile of the
// microseconds inside Launch(). Fails if the steps are not replayed from a graph. Await() is not
// timed. The program calls Await() as an engine does, when RunnerShape::max_steps_in_flight steps
// are in flight. On a GPU, Launch() enqueues the step. On the CPU, Launch() computes the step, so
// the time includes the recorded forward pass of the model.

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/models/decoder/decoder_model.h"
#include "reprise/models/decoder/decoder_weights.h"
#include "reprise/models/decoder/public_configs.h"
#include "reprise/runner/model_runner.h"
#include "tests/benchmarks/device/length_list.h"

ABSL_FLAG(std::string, preset, "jargon", "a name of examples/models/decoder/public_configs.h");
ABSL_FLAG(std::string, device, "auto", "cpu, cuda or auto");
ABSL_FLAG(std::string, rows, "1,8,64", "numbers of rows, as ParseLengths() takes them");
ABSL_FLAG(int, steps, 4000, "timed steps for each number of rows");
ABSL_FLAG(int, context, 256, "keys of each row before the first timed step");

namespace reprise {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBlockSize = 16;
constexpr int kNumWarmupSteps = 16;
// Timed steps until the sequences start again at --context keys.
constexpr int kStepsPerStart = 256;

absl::StatusOr<c10::Device> ChosenDevice() {
  const std::string name = absl::GetFlag(FLAGS_device);
  if (name == "cpu") return c10::Device(c10::kCPU);
  if (name == "cuda") return c10::Device(c10::kCUDA, 0);
  if (name != "auto") {
    return absl::InvalidArgumentError(
        absl::StrCat("--device must be cpu, cuda or auto: got ", name));
  }
  return at::globalContext().hasCUDA() ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
}

// `num_rows` sequences that decode one token per step.
class SteadyDecode {
 public:
  static absl::StatusOr<SteadyDecode> Create(Model* model, int num_rows, int context) {
    SteadyDecode decode;
    decode.context_ = context;
    const int max_seq_len = context + kNumWarmupSteps + kStepsPerStart + 1;
    decode.blocks_per_row_ = (max_seq_len - 1) / kBlockSize + 1;
    REPRISE_ASSIGN_OR_RETURN(
        decode.runner_,
        ModelRunner::Create(model,
                            {.max_num_seqs = num_rows,
                             .max_num_tokens = num_rows,
                             .max_seq_len = max_seq_len,
                             .cache = {.block_size = kBlockSize,
                                       .size = NumBlocks{1 + num_rows * decode.blocks_per_row_}},
                             .graphs = {.sizes = {num_rows}}}));
    for (int slot = 0; slot < num_rows; ++slot) decode.rows_.push_back({.slot = SlotId(slot)});
    return decode;
  }

  // Replaces the sequences by new ones of `context` keys, and runs the steps that are not timed.
  absl::Status Start() {
    const std::vector<int32_t> token = {1};
    std::vector<SlotId> leaves;
    std::vector<SlotJoin> joins;
    std::vector<BlockTableUpdate> updates;
    std::vector<ScheduledRow> first_rows;
    for (int slot = 0; slot < static_cast<int>(rows_.size()); ++slot) {
      if (has_started_) leaves.push_back(SlotId(slot));
      joins.push_back({.slot = SlotId(slot), .seq_len = context_, .prompt_len = context_ + 1});
      for (int column = 0; column < blocks_per_row_; ++column) {
        updates.push_back({.slot = SlotId(slot),
                           .column = column,
                           .block = BlockId(1 + slot * blocks_per_row_ + column)});
      }
      first_rows.push_back({.slot = SlotId(slot), .tokens = token});
    }
    has_started_ = true;
    REPRISE_RETURN_IF_ERROR(
        runner_->Step({.leaves = leaves, .joins = joins, .updates = updates, .rows = first_rows})
            .status());
    std::vector<double> unused_us;
    return Run(kNumWarmupSteps, unused_us);
  }

  // Appends the microseconds inside Launch() of each step to `launch_us`.
  absl::Status Run(int num_steps, std::vector<double>& launch_us) {
    std::deque<int64_t> in_flight;
    for (int i = 0; i < num_steps; ++i) {
      const Clock::time_point begin = Clock::now();
      const absl::StatusOr<int64_t> step = runner_->Launch({.rows = rows_});
      const Clock::duration time = Clock::now() - begin;
      REPRISE_RETURN_IF_ERROR(step.status());
      launch_us.push_back(std::chrono::duration<double, std::micro>(time).count());
      in_flight.push_back(*step);
      if (static_cast<int>(in_flight.size()) < runner_->shape().max_steps_in_flight) continue;
      REPRISE_RETURN_IF_ERROR(Await(in_flight.front()));
      in_flight.pop_front();
    }
    for (const int64_t step : in_flight) REPRISE_RETURN_IF_ERROR(Await(step));
    return absl::OkStatus();
  }

  // The decision for the newest awaited step.
  const GraphDecision& decision() const { return decision_; }

 private:
  absl::Status Await(int64_t step) {
    REPRISE_ASSIGN_OR_RETURN(const StepResult result, runner_->Await(step));
    decision_ = result.decision;
    return absl::OkStatus();
  }

  std::unique_ptr<ModelRunner> runner_;
  std::vector<ScheduledRow> rows_;
  GraphDecision decision_;
  int context_ = 0;
  int blocks_per_row_ = 0;
  bool has_started_ = false;
};

absl::StatusOr<nlohmann::json> Measure(Model* model, int num_rows, int num_steps, int context) {
  REPRISE_ASSIGN_OR_RETURN(SteadyDecode decode, SteadyDecode::Create(model, num_rows, context));
  std::vector<double> launch_us;
  launch_us.reserve(num_steps);
  while (static_cast<int>(launch_us.size()) < num_steps) {
    const int num_left = num_steps - static_cast<int>(launch_us.size());
    REPRISE_RETURN_IF_ERROR(decode.Start());
    REPRISE_RETURN_IF_ERROR(decode.Run(std::min(num_left, kStepsPerStart), launch_us));
    if (decode.decision().kind != GraphDecision::Kind::kReplay) {
      return absl::InternalError(
          absl::StrCat("launch_bench requires replayed steps: expected a "
                       "replay, got ",
                       ToString(decode.decision())));
    }
  }
  std::sort(launch_us.begin(), launch_us.end());
  return nlohmann::json{{"preset", absl::GetFlag(FLAGS_preset)},
                        {"device", model->spec().device.str()},
                        {"rows", num_rows},
                        {"context", context},
                        {"steps", num_steps},
                        {"median_us", launch_us[launch_us.size() / 2]},
                        {"p90_us", launch_us[launch_us.size() * 9 / 10]}};
}

absl::Status RunAll() {
  REPRISE_ASSIGN_OR_RETURN(const std::vector<int> rows, ParseLengths(absl::GetFlag(FLAGS_rows)));
  const int num_steps = absl::GetFlag(FLAGS_steps);
  const int context = absl::GetFlag(FLAGS_context);
  if (num_steps < 1 || context < 1) {
    return absl::InvalidArgumentError(absl::StrCat("--steps and --context must be at least 1: got ",
                                                   num_steps, " and ", context));
  }
  REPRISE_ASSIGN_OR_RETURN(const c10::Device device, ChosenDevice());
  if (device.is_cpu()) at::set_num_threads(1);
  REPRISE_ASSIGN_OR_RETURN(DecoderConfig config, LlamaPreset(absl::GetFlag(FLAGS_preset)));
  REPRISE_ASSIGN_OR_RETURN(DecoderWeights weights, MakeRandomWeights(config, {.device = device}));
  REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<DecoderModel> model,
                           DecoderModel::Create(config, std::move(weights), {}));
  for (const int num_rows : rows) {
    REPRISE_ASSIGN_OR_RETURN(const nlohmann::json result,
                             Measure(model.get(), num_rows, num_steps, context));
    std::cout << result.dump() << std::endl;
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace reprise

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Times ModelRunner::Launch() of steady decode steps.");
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = reprise::RunAll();
  if (status.ok()) return 0;
  std::cerr << "launch_bench: " << status.message() << "\n";
  return 1;
}
