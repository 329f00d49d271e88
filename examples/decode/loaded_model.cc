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
#include "base/dtype.h"
#include "base/status_macros.h"
#include "distributed/share.h"
#include "examples/decode/device.h"

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

absl::StatusOr<std::unique_ptr<Model>> LoadShowing(ProgressLine& progress,
                                                   const ModelFolder& folder,
                                                   std::optional<DType> dtype, c10::Device device,
                                                   int max_position, RankOfRun rank,
                                                   Undivided undivided) {
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
      .collectives = rank.grid == nullptr ? nullptr : &rank.grid->weights(),
      .undivided = undivided,
      .context = rank.grid == nullptr ? nullptr : &rank.grid->context()};
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                           LoadModel(folder.path, folder.config, load));
  return model;
}

absl::StatusOr<std::unique_ptr<Model>> LoadDraft(const DecodeOptions& options,
                                                 const ModelSpec& spec, int max_seq_len,
                                                 RankOfRun rank, ProgressLine& progress) {
  REPRISE_ASSIGN_OR_RETURN(const ModelFolder folder, ModelFolder::Open(*options.draft->model));
  return LoadShowing(progress, folder, spec.dtype, spec.device, max_seq_len, rank,
                     Undivided::kReplicated);
}

}  // namespace

absl::StatusOr<ModelFolder> OpenModel(const DecodeOptions& options) {
  if (options.model.has_value()) return ModelFolder::Open(*options.model);
  REPRISE_ASSIGN_OR_RETURN(const std::string path, DefaultModelFolder());
  return ModelFolder::Open(path);
}

bool RankOfRun::follows() const { return RanksOf(collectives()).rank != 0; }

absl::StatusOr<LoadedModel> LoadedModel::Load(const DecodeOptions& options,
                                              const ModelFolder& folder, int max_seq_len,
                                              RankOfRun rank, ProgressLine& progress) {
  REPRISE_ASSIGN_OR_RETURN(const c10::Device device,
                           ChooseDevice(options.device, NumGpus(), rank.local_rank));
  LoadedModel loaded;
  REPRISE_ASSIGN_OR_RETURN(loaded.model, LoadShowing(progress, folder, options.dtype, device,
                                                     max_seq_len, rank, Undivided::kRefused));
  const ModelSpec& spec = loaded.model->spec();
  if (device.is_cpu()) {
    SetSensibleThreads(NumParameters(folder.config), spec.dtype, RanksOf(rank.collectives()).world);
  }
  if (!options.draft.has_value() || !options.draft->model.has_value()) return loaded;
  absl::StatusOr<std::unique_ptr<Model>> draft =
      LoadDraft(options, spec, max_seq_len, rank, progress);
  if (!draft.ok()) {
    return absl::Status(draft.status().code(), absl::StrCat("--draft: ", draft.status().message()));
  }
  loaded.draft = *std::move(draft);
  return loaded;
}

absl::StatusOr<std::unique_ptr<Engine>> CreateEngine(Model* model, const EngineOptions& options) {
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(model, options);
  if (!absl::IsResourceExhausted(engine.status())) return engine;
  return absl::ResourceExhaustedError(
      absl::StrCat("the KV cache does not fit into memory: give fewer --num_blocks, a smaller "
                   "--block_size or fewer --max_new_tokens (",
                   engine.status().message(), ")"));
}

}  // namespace reprise
