// Random traffic over a whole engine, with:
//   - arrivals, cancellations, priorities, several sequences per request, salts, shared prefixes;
//   - preemptions by swap and by recomputation, several steps in flight, mixed graphs;
//   - penalties, biases, masks;
//   - drafts by n-grams, by a draft model, and by draft heads with and without attention;
//   - models with windows, chunked attention, MLA and encoders.
//
// The output of every sequence must not depend on other sequences. Each token must be the token
// that is sampled from the logits of a dense forward pass in float64, after the sequence's stages,
// with the sequence's seed and the token's index. Log-probabilities are checked against the same
// logits.
//
//   EngineTraffic traffic({.device = c10::kCPU, .seed = 17});
//   traffic.Run();   // gtest expectations

#ifndef REPRISE_ENGINE_TESTING_ENGINE_TRAFFIC_H_
#define REPRISE_ENGINE_TESTING_ENGINE_TRAFFIC_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "reprise/base/ids.h"
#include "reprise/engine/create_engine.h"
#include "reprise/engine/request.h"
#include "reprise/engine/speculation_policy.h"
#include "reprise/runner/speculation/draft_heads.h"
#include "reprise/runner/testing/layered_model.h"

namespace reprise {

struct EngineTrafficOptions {
  c10::Device device = c10::kCPU;
  unsigned seed = 0;
  int num_requests = 16;
};

class EngineTraffic {
 public:
  explicit EngineTraffic(const EngineTrafficOptions& options);

  // Runs all requests until they have ended. Checks their outputs, that each sequence ends once,
  // and that no block is held afterwards.
  void Run();

  // Statistics of Run().
  int64_t num_preemptions() const;
  int64_t num_swaps() const;
  int64_t num_prefix_tokens_hit() const { return engine_->metrics().num_prefix_tokens_hit; }
  int64_t num_replays() const;
  SpeculationStatistics drafts() const { return engine_->metrics().speculation; }
  int num_tokens() const { return num_tokens_; }
  // Number of tokens that differ from the expected token, but are within the rounding of the
  // logits.
  int num_near_ties() const { return num_near_ties_; }

 private:
  struct Text {
    std::vector<int32_t> tokens;
    std::vector<TokenLogProbs> log_probs;  // one per token; empty unless requested
    FinishReason finish = FinishReason::kNone;
  };

  int Uniform(int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng_); }
  bool Chance(int percent) { return Uniform(1, 100) <= percent; }
  LayeredModelOptions RandomModel(c10::Device device);
  ModelEngineOptions RandomEngine();
  // Enables drafts for two of three seeds. Sets max_num_tokens and the proposer.
  void AddDrafts(ModelRunnerOptions& runner);
  bool HasHeads() const { return options_.seed % 6 == 1 && !has_encoder_; }
  bool HasAttendingHeads() const { return HasHeads() && options_.seed % 12 == 1; }
  Request RandomRequest();
  std::vector<int32_t> RandomTokens(int count);
  void Step();
  // Returns the token that follows the request's prompt and `generated`, sampled from `logits`, the
  // raw logits at this position.
  int32_t Expected(const Request& request, int sample, std::vector<float> logits,
                   absl::Span<const int32_t> generated) const;
  void CheckText(const Request& request, int sample, const Text& text);

  EngineTrafficOptions options_;
  std::mt19937 rng_;
  int max_seq_len_ = 0;
  bool has_encoder_ = false;
  bool has_stages_ = false;
  std::vector<std::vector<int32_t>> prefixes_;  // shared prefixes of prompts
  std::unique_ptr<LayeredModel> model_;
  std::unique_ptr<LayeredModel> draft_model_;  // null: none
  std::unique_ptr<DraftHeads> draft_heads_;    // null: none
  LayeredModelOptions model_options_;
  std::unique_ptr<Engine> engine_;
  std::map<SequenceId, Request> requests_;
  std::map<std::pair<SequenceId, int>, Text> texts_;  // by request and sample
  int num_tokens_ = 0;
  int num_near_ties_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_TESTING_ENGINE_TRAFFIC_H_
