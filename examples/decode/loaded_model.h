// The model of a command, loaded on all ranks: its folder, its weights on the device, a draft model
// if there is one, and the options of its engine.
//
//   ProgressLine progress(std::cerr, mode);
//   const auto options_of = [&](const ModelFolder& folder) -> absl::StatusOr<ModelEngineOptions> {
//     return ServingEngineOptions(options, folder.max_seq_len());
//   };
//   REPRISE_ASSIGN_OR_RETURN(const DecodeModels loaded,
//                            DecodeModels::Load(options, rank, progress, options_of));
//   if (rank.follows()) return loaded.Follow();
//   REPRISE_ASSIGN_OR_RETURN(auto engine, loaded.MakeEngine());
//
// Thread safety: none.

#ifndef EXAMPLES_DECODE_LOADED_MODEL_H_
#define EXAMPLES_DECODE_LOADED_MODEL_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "examples/decode/options.h"
#include "examples/decode/progress_line.h"
#include "reprise/distributed/collectives.h"
#include "reprise/distributed/rank_grid.h"
#include "reprise/engine/create_engine.h"
#include "reprise/models/model_folder.h"
#include "reprise/runner/model.h"

namespace reprise {

// A process among those that the model is divided over. `grid` null: there is one.
struct RankOfRun {
  RankGrid* grid = nullptr;
  int local_rank = 0;  // its GPU

  Collectives* collectives() const { return grid == nullptr ? nullptr : &grid->all(); }
  bool follows() const;  // not rank 0
};

struct DecodeModels {
  std::unique_ptr<ModelFolder> folder;  // of --model, or the project's
  std::unique_ptr<Model> model;
  std::unique_ptr<Model> draft;  // null: none
  ModelEngineOptions engine_options;

  // Options of an engine over the model of a folder, but for the ranks and the draft model.
  using OptionsOf = std::function<absl::StatusOr<ModelEngineOptions>(const ModelFolder& folder)>;

  // Loads what --model and --draft name, for sequences up to the engine's max_seq_len. All ranks
  // call it, and all fail if one does. On the CPU, sets LibTorch's number of threads by the model's
  // size, unless OMP_NUM_THREADS is set. Errors: those of ModelFolder::Open(),
  // DefaultModelFolder(), `options_of`, ChooseDevice() and LoadModel(); of --draft, naming it.
  static absl::StatusOr<DecodeModels> Load(const DecodeOptions& options, RankOfRun rank,
                                           ProgressLine& progress, const OptionsOf& options_of);

  // CreateEngine(), on rank 0. Errors: its own; that the cache does not fit into memory names the
  // flags which change that.
  absl::StatusOr<std::unique_ptr<Engine>> MakeEngine() const { return MakeEngine(engine_options); }
  absl::StatusOr<std::unique_ptr<Engine>> MakeEngine(const ModelEngineOptions& options) const;
  // FollowEngine(), on other ranks.
  absl::Status Follow() const { return FollowEngine(model.get(), engine_options); }
};

}  // namespace reprise

#endif  // EXAMPLES_DECODE_LOADED_MODEL_H_
