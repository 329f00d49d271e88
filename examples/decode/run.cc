#include "examples/decode/run.h"

#include <chrono>
#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "examples/decode/loaded_model.h"
#include "examples/decode/perplexity.h"
#include "examples/decode/progress_line.h"
#include "examples/decode/prompt.h"
#include "examples/decode/requests.h"
#include "examples/decode/stats.h"
#include "examples/decode/transcripts.h"
#include "examples/decode/watch_view.h"
#include "reprise/base/status_macros.h"
#include "reprise/engine/create_engine.h"
#include "reprise/models/generate.h"
#include "reprise/models/model_folder.h"
#include "reprise/runner/model.h"
#include "reprise/runner/trace/step_trace.h"

namespace reprise {
namespace {

using Clock = std::chrono::steady_clock;

// An entry of the Jargon File, on which the project's model is trained.
constexpr char kDefaultPrompt[] = "hack value\n";

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The objects of a run that must live as long as its engine.
class Run {
 public:
  Run(const DecodeOptions& options, const DecodeStreams& streams, RankOfRun rank)
      : options_(options), streams_(streams), rank_(rank), prompts_(options.prompts) {
    if (prompts_.empty()) prompts_ = {{.content = kDefaultPrompt}};
  }

  bool follows() const { return rank_.follows(); }

  // On all ranks, or on none.
  absl::Status Load() {
    const Clock::time_point begin = Clock::now();
    ProgressLine progress(streams_.err, streams_.progress);
    REPRISE_ASSIGN_OR_RETURN(
        loaded_, DecodeModels::Load(options_, rank_, progress,
                                    [&](const ModelFolder& folder) { return OptionsOf(folder); }));
    if (follows()) return absl::OkStatus();
    REPRISE_ASSIGN_OR_RETURN(engine_, loaded_.MakeEngine());
    stats_.load_seconds = SecondsSince(begin);
    return absl::OkStatus();
  }

  // Runs the steps of rank 0.
  absl::Status Follow() {
    REPRISE_RETURN_IF_ERROR(loaded_.Follow());
    if (!compares_plain()) return absl::OkStatus();
    return FollowEngine(model(), WithoutDrafts());
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
    std::ostringstream kept;  // while a view is on the terminal
    std::optional<WatchView> view;
    if (options_.watches) view.emplace(streams_.err, streams_.progress);
    if (options_.output == OutputChoice::kText) {
      printer.emplace(view.has_value() ? kept : streams_.out, Headings());
      if (options_.prompts.empty()) {
        streams_.err << PromptHeading(1, prompts_[0]) << " (give your own with --prompt)\n";
      }
    }
    const Tokenizer* const tokenizer =
        loaded_.folder->tokenizer.has_value() ? &*loaded_.folder->tokenizer : nullptr;
    Transcripts transcripts(requests_, tokenizer, options_.stops,
                            printer.has_value() ? &*printer : nullptr);
    std::optional<LogitsRecorder> logits;
    if (options_.dump_logits.has_value()) logits.emplace(static_cast<int>(requests_.size()));

    const Clock::time_point begin = Clock::now();
    const absl::Status generated =
        Generate(*engine_, requests_, [&](int request, const TokenEvent& event) {
          if (stats_.num_generated_tokens++ == 0) stats_.first_token_seconds = SecondsSince(begin);
          transcripts.Add(request, event);
          if (view.has_value() && view->IsDue()) view->Show(engine_->metrics());
          if (!logits.has_value()) return absl::OkStatus();
          REPRISE_ASSIGN_OR_RETURN(const at::Tensor row, LogitsOf(*engine_, event));
          return logits->Record(request, row);
        });
    if (!generated.ok()) {
      transcripts.Finish();  // the text that was held back
      return generated;
    }
    stats_.generate_seconds = SecondsSince(begin);

    if (view.has_value()) view->Finish(engine_->metrics());
    streams_.out << kept.str();
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
  // Makes the requests, and options of an engine for them.
  absl::StatusOr<ModelEngineOptions> OptionsOf(const ModelFolder& folder) {
    if (options_.perplexity.has_value()) {
      REPRISE_ASSIGN_OR_RETURN(
          requests_, MakeScoringRequests(*options_.perplexity, folder, folder.max_seq_len()));
    } else {
      REPRISE_ASSIGN_OR_RETURN(requests_, MakeRequests(prompts_, options_, folder));
    }
    ModelEngineOptions engine = EngineOptionsFor(options_, requests_, folder.max_seq_len());
    if (!follows() && options_.trace.has_value()) engine.runner.debug.trace = &trace_.emplace();
    return engine;
  }

  absl::Status Flush() {
    streams_.out.flush();
    if (streams_.out.good()) return absl::OkStatus();
    return absl::InternalError("standard output could not be written");
  }

  Model* model() const { return loaded_.model.get(); }

  bool compares_plain() const {
    return options_.draft.has_value() && options_.draft->compares_plain;
  }

  ModelEngineOptions WithoutDrafts() const {
    ModelEngineOptions plain = loaded_.engine_options;
    plain.runner.speculation = {};
    plain.runner.debug.trace = nullptr;
    return plain;
  }

  // Runs the requests again, without drafts. The engine is another one from then on.
  absl::Status MeasurePlain() {
    engine_.reset();
    REPRISE_ASSIGN_OR_RETURN(engine_, loaded_.MakeEngine(WithoutDrafts()));
    int64_t num_tokens = 0;
    const Clock::time_point begin = Clock::now();
    REPRISE_RETURN_IF_ERROR(Generate(*engine_, requests_, [&](int, const TokenEvent&) {
      ++num_tokens;
      return absl::OkStatus();
    }));
    stats_.plain_tokens_per_second = static_cast<double>(num_tokens) / SecondsSince(begin);
    return absl::OkStatus();
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
    const ModelRunner& runner = ModelRunnerOf(*engine_);
    stats_.device = model()->spec().device.str();
    stats_.dtype = model()->spec().dtype;
    stats_.num_prompts = static_cast<int64_t>(requests_.size());
    for (const Request& request : requests_) {
      stats_.num_prompt_tokens +=
          static_cast<int64_t>(request.prompt.size() + request.encoder_tokens.size());
    }
    stats_.num_preemptions = engine_->scheduler().num_preemptions();
    stats_.num_blocks = runner.shape().num_blocks;
    stats_.block_size = runner.shape().block_size;
    stats_.peak_used_blocks = engine_->scheduler().blocks().pool().peak_used();
    stats_.kv_groups.assign(runner.shape().groups.begin(), runner.shape().groups.end());
    stats_.graphs = runner.graph_report();
    if (options_.draft.has_value()) stats_.drafts = engine_->metrics().speculation;
  }

  const DecodeOptions& options_;
  const DecodeStreams& streams_;
  RankOfRun rank_;
  std::vector<Prompt> prompts_;
  DecodeModels loaded_;  // the requests refer to its folder
  std::vector<Request> requests_;
  std::optional<StepTrace> trace_;
  std::unique_ptr<Engine> engine_;
  DecodeStats stats_;
};

}  // namespace

absl::Status RunDecode(const DecodeOptions& options, const DecodeStreams& streams, RankOfRun rank) {
  Run run(options, streams, rank);
  REPRISE_RETURN_IF_ERROR(run.Load());
  if (run.follows()) return run.Follow();
  return options.perplexity.has_value() ? run.Score() : run.Continue();
}

}  // namespace reprise
