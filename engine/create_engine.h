// Creates an engine for a Model in one call: the ModelRunner and the Engine.
//
//   REPRISE_ASSIGN_OR_RETURN(auto engine, CreateEngine(&model, {.runner = {.max_num_seqs = 8}}));
//   REPRISE_ASSIGN_OR_RETURN(SequenceId id, engine->Add({.prompt = {1, 2, 3}}));
//
// The engine of a model that is sharded over ranks (RankOptions::collectives) runs on rank 0. All
// other ranks call FollowEngine() with the same options.

#ifndef REPRISE_ENGINE_CREATE_ENGINE_H_
#define REPRISE_ENGINE_CREATE_ENGINE_H_

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "reprise/engine/engine.h"
#include "reprise/engine/request.h"
#include "reprise/engine/scheduler.h"
#include "reprise/runner/model.h"
#include "reprise/runner/model_runner.h"

namespace reprise {

struct ModelEngineOptions {
  ModelRunnerOptions runner = {};
  SchedulerPolicy scheduler = {};
  std::function<absl::Time()> clock = absl::Now;  // EngineOptions::clock
};

// The model must outlive the engine. Errors: the errors of ModelRunner::Create() and
// Engine::Create(). With several ranks, also the reason why another rank's runner could not be
// created, and FailedPrecondition if the options of the ranks differ.
absl::StatusOr<std::unique_ptr<Engine>> CreateEngine(Model* model,
                                                     const ModelEngineOptions& options = {});

// Runs the steps of rank 0's engine until that engine is destroyed. Call it on all ranks but rank
// 0. Errors: the errors of CreateEngine() and FollowSteps().
absl::Status FollowEngine(Model* model, const ModelEngineOptions& options);

// Returns the runner of an engine that CreateEngine() made.
const ModelRunner& ModelRunnerOf(const Engine& engine);

// Returns the logits [vocab_size] from which the token of an event of the last Step() was chosen,
// valid until the next Step(). REQUIRES: CreateEngine() made the engine. Errors: the errors of
// ModelRunner::logits(); InvalidArgument for an event without a token, or whose row is unknown
// (TokenEvent::row).
absl::StatusOr<at::Tensor> LogitsOf(const Engine& engine, const TokenEvent& event);

// Returns `rows` [tokens, dim], in the model's dtype, as an entry of Request::embeddings. They may
// be on the host or on the model's GPU. The result keeps the memory alive. If another stream writes
// the rows, it must have finished before Engine::Add(). Errors: InvalidArgument if the tensor is
// undefined, does not have two dimensions, has an unsupported dtype, or has rows that are not
// contiguous or that overlap, as those of Tensor::expand() do.
absl::StatusOr<RequestEmbeddings> RequestEmbeddingsOf(int first_token, const at::Tensor& rows,
                                                      std::string content = {});

}  // namespace reprise

#endif  // REPRISE_ENGINE_CREATE_ENGINE_H_
