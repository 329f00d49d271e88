// Unstable: any version may change this header (docs/embedding.md).
//
// A decoder with multi-head latent attention (DeepSeek-V2) as the runner sees it.
//
//   REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<MlaModel> model, MlaModel::Load(folder, {}));
//   REPRISE_ASSIGN_OR_RETURN(auto engine, CreateEngine(model.get(), {}));
//
// The cache holds a latent of kv_lora_rank elements and a rotated key of qk_rope_head_dim elements
// a token, for all heads (attention/layer_spec.h: v_in_k). Two methods give the same result:
//
//   absorbed      a query goes into the latent's space: one kv head of kv_lora_rank +
//                 qk_rope_head_dim elements, read once for all heads. For few queries a row:
//                 decode, verification of drafts, short chunks.
//   not absorbed  new tokens' keys and values are expanded and attended to in place
//                 (RaggedBatch); keys that are cached already are attended to absorbed, and the two
//                 are merged by their lse. For prompts: a fraction of the products.
//
// The step's largest possible number of queries per row, which is fixed under capture, decides
// between them.
//
// With MlaCache::kExpanded (SGLang's disable_mla) the cache holds the keys and values of every head
// instead, as that of a model without latents does, and each step is plain attention. It takes many
// times the memory. For comparisons, and for caches that other programs read.
//
// Thread safety: as Model.

#ifndef REPRISE_MODELS_DEEPSEEK_MLA_MODEL_H_
#define REPRISE_MODELS_DEEPSEEK_MLA_MODEL_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/distributed/collectives.h"
#include "reprise/hf/weights.h"
#include "reprise/models/deepseek/mla_config.h"
#include "reprise/models/deepseek/mla_weights.h"
#include "reprise/runner/model.h"
#include "reprise/runner/ranks/over_ranks.h"
#include "reprise/runner/step.h"

namespace reprise {

// What the cache holds of a token.
enum class MlaCache : int8_t {
  kLatent,    // one latent for all heads
  kExpanded,  // the keys and values of each head
};

struct MlaModelOptions {
  // Positions to serve: the number of rows of the rotary table. nullopt: the config's max_seq_len,
  // which it must not exceed.
  std::optional<int> max_position = {};
  // Steps whose rows may have more queries, and more than one, are not absorbed. So the method of a
  // decode row depends on whether the step has a prompt too, and the two differ by rounding.
  // INT_MAX: always absorbed, for the same bits independent of the rest of the batch
  // (BatchInvariance::kOn).
  int max_absorbed_query_len = 8;  // of MlaCache::kLatent
  MlaCache cache = MlaCache::kLatent;
  // The ranks that the model is divided over, this process among them; must outlive the model.
  // Null: one rank. Every rank has the same config and options, weights of its own, and runs the
  // same steps (docs/distributed.md).
  Collectives* collectives = nullptr;
  // The ranks that the keys of each sequence are divided over, for a runner with
  // RankOptions::context_ranks; must outlive the model. Null: this rank has all keys.
  // With `collectives`: groups of a grid (distributed/rank_grid.h).
  Collectives* context = nullptr;
};

class MlaModel : public Model {
 public:
  // A model over loaded weights, on their device. Errors: InvalidArgument if they are not of the
  // config's shapes on this rank, max_position is out of range, or both weights and keys are to be
  // divided; those of MlaConfigOfRank() and MakeRotaryTable().
  static absl::StatusOr<std::unique_ptr<MlaModel>> Create(const MlaConfig& config,
                                                          MlaWeights weights,
                                                          const MlaModelOptions& options);

  // The model of a Hugging Face folder; load.ranks are those of options.collectives. Errors: those
  // of LoadMlaConfig(), LoadMlaWeights() and Create().
  static absl::StatusOr<std::unique_ptr<MlaModel>> Load(const std::string& folder,
                                                        const LoadWeightsOptions& load,
                                                        const MlaModelOptions& options = {});

  const ModelSpec& spec() const override { return spec_; }
  absl::StatusOr<at::Tensor> Forward(const Step& step) override;

  const MlaConfig& config() const { return config_; }  // of this rank (MlaConfigOfRank())
  const MlaWeights& weights() const { return weights_; }

 private:
  struct Scratch;

  MlaModel(const MlaConfig& config, MlaWeights weights, at::Tensor rotary_table,
           const MlaModelOptions& options);

  // Both read scratch.normed and leave their output there, before the residual is added.
  absl::Status Attention(const Step& step, int layer, Scratch& scratch) const;
  absl::Status FeedForward(const Step& step, int layer, Scratch& scratch) const;
  // q and latent of scratch.normed, normalised and rotated.
  absl::Status Project(const Step& step, int layer, Scratch& scratch) const;
  // scratch.q_latent of scratch.q.
  absl::Status Absorb(const Step& step, int layer, Scratch& scratch) const;
  // scratch.values [num_tokens, num_heads, v_head_dim]: the output of attention.
  absl::Status AttendAbsorbed(const Step& step, int layer, Scratch& scratch) const;
  absl::Status AttendUnabsorbed(const Step& step, int layer, Scratch& scratch) const;
  absl::Status AttendExpanded(const Step& step, int layer, Scratch& scratch) const;
  // Keys [num_tokens, num_heads, qk_head_dim] and values [.., v_head_dim] of the step's tokens,
  // made of their latents.
  absl::StatusOr<std::pair<at::Tensor, at::Tensor>> Expand(const Step& step, int layer,
                                                           const Scratch& scratch) const;
  // hidden += normed; normed = RMSNorm(hidden).
  absl::Status AddAndNormalise(const Step& step, const at::Tensor& norm, Scratch& scratch) const;

  MlaConfig config_;
  MlaWeights weights_;
  at::Tensor rotary_table_;  // [max_position, qk_rope_head_dim] float32
  MlaModelOptions options_;
  ShardedVocabulary vocabulary_;
  SumBuffer hidden_memory_;  // of Scratch::hidden, which the embedding sums
  SumBuffer summed_memory_;  // of Scratch::summed
  ModelSpec spec_;
};

}  // namespace reprise

#endif  // REPRISE_MODELS_DEEPSEEK_MLA_MODEL_H_
