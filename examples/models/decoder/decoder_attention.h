// Unstable: any version may change this header (docs/embedding.md).
//
// The attention of a decoder's layers, without the norms around it: from the input of a sublayer to
// its output, before that joins the residual stream. DecoderModel has one; the config chooses
// which.
//
//   REPRISE_ASSIGN_OR_RETURN(auto attention, MakeGroupedAttention(config, weights, options));
//   const auto pass = attention->Begin(step, normed);
//   REPRISE_RETURN_IF_ERROR(pass->Apply(layer, normed, summed));
//
// Host decisions depend only on the sizes of the step's tensors, so a pass may be captured. Over
// several ranks the output is a summand, to be added over the ranks.
//
// Thread safety: as Model.

#ifndef REPRISE_MODELS_DECODER_DECODER_ATTENTION_H_
#define REPRISE_MODELS_DECODER_DECODER_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include <climits>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/attention/attention_params.h"
#include "reprise/attention/layer_spec.h"
#include "reprise/distributed/collectives.h"
#include "reprise/models/decoder/decoder_config.h"
#include "reprise/models/decoder/decoder_weights.h"
#include "reprise/runner/step.h"

namespace reprise {

// What the cache of a model with MLA holds of a token.
enum class MlaCache : int8_t {
  kLatent,    // one latent for all heads
  kExpanded,  // the keys and values of each head
};

struct AttentionOptions {
  int max_position = 0;  // positions to serve: rows of the rotary tables
  // The ranks that the keys of each sequence are divided over; null: this rank has all keys of its
  // heads.
  Collectives* context = nullptr;
  // MLA: steps whose rows may have more queries, and more than one, are not absorbed. So the method
  // of a decode row depends on whether the step has a prompt too, and the two differ by rounding.
  // INT_MAX: always absorbed, for the same bits independent of the rest of the batch
  // (BatchInvariance::kOn).
  int max_absorbed_query_len = 8;  // of MlaCache::kLatent
  MlaCache mla_cache = MlaCache::kLatent;
};

class DecoderAttention {
 public:
  virtual ~DecoderAttention() = default;

  // ModelSpec::layers and ModelSpec::within. They point into this object.
  virtual std::vector<LayerSpec> layers() const = 0;
  virtual std::vector<AttentionParams> within() const { return {}; }

  // The attention of all layers of one step, one layer after the other in the same memory.
  class Pass {
   public:
    virtual ~Pass() = default;
    // x and out [num_tokens, hidden_size] of the weights' dtype; they may be the same.
    virtual absl::Status Apply(int layer, const at::Tensor& x, const at::Tensor& out) = 0;
  };
  // `like` has the dtype and device of activations. The step must outlive the pass. May throw
  // LibTorch's exceptions.
  virtual std::unique_ptr<Pass> Begin(const Step& step, const at::Tensor& like) const = 0;
};

// Grouped-query attention with rotary embedding, windows, chunks, sinks and norms of q and k, as
// the config says. `config` is the rank's; both arguments must outlive the result. Errors: those of
// MakeRotaryTable().
absl::StatusOr<std::unique_ptr<DecoderAttention>> MakeGroupedAttention(
    const DecoderConfig& config, const DecoderWeights& weights, const AttentionOptions& options);

// Multi-head latent attention (MLA). REQUIRES: config.latent. Otherwise as above.
absl::StatusOr<std::unique_ptr<DecoderAttention>> MakeLatentAttention(
    const DecoderConfig& config, const DecoderWeights& weights, const AttentionOptions& options);

}  // namespace reprise

#endif  // REPRISE_MODELS_DECODER_DECODER_ATTENTION_H_
