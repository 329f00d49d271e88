// Times what a decode step does before its first layer: refill, and the metadata of every layer
// class, inside a captured step on a GPU.
//
//   metadata_step --rows 64,256 --context 4096
//
// Uses models without weights but with the layers of real ones. Prints a line for each: the refill
// kernel, the virtual rows, the tile schedules, all together from refill's start to the last one's
// end, and the host's time in ModelRunner::Launch().

#include <ATen/core/Tensor.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/model_runner.h"
#include "tests/benchmarks/device/device_trace.h"
#include "tests/benchmarks/device/length_list.h"

ABSL_FLAG(std::string, rows, "1,8,64,256", "numbers of rows, as ParseLengths() takes them");
ABSL_FLAG(int, context, 4096, "keys of each row");

namespace reprise {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBlockSize = 16;
constexpr int kNumTracedSteps = 40;
constexpr int kNumTimedSteps = 400;

LayerSpec Full() {
  return {.params = {.num_q_heads = 32, .num_kv_heads = 8, .head_dim_qk = 128, .head_dim_v = 128}};
}

LayerSpec Window(int span) {
  LayerSpec layer = Full();
  layer.params.window_left = span - 1;
  return layer;
}

LayerSpec Chunked(int span) {
  LayerSpec layer = Full();
  layer.chunk_size = span;
  return layer;
}

struct Kind {
  std::string name;
  std::vector<LayerSpec> layers;
};

std::vector<Kind> Kinds() {
  LayerSpec cross = Full();
  cross.kind = AttentionKind::kEncoderDecoder;
  return {{"full", {Full()}},
          {"window + full", {Window(1024), Full()}},
          {"chunks + full", {Chunked(1024), Full()}},
          {"window + chunks + full", {Window(1024), Chunked(1024), Full()}},
          {"full + cross", {Full(), cross}}};
}

// Computes nothing: its graphs contain only metadata.
class BareModel : public Model {
 public:
  explicit BareModel(const Kind& kind) {
    spec_ = {.layers = kind.layers,
             .vocab_size = 8,
             .max_position = 1 << 15,
             .dtype = DType::kBFloat16,
             .device = c10::Device(c10::kCUDA, 0)};
    for (const LayerSpec& layer : kind.layers) {
      if (layer.kind == AttentionKind::kEncoderDecoder) spec_.max_encoder_position = 1024;
    }
  }
  const ModelSpec& spec() const override { return spec_; }
  absl::StatusOr<at::Tensor> Forward(const Step& step) override { return step.logits(); }
  absl::Status Encode(const EncoderStep&) override { return absl::OkStatus(); }

 private:
  ModelSpec spec_;
};

struct Times {
  double refill_us = 0;
  double local_rows_us = 0;
  double tile_schedules_us = 0;
  double together_us = 0;  // from refill's start to the end of the last of these
  double launch_us = 0;
};

// Times of steady decode steps of `num_rows` rows over the same few blocks.
class Steps {
 public:
  static absl::StatusOr<Steps> Create(Model* model, int num_rows, int context) {
    Steps steps;
    const int max_seq_len = context + kNumTracedSteps + kNumTimedSteps + 32;
    REPRISE_ASSIGN_OR_RETURN(
        steps.runner_,
        ModelRunner::Create(model, {.max_num_seqs = num_rows,
                                    .max_num_tokens = num_rows,
                                    .max_seq_len = max_seq_len,
                                    .cache = {.block_size = kBlockSize, .size = NumBlocks{64}},
                                    .graphs = {.sizes = {num_rows}}}));
    ModelRunner& runner = *steps.runner_;
    std::vector<SlotJoin> joins;
    std::vector<BlockTableUpdate> updates;
    const std::vector<int32_t> token = {1};
    std::vector<ScheduledRow> first;
    const int num_groups = static_cast<int>(runner.shape().groups.size());
    for (int slot = 0; slot < num_rows; ++slot) {
      joins.push_back({.slot = SlotId(slot),
                       .seq_len = context,
                       .prompt_len = context + 1,
                       .num_encoder_tokens = runner.shape().max_encoder_tokens,
                       .encoder_is_cached = 1});
      for (int group = 0; group < num_groups; ++group) {
        for (int column = 0; column < runner.shape().max_blocks(); ++column) {
          updates.push_back({.slot = SlotId(slot),
                             .column = column,
                             .block = BlockId(1 + column % 63),
                             .group = group});
        }
      }
      first.push_back({.slot = SlotId(slot), .tokens = token});
      steps.rows_.push_back({.slot = SlotId(slot)});
    }
    REPRISE_RETURN_IF_ERROR(
        runner.Step({.joins = joins, .updates = updates, .rows = first}).status());
    REPRISE_RETURN_IF_ERROR(steps.Run(10).status());
    return steps;
  }

  // The mean time of a launch.
  absl::StatusOr<double> Run(int num_steps) {
    Clock::duration launch = {};
    std::vector<int64_t> in_flight;
    for (int step = 0; step < num_steps; ++step) {
      const Clock::time_point begin = Clock::now();
      REPRISE_ASSIGN_OR_RETURN(const int64_t ticket, runner_->Launch({.rows = rows_}));
      launch += Clock::now() - begin;
      in_flight.push_back(ticket);
      if (static_cast<int>(in_flight.size()) < runner_->shape().max_steps_in_flight) continue;
      REPRISE_RETURN_IF_ERROR(runner_->Await(in_flight.front()).status());
      in_flight.erase(in_flight.begin());
    }
    for (const int64_t ticket : in_flight) {
      REPRISE_RETURN_IF_ERROR(runner_->Await(ticket).status());
    }
    return std::chrono::duration<double, std::micro>(launch).count() / num_steps;
  }

 private:
  std::unique_ptr<ModelRunner> runner_;
  std::vector<ScheduledRow> rows_;
};

absl::StatusOr<Times> Measure(const Kind& kind, int num_rows, int context) {
  BareModel model(kind);
  REPRISE_ASSIGN_OR_RETURN(Steps steps, Steps::Create(&model, num_rows, context));
  Times times;
  REPRISE_ASSIGN_OR_RETURN(times.launch_us, steps.Run(kNumTimedSteps));
  REPRISE_ASSIGN_OR_RETURN(const DeviceTrace trace,
                           TraceDevice([&] { return steps.Run(kNumTracedSteps).status(); }));
  double begin_us = 0;
  double end_us = 0;
  for (const DeviceEvent& event : trace.events) {
    const auto is = [&](const char* part) { return event.name.find(part) != std::string::npos; };
    if (is("Refill")) {
      times.together_us += end_us - begin_us;
      times.refill_us += event.duration_us;
      begin_us = event.start_us;
    } else if (is("LocalVirtual")) {
      times.local_rows_us += event.duration_us;
    } else if (is("TileSchedule")) {
      times.tile_schedules_us += event.duration_us;
    } else {
      continue;
    }
    end_us = event.start_us + event.duration_us;
  }
  times.together_us += end_us - begin_us;
  for (double* us :
       {&times.refill_us, &times.local_rows_us, &times.tile_schedules_us, &times.together_us}) {
    *us /= kNumTracedSteps;
  }
  return times;
}

absl::Status RunAll() {
  REPRISE_ASSIGN_OR_RETURN(const std::vector<int> rows, ParseLengths(absl::GetFlag(FLAGS_rows)));
  std::cout << absl::StrFormat("%-24s %5s %8s %10s %10s %9s %8s\n", "layers", "rows", "refill",
                               "local rows", "tile schedules", "together", "host us");
  for (const Kind& kind : Kinds()) {
    for (const int num_rows : rows) {
      REPRISE_ASSIGN_OR_RETURN(const Times times,
                               Measure(kind, num_rows, absl::GetFlag(FLAGS_context)));
      std::cout << absl::StrFormat("%-24s %5d %8.2f %10.2f %10.2f %9.2f %8.1f\n", kind.name,
                                   num_rows, times.refill_us, times.local_rows_us,
                                   times.tile_schedules_us, times.together_us, times.launch_us)
                << std::flush;
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace reprise

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Times a step's metadata on a GPU.");
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = reprise::RunAll();
  if (status.ok()) return 0;
  std::cerr << "metadata_step: " << status.message() << "\n";
  return 1;
}
