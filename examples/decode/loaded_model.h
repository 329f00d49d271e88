// The model of a command: its folder, its weights on the device, and a draft model if there is one.
//
//   REPRISE_ASSIGN_OR_RETURN(const ModelFolder folder, OpenModel(options));
//   ProgressLine progress(std::cerr, mode);
//   REPRISE_ASSIGN_OR_RETURN(LoadedModel loaded,
//                            LoadedModel::Load(options, folder, max_seq_len, {}, progress));
//   engine_options.runner.speculation.draft_model = loaded.draft.get();
//   REPRISE_ASSIGN_OR_RETURN(auto engine, CreateEngine(loaded.model.get(), engine_options));
//
// Thread safety: none.

#ifndef EXAMPLES_DECODE_LOADED_MODEL_H_
#define EXAMPLES_DECODE_LOADED_MODEL_H_

#include <memory>

#include "absl/status/statusor.h"
#include "distributed/collectives.h"
#include "distributed/rank_grid.h"
#include "engine/engine.h"
#include "examples/decode/options.h"
#include "examples/decode/progress_line.h"
#include "examples/models/model_folder.h"
#include "runner/model.h"

namespace reprise {

// The folder of --model, or the project's. Errors: those of ModelFolder::Open() and
// DefaultModelFolder().
absl::StatusOr<ModelFolder> OpenModel(const DecodeOptions& options);

// A process among those that the model is divided over. `grid` null: there is one.
struct RankOfRun {
  RankGrid* grid = nullptr;
  int local_rank = 0;  // its GPU

  Collectives* collectives() const { return grid == nullptr ? nullptr : &grid->all(); }
  bool follows() const;  // not rank 0
};

struct LoadedModel {
  std::unique_ptr<Model> model;
  std::unique_ptr<Model> draft;  // null: none

  // Loads what --model and --draft name, for sequences up to `max_seq_len`. On the CPU, sets
  // LibTorch's number of threads by the model's size, unless OMP_NUM_THREADS is set. Errors: those
  // of ChooseDevice() and LoadModel(); of --draft, naming it.
  static absl::StatusOr<LoadedModel> Load(const DecodeOptions& options, const ModelFolder& folder,
                                          int max_seq_len, RankOfRun rank, ProgressLine& progress);
};

// Engine::Create(). Errors: its own; that the cache does not fit into memory names the flags which
// change that.
absl::StatusOr<std::unique_ptr<Engine>> CreateEngine(Model* model, const EngineOptions& options);

}  // namespace reprise

#endif  // EXAMPLES_DECODE_LOADED_MODEL_H_
