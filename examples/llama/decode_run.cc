#include "examples/llama/decode_run.h"

#include <ATen/Parallel.h>
#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "examples/llama/cpu_threads.h"
#include "examples/llama/decode_engine_options.h"
#include "examples/llama/decode_requests.h"
#include "examples/llama/decode_stats.h"
#include "examples/llama/device_choice.h"
#include "examples/llama/generate.h"
#include "examples/llama/generation.h"
#include "examples/llama/llama_model.h"
#include "examples/llama/llama_tensors.h"
#include "examples/llama/llama_weights.h"
#include "examples/llama/loading_bar.h"
#include "examples/llama/logits_recorder.h"
#include "examples/llama/model_folder.h"
#include "examples/llama/prompt_heading.h"
#include "examples/llama/tensor_view.h"
#include "examples/llama/text_printer.h"
#include "examples/llama/transcripts.h"
#include "examples/mla/mla_config.h"
#include "examples/mla/mla_model.h"
#include "examples/mla/mla_weights.h"
#include "examples/seq2seq/bart_config.h"
#include "examples/seq2seq/bart_model.h"
#include "examples/seq2seq/bart_weights.h"
#include "runner/engine.h"
#include "runner/model.h"

namespace reprise {
namespace {

using Clock = std::chrono::steady_clock;

// An entry of the Jargon File, as the project's model knows them.
constexpr char kDefaultPrompt[] = "hack value\n";

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Of a model of these tensors.
void SetSensibleThreads(absl::Span<const ExpectedTensor> tensors, DType dtype) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  int64_t num_parameters = 0;
  for (const ExpectedTensor& tensor : tensors) {
    num_parameters += NumElements(tensor.shape).value_or(0);
  }
  at::set_num_threads(SensibleCpuThreads(num_parameters * SizeOf(dtype), at::get_num_threads()));
}

// How a model is loaded, whichever family it is of.
struct LoadModelOptions {
  std::string path;
  c10::Device device = c10::kCPU;
  std::optional<DType> dtype;
  int max_position = 0;
  std::function<void(int64_t num_bytes, int64_t total_bytes)> on_progress;
};

absl::StatusOr<std::unique_ptr<Model>> LoadFamily(const LlamaConfig& config,
                                                  const LoadModelOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(
      LlamaWeights weights,
      LoadLlamaWeights(
          options.path, config,
          {.device = options.device, .dtype = options.dtype, .on_progress = options.on_progress}));
  if (options.device.is_cpu()) SetSensibleThreads(LlamaTensors(config), weights.dtype);
  return LlamaModel::Create(config, std::move(weights), {.max_position = options.max_position});
}

absl::StatusOr<std::unique_ptr<Model>> LoadFamily(const MlaConfig& config,
                                                  const LoadModelOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(
      MlaWeights weights,
      LoadMlaWeights(
          options.path, config,
          {.device = options.device, .dtype = options.dtype, .on_progress = options.on_progress}));
  if (options.device.is_cpu()) SetSensibleThreads(MlaTensors(config), weights.dtype);
  return MlaModel::Create(config, std::move(weights), {.max_position = options.max_position});
}

absl::StatusOr<std::unique_ptr<Model>> LoadFamily(const BartConfig& config,
                                                  const LoadModelOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(
      BartWeights weights,
      LoadBartWeights(
          options.path, config,
          {.device = options.device, .dtype = options.dtype, .on_progress = options.on_progress}));
  if (options.device.is_cpu()) SetSensibleThreads(BartTensors(config), weights.dtype);
  return BartModel::Create(config, std::move(weights));
}

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const ModelFolder& folder,
                                                 const DecodeOptions& options, c10::Device device,
                                                 int max_position, ProgressLine& progress) {
  progress.Show("loading weights");
  const Clock::time_point begin = Clock::now();
  const LoadModelOptions load = {
      .path = folder.path,
      .device = device,
      .dtype = options.dtype,
      .max_position = max_position,
      .on_progress = [&](int64_t num_bytes, int64_t total_bytes) {
        progress.Show(LoadingBar(num_bytes, total_bytes, SecondsSince(begin)));
      }};
  return std::visit([&](const auto& config) { return LoadFamily(config, load); }, folder.config);
}

// Everything of a run that lives as long as its engine.
class Run {
 public:
  Run(const DecodeOptions& options, const DecodeStreams& streams)
      : options_(options), streams_(streams), prompts_(options.prompts) {
    if (prompts_.empty()) prompts_ = {{.content = kDefaultPrompt}};
  }

  absl::Status Load() {
    const Clock::time_point begin = Clock::now();
    ProgressLine progress(streams_.err, streams_.progress);
    REPRISE_ASSIGN_OR_RETURN(const c10::Device device, ChooseDevice(options_.device, NumGpus()));
    std::string path;
    if (options_.model.has_value()) {
      path = *options_.model;
    } else {
      REPRISE_ASSIGN_OR_RETURN(path, DefaultModelFolder());
    }
    REPRISE_ASSIGN_OR_RETURN(folder_, ModelFolder::Open(path));
    REPRISE_ASSIGN_OR_RETURN(requests_, MakeRequests(prompts_, options_, *folder_));
    const EngineOptions engine_options =
        EngineOptionsFor(options_, requests_, folder_->max_seq_len());
    REPRISE_ASSIGN_OR_RETURN(model_, LoadModel(*folder_, options_, device,
                                               *engine_options.runner.max_seq_len, progress));
    progress.Show("setting up");
    REPRISE_ASSIGN_OR_RETURN(engine_, CreateEngine(engine_options));
    stats_.load_seconds = SecondsSince(begin);
    return absl::OkStatus();
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
          return logits->Record(request, engine_->runner().logits(), event.row);
        }));
    stats_.generate_seconds = SecondsSince(begin);

    CompleteStats();
    if (options_.output == OutputChoice::kJson) {
      for (const Generation& generation : transcripts.generations()) {
        streams_.out << ToJson(generation) << '\n';
      }
      streams_.out << ToJson(stats_) << '\n';
    } else {
      streams_.err << '\n' << Summary(stats_);
    }
    streams_.out.flush();
    if (!streams_.out.good()) return absl::InternalError("standard output could not be written");
    if (!logits.has_value()) return absl::OkStatus();
    return logits->Write(*options_.dump_logits);
  }

 private:
  absl::StatusOr<std::unique_ptr<Engine>> CreateEngine(const EngineOptions& engine_options) {
    absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(model_.get(), engine_options);
    if (!absl::IsResourceExhausted(engine.status())) return engine;
    return absl::ResourceExhaustedError(
        absl::StrCat("the KV cache does not fit into memory: give fewer --num_blocks, a smaller "
                     "--block_size or fewer --max_new_tokens (",
                     engine.status().message(), ")"));
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
  }

  const DecodeOptions& options_;
  const DecodeStreams& streams_;
  std::vector<Prompt> prompts_;
  std::optional<ModelFolder> folder_;
  std::vector<Request> requests_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Engine> engine_;
  DecodeStats stats_;
};

}  // namespace

absl::Status RunDecode(const DecodeOptions& options, const DecodeStreams& streams) {
  Run run(options, streams);
  REPRISE_RETURN_IF_ERROR(run.Load());
  return run.Continue();
}

}  // namespace reprise
