#include "examples/decode/loaded_model.h"

#include <ATen/Parallel.h>
#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "examples/decode/device.h"
#include "reprise/base/dtype.h"
#include "reprise/base/status_macros.h"
#include "reprise/distributed/agreement.h"
#include "reprise/distributed/share.h"
#include "reprise/models/devices.h"
#include "reprise/models/load_model.h"

namespace reprise {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Of one of `world` ranks, which have the parameters and the cores together.
void SetSensibleThreads(int64_t num_parameters, DType dtype, int world) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  at::set_num_threads(
      SensibleCpuThreads(num_parameters / world * SizeOf(dtype), at::get_num_threads() / world));
}

// Options that show the progress of loading. `progress` must outlive them.
LoadModelOptions LoadOptionsOf(ProgressLine& progress, std::optional<DType> dtype,
                               c10::Device device, int max_position, RankOfRun rank,
                               Unsharded unsharded) {
  progress.Show("loading weights");
  return {.weights = {.device = device,
                      .dtype = dtype,
                      .on_progress =
                          [&progress, begin = Clock::now()](int64_t num_bytes, int64_t total) {
                            progress.Show(LoadingBar(num_bytes, total, SecondsSince(begin)));
                          }},
          .max_position = max_position,
          .collectives = rank.grid == nullptr ? nullptr : &rank.grid->weights(),
          .unsharded = unsharded,
          .context = rank.grid == nullptr ? nullptr : &rank.grid->context()};
}

absl::StatusOr<std::unique_ptr<Model>> LoadDraft(const DecodeOptions& options,
                                                 const ModelSpec& spec, int max_seq_len,
                                                 RankOfRun rank, ProgressLine& progress) {
  REPRISE_ASSIGN_OR_RETURN(
      LoadedModel draft,
      LoadModel(*options.draft->model, LoadOptionsOf(progress, spec.dtype, spec.device, max_seq_len,
                                                     rank, Unsharded::kReplicated)));
  return std::move(draft.model);
}

absl::StatusOr<ModelFolder> OpenModel(const DecodeOptions& options) {
  if (options.model.has_value()) return ModelFolder::Open(*options.model);
  REPRISE_ASSIGN_OR_RETURN(const std::string path, DefaultModelFolder());
  return ModelFolder::Open(path);
}

// On this rank.
absl::StatusOr<DecodeModels> LoadOnRank(const DecodeOptions& options, RankOfRun rank,
                                        ProgressLine& progress,
                                        const DecodeModels::OptionsOf& options_of) {
  REPRISE_ASSIGN_OR_RETURN(ModelFolder folder, OpenModel(options));
  DecodeModels loaded;
  loaded.folder = std::make_unique<ModelFolder>(std::move(folder));
  REPRISE_ASSIGN_OR_RETURN(loaded.engine_options, options_of(*loaded.folder));
  ModelRunnerOptions& runner = loaded.engine_options.runner;
  runner.ranks.collectives = rank.collectives();
  REPRISE_ASSIGN_OR_RETURN(const c10::Device device,
                           ChooseDevice(options.device, NumGpus(), rank.local_rank));
  REPRISE_ASSIGN_OR_RETURN(
      loaded.model, LoadModel(loaded.folder->path, loaded.folder->config,
                              LoadOptionsOf(progress, options.dtype, device, *runner.max_seq_len,
                                            rank, Unsharded::kRefused)));
  const ModelSpec& spec = loaded.model->spec();
  if (device.is_cpu()) {
    SetSensibleThreads(NumParameters(loaded.folder->config), spec.dtype,
                       RanksOf(rank.collectives()).world);
  }
  if (!options.draft.has_value() || !options.draft->model.has_value()) return loaded;
  absl::StatusOr<std::unique_ptr<Model>> draft =
      LoadDraft(options, spec, *runner.max_seq_len, rank, progress);
  if (!draft.ok()) {
    return absl::Status(draft.status().code(), absl::StrCat("--draft: ", draft.status().message()));
  }
  loaded.draft = *std::move(draft);
  runner.speculation.proposer = ModelProposer{*loaded.draft};
  return loaded;
}

}  // namespace

bool RankOfRun::follows() const { return RanksOf(collectives()).rank != 0; }

absl::StatusOr<DecodeModels> DecodeModels::Load(const DecodeOptions& options, RankOfRun rank,
                                                ProgressLine& progress,
                                                const OptionsOf& options_of) {
  absl::StatusOr<DecodeModels> loaded = LoadOnRank(options, rank, progress, options_of);
  REPRISE_RETURN_IF_ERROR(StatusOverRanks(rank.collectives(), loaded.status()));
  if (!rank.follows()) progress.Show("setting up");
  return loaded;
}

absl::StatusOr<std::unique_ptr<Engine>> DecodeModels::MakeEngine(
    const ModelEngineOptions& options) const {
  absl::StatusOr<std::unique_ptr<Engine>> engine = CreateEngine(model.get(), options);
  if (!absl::IsResourceExhausted(engine.status())) return engine;
  return absl::ResourceExhaustedError(
      absl::StrCat("the KV cache does not fit into memory: give fewer --num_blocks, a smaller "
                   "--block_size or fewer --max_new_tokens (",
                   engine.status().message(), ")"));
}

}  // namespace reprise
