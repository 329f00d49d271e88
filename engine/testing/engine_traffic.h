// Random traffic over a whole engine: arrivals, cancels, priorities, several sequences a request, salts,
// shared prefixes, preemptions by both means, several steps in flight, mixed graphs, penalties, biases,
// masks, drafts of n-grams, of a draft model and of heads with layers and without, models with windows,
// chunks, latents and encoders. Every sequence must get the text that it would get alone: each token is what its logits by a dense forward pass in float64 say, after the stages that it
// asks for, for its seed and its index in the sequence; so do its log-probabilities.
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

  // Runs all requests to their ends, and checks their texts, that each sequence ends once, and that
  // no block is held afterwards.
  void Run();

  // After Run().
  int64_t num_preemptions() const;
  int64_t num_swaps() const;
  int64_t num_prefix_tokens_hit() const { return engine_->metrics().num_prefix_tokens_hit; }
  int64_t num_replays() const;
  SpeculationStatistics drafts() const { return engine_->metrics().speculation; }
  int num_tokens() const { return num_tokens_; }
  // Tokens that only a rounding of the logits explains.
  int num_near_ties() const { return num_near_ties_; }

 private:
  struct Text {
    std::vector<int32_t> tokens;
    std::vector<TokenLogProbs> log_probs;  // of the tokens; empty unless asked for
    FinishReason finish = FinishReason::kNone;
  };

  int Uniform(int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng_); }
  bool Chance(int percent) { return Uniform(1, 100) <= percent; }
  LayeredModelOptions RandomModel(c10::Device device);
  ModelEngineOptions RandomEngine();
  // Drafts in two seeds of three. Sets max_num_tokens and what proposes them.
  void AddDrafts(ModelRunnerOptions& runner);
  bool HasHeads() const { return options_.seed % 6 == 1 && !has_encoder_; }
  bool HasAttendingHeads() const { return HasHeads() && options_.seed % 12 == 1; }
  Request RandomRequest();
  std::vector<int32_t> RandomTokens(int count);
  void Step();
  // The token that follows the request's prompt and `generated`, from the raw logits of that place.
  int32_t Expected(const Request& request, int sample, std::vector<float> logits,
                   absl::Span<const int32_t> generated) const;
  void CheckText(const Request& request, int sample, const Text& text);

  EngineTrafficOptions options_;
  std::mt19937 rng_;
  int max_seq_len_ = 0;
  bool has_encoder_ = false;
  bool has_stages_ = false;
  std::vector<std::vector<int32_t>> prefixes_;  // that prompts begin with
  std::unique_ptr<LayeredModel> model_;
  std::unique_ptr<LayeredModel> draft_model_;  // null: none
  std::unique_ptr<DraftHeads> draft_heads_;    // likewise
  LayeredModelOptions model_options_;
  std::unique_ptr<Engine> engine_;
  std::map<SequenceId, Request> requests_;
  std::map<std::pair<SequenceId, int>, Text> texts_;  // by request and sample
  int num_tokens_ = 0;
  int num_near_ties_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_TESTING_ENGINE_TRAFFIC_H_
