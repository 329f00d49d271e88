#include "examples/decode/run.h"

#include <ATen/Parallel.h>
#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/status_macros.h"
#include "distributed/agreement.h"
#include "distributed/collectives.h"
#include "distributed/share.h"
#include "engine/engine.h"
#include "examples/decode/device.h"
#include "examples/decode/perplexity.h"
#include "examples/decode/progress_line.h"
#include "examples/decode/prompt.h"
#include "examples/decode/requests.h"
#include "examples/decode/stats.h"
#include "examples/decode/transcripts.h"
#include "examples/models/generate.h"
#include "examples/models/model_folder.h"
#include "runner/model.h"
#include "runner/step_trace.h"

namespace reprise {
namespace {

using Clock = std::chrono::steady_clock;

// An entry of the Jargon File, on which the project's model is trained.
constexpr char kDefaultPrompt[] = "hack value\n";

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Of one of `world` ranks, which have the parameters and the cores together.
void SetSensibleThreads(int64_t num_parameters, DType dtype, int world) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  at::set_num_threads(
      SensibleCpuThreads(num_parameters / world * SizeOf(dtype), at::get_num_threads() / world));
}

absl::StatusOr<std::unique_ptr<Model>> LoadShowing(ProgressLine& progress,
                                                   const ModelFolder& folder,
                                                   std::optional<DType> dtype, c10::Device device,
                                                   int max_position, Collectives* collectives) {
  progress.Show("loading weights");
  const Clock::time_point begin = Clock::now();
  const LoadModelOptions load = {
      .weights = {.device = device,
                  .dtype = dtype,
                  .on_progress =
                      [&](int64_t num_bytes, int64_t total_bytes) {
                        progress.Show(LoadingBar(num_bytes, total_bytes, SecondsSince(begin)));
                      }},
      .max_position = max_position,
      .collectives = collectives};
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                           LoadModel(folder.path, folder.config, load));
  return model;
}

// The objects of a run that must live as long as its engine.
class Run {
 public:
  Run(const DecodeOptions& options, const DecodeStreams& streams, Collectives* collectives,
      int local_rank)
      : options_(options),
        streams_(streams),
        collectives_(collectives),
        local_rank_(local_rank),
        prompts_(options.prompts) {
    if (prompts_.empty()) prompts_ = {{.content = kDefaultPrompt}};
  }

  bool follows() const { return RanksOf(collectives_).rank != 0; }

  // On all ranks, or on none.
  absl::Status Load() {
    const Clock::time_point begin = Clock::now();
    ProgressLine progress(streams_.err, streams_.progress);
    REPRISE_RETURN_IF_ERROR(StatusOverRanks(collectives_, LoadModels(progress)));
    if (follows()) return absl::OkStatus();
    progress.Show("setting up");
    REPRISE_ASSIGN_OR_RETURN(engine_, CreateEngine(engine_options_));
    stats_.load_seconds = SecondsSince(begin);
    return absl::OkStatus();
  }

  // Runs the steps of rank 0.
  absl::Status Follow() {
    REPRISE_RETURN_IF_ERROR(Engine::Follow(model_.get(), engine_options_));
    if (!compares_plain()) return absl::OkStatus();
    return Engine::Follow(model_.get(), WithoutDrafts());
  }

  absl::Status Score() {
    PerplexityMeter meter;
    const Clock::time_point begin = Clock::now();
    REPRISE_RETURN_IF_ERROR(Generate(
        *engine_, requests_, [&](int, const TokenEvent& event) { return meter.Add(event); }));
    stats_.generate_seconds = SecondsSince(begin);
    CompleteStats();
    if (options_.output == OutputChoice::kJson) {
      streams_.out << ToJson(meter.result()) << '\n' << ToJson(stats_) << '\n';
    } else {
      streams_.out << Summary(meter.result()) << '\n';
      streams_.err << Summary(stats_);
    }
    REPRISE_RETURN_IF_ERROR(Flush());
    return WriteTrace();
  }

  absl::Status Continue() {
    std::optional<TextPrinter> printer;
    if (options_.output == OutputChoice::kText) {
      printer.emplace(streams_.out, Headings());
      if (options_.prompts.empty()) {
        streams_.err << PromptHeading(1, prompts_[0]) << " (give your own with --prompt)\n";
      }
    }
    const Tokenizer* const tokenizer =
        folder_->tokenizer.has_value() ? &*folder_->tokenizer : nullptr;
    Transcripts transcripts(requests_, tokenizer, printer.has_value() ? &*printer : nullptr);
    std::optional<LogitsRecorder> logits;
    if (options_.dump_logits.has_value()) logits.emplace(static_cast<int>(requests_.size()));

    const Clock::time_point begin = Clock::now();
    REPRISE_RETURN_IF_ERROR(
        Generate(*engine_, requests_, [&](int request, const TokenEvent& event) {
          if (stats_.num_generated_tokens++ == 0) stats_.first_token_seconds = SecondsSince(begin);
          transcripts.Add(request, event);
          if (!logits.has_value()) return absl::OkStatus();
          return logits->Record(request, engine_->logits(event));
        }));
    stats_.generate_seconds = SecondsSince(begin);

    CompleteStats();
    if (compares_plain()) {
      REPRISE_RETURN_IF_ERROR(MeasurePlain());
    }
    if (options_.output == OutputChoice::kJson) {
      for (const Generation& generation : transcripts.generations()) {
        streams_.out << ToJson(generation) << '\n';
      }
      streams_.out << ToJson(stats_) << '\n';
    } else {
      streams_.err << '\n' << Summary(stats_);
    }
    REPRISE_RETURN_IF_ERROR(Flush());
    absl::Status written = WriteTrace();
    if (logits.has_value()) written.Update(logits->Write(*options_.dump_logits));
    return written;
  }

 private:
  absl::Status LoadModels(ProgressLine& progress) {
    REPRISE_ASSIGN_OR_RETURN(const c10::Device device,
                             ChooseDevice(options_.device, NumGpus(), local_rank_));
    std::string path;
    if (options_.model.has_value()) {
      path = *options_.model;
    } else {
      REPRISE_ASSIGN_OR_RETURN(path, DefaultModelFolder());
    }
    REPRISE_ASSIGN_OR_RETURN(folder_, ModelFolder::Open(path));
    if (options_.perplexity.has_value()) {
      REPRISE_ASSIGN_OR_RETURN(
          requests_, MakeScoringRequests(*options_.perplexity, *folder_, folder_->max_seq_len()));
    } else {
      REPRISE_ASSIGN_OR_RETURN(requests_, MakeRequests(prompts_, options_, *folder_));
    }
    engine_options_ = EngineOptionsFor(options_, requests_, folder_->max_seq_len());
    engine_options_.runner.collectives = collectives_;
    if (!follows() && options_.trace.has_value()) engine_options_.runner.trace = &trace_.emplace();
    const int max_seq_len = *engine_options_.runner.max_seq_len;
    REPRISE_ASSIGN_OR_RETURN(
        model_, LoadShowing(progress, *folder_, options_.dtype, device, max_seq_len, collectives_));
    if (device.is_cpu()) {
      SetSensibleThreads(NumParameters(folder_->config), model_->spec().dtype,
                         RanksOf(collectives_).world);
    }
    if (options_.draft.has_value() && options_.draft->model.has_value()) {
      REPRISE_RETURN_IF_ERROR(LoadDraftModel(progress, *options_.draft->model, max_seq_len));
    }
    return absl::OkStatus();
  }

  absl::Status Flush() {
    streams_.out.flush();
    if (streams_.out.good()) return absl::OkStatus();
    return absl::InternalError("standard output could not be written");
  }

  absl::Status LoadDraftModel(ProgressLine& progress, const std::string& path, int max_seq_len) {
    const auto load = [&]() -> absl::Status {
      REPRISE_ASSIGN_OR_RETURN(const ModelFolder folder, ModelFolder::Open(path));
      REPRISE_ASSIGN_OR_RETURN(
          draft_model_, LoadShowing(progress, folder, model_->spec().dtype, model_->spec().device,
                                    max_seq_len, collectives_));
      return absl::OkStatus();
    };
    if (const absl::Status status = load(); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat("--draft: ", status.message()));
    }
    engine_options_.runner.speculation.draft_model = draft_model_.get();
    return absl::OkStatus();
  }

  bool compares_plain() const {
    return options_.draft.has_value() && options_.draft->compares_plain;
  }

  EngineOptions WithoutDrafts() const {
    EngineOptions plain = engine_options_;
    plain.runner.speculation = {};
    plain.runner.trace = nullptr;
    return plain;
  }

  // Runs the requests again, without drafts. The engine is another one from then on.
  absl::Status MeasurePlain() {
    engine_.reset();
    REPRISE_ASSIGN_OR_RETURN(engine_, CreateEngine(WithoutDrafts()));
    int64_t num_tokens = 0;
    const Clock::time_point begin = Clock::now();
    REPRISE_RETURN_IF_ERROR(Generate(*engine_, requests_, [&](int, const TokenEvent&) {
      ++num_tokens;
      return absl::OkStatus();
    }));
    stats_.plain_tokens_per_second = static_cast<double>(num_tokens) / SecondsSince(begin);
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Engine>> CreateEngine(const EngineOptions& engine_options) {
    absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(model_.get(), engine_options);
    if (!absl::IsResourceExhausted(engine.status())) return engine;
    return absl::ResourceExhaustedError(
        absl::StrCat("the KV cache does not fit into memory: give fewer --num_blocks, a smaller "
                     "--block_size or fewer --max_new_tokens (",
                     engine.status().message(), ")"));
  }

  absl::Status WriteTrace() const {
    if (!trace_.has_value()) return absl::OkStatus();
    std::ofstream file(*options_.trace);
    trace_->WriteJson(file);
    file.close();
    if (file.good()) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("the trace could not be written: ", *options_.trace));
  }

  std::vector<std::string> Headings() const {
    std::vector<std::string> headings;
    for (const Prompt& prompt : prompts_) {
      headings.push_back(PromptHeading(static_cast<int>(headings.size()) + 1, prompt));
    }
    return headings;
  }

  void CompleteStats() {
    const ModelRunner& runner = engine_->runner();
    stats_.device = model_->spec().device.str();
    stats_.dtype = model_->spec().dtype;
    stats_.num_prompts = static_cast<int64_t>(requests_.size());
    for (const Request& request : requests_) {
      stats_.num_prompt_tokens +=
          static_cast<int64_t>(request.prompt.size() + request.encoder_tokens.size());
    }
    stats_.num_preemptions = engine_->scheduler().num_preemptions();
    stats_.num_blocks = runner.num_blocks();
    stats_.block_size = runner.block_size();
    stats_.peak_used_blocks = engine_->scheduler().blocks().pool().peak_used();
    stats_.kv_groups.assign(runner.kv_groups().begin(), runner.kv_groups().end());
    stats_.graphs = runner.graph_report();
    if (options_.draft.has_value()) stats_.drafts = engine_->metrics().speculation;
  }

  const DecodeOptions& options_;
  const DecodeStreams& streams_;
  Collectives* collectives_;
  int local_rank_;
  std::vector<Prompt> prompts_;
  std::optional<ModelFolder> folder_;
  std::vector<Request> requests_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Model> draft_model_;
  EngineOptions engine_options_;
  std::optional<StepTrace> trace_;
  std::unique_ptr<Engine> engine_;
  DecodeStats stats_;
};

}  // namespace

absl::Status RunDecode(const DecodeOptions& options, const DecodeStreams& streams,
                       Collectives* collectives, int local_rank) {
  Run run(options, streams, collectives, local_rank);
  REPRISE_RETURN_IF_ERROR(run.Load());
  if (run.follows()) return run.Follow();
  return options.perplexity.has_value() ? run.Score() : run.Continue();
}

}  // namespace reprise
