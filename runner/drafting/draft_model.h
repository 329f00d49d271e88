// A smaller model that proposes drafts: the passes that it makes in a step, before the model's own.
//
//   pass 0   the tokens of a row that it has not seen, up to the newest: its draft follows
//   pass 1   that draft alone: the next one follows
//   ...      one pass for each draft
//
// Of a tree (DraftTrees) there is one pass for each level: all nodes of a level at once, and behind
// each the tokens that the model is likeliest to choose with the noise of that place.
//
// Between passes nothing leaves the device, so all are in the graph of the step. Drafts are drawn as
// the model's own tokens are, with the same noise: two models that agree on the probabilities agree
// on the token (Daliri et al., "Coupling without communication and drafter-invariant speculative
// decoding", 2024).
//
// Its layers follow the model's among those of the metadata and the cache. Steps with chunks of
// prompts run it over the same tokens as the model (PromptPass()), so that it has seen a sequence
// when decoding begins. What it has not seen, such as tokens decoded without drafts, it sees in pass
// 0, up to 1 + num_drafts tokens a step; until then the sequence gets no drafts of it.
//
// Thread safety: none; one owner. All that it is given must outlive the functions that it returns.

#ifndef REPRISE_RUNNER_DRAFTING_DRAFT_MODEL_H_
#define REPRISE_RUNNER_DRAFTING_DRAFT_MODEL_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/attention/layer_classes.h"
#include "reprise/attention/layer_spec.h"
#include "reprise/attention/speculation/draft_rows_args.h"
#include "reprise/base/dtype.h"
#include "reprise/cache/kv_group.h"
#include "reprise/cache/storage/kv_layer.h"
#include "reprise/graphs/fingerprint.h"
#include "reprise/graphs/graph_key.h"
#include "reprise/runner/device/device_driver.h"
#include "reprise/runner/drafting/draft_trees.h"
#include "reprise/runner/drafting/head_model.h"
#include "reprise/runner/model.h"
#include "reprise/runner/sampling/sampling.h"
#include "reprise/runner/step_memory.h"
#include "reprise/runner/step_metadata.h"

namespace reprise {

struct DraftModelOptions {
  Model* model = nullptr;
  HeadModel* heads = nullptr;  // the same, where the model is heads with layers; else null. Chains
  int first_layer = 0;         // of the metadata's layers: its first one
  int max_num_seqs = 0;
  int block_size = 0;
  std::vector<KvGroupSpec> groups;
  DeviceDriver* driver = nullptr;
  const StepMemory* memory = nullptr;  // with draft_arrays()
  const StepMetadata* metadata = nullptr;
  const DraftTrees* trees = nullptr;  // null: drafts are chains
  bool attention_in_graphs = true;    // ModelRunnerOptions
  // Keeps the logits of all passes, of a step's rows one pass after the other, in this dtype: for
  // rejection sampling of chains of up to max_drafts. nullopt: does not.
  std::optional<DType> kept_logits_dtype = {};
  int max_drafts = 0;  // read with kept_logits_dtype
};

// The model's spec with the layers of a draft model after its own.
ModelSpec WithLayersOf(const ModelSpec& spec, const ModelSpec& draft);

// The classes of layers of which those from `first_draft_layer` on are a draft model's, or of heads:
// these keep the keys of whole sequences, whatever they see. For they may be behind a sequence by any
// number of tokens, whose windows have left the sequence's own. Errors: as CollectLayerClasses().
absl::StatusOr<LayerClasses> CollectClassesWithDrafter(absl::Span<const LayerSpec> layers,
                                                       int first_draft_layer);

class DraftModel {
 public:
  // Allocates its logits. Errors: ResourceExhausted if the device has too little memory.
  static absl::StatusOr<std::unique_ptr<DraftModel>> Create(const DraftModelOptions& options);

  // The work that writes the drafts of a step at `key` into its token_ids. `kv`: one per layer of
  // the metadata, of `num_blocks` blocks.
  std::function<absl::Status()> Passes(const GraphKey& key, absl::Span<const KvLayer> kv,
                                       int num_blocks) const;

  // Its forward pass over the tokens of a step at `key`, as the model's own. `calibrated`: as in
  // Step::Parts.
  std::function<absl::Status()> PromptPass(const GraphKey& key, absl::Span<const KvLayer> kv,
                                           const KvScales* calibrated) const;

  // [.., vocab_size] rows as StepArrays::draft_logits says, if they are kept.
  const at::Tensor& logits() const { return logits_; }

  int64_t bytes() const { return static_cast<int64_t>(logits_.nbytes() + chosen_.nbytes()); }
  void AddTo(Fingerprint& fingerprint) const;

 private:
  // A pass: rows, forward pass, and a choice for each rank of the drafts that follow a node.
  struct Pass {
    DraftRowsArgs rows;
    StepBatches batches;
    std::shared_ptr<const Step> step = {};
    std::vector<SampleArgs> samples = {};
  };

  explicit DraftModel(const DraftModelOptions& options);
  // The rows of the passes of a step at `key`, without what differs from pass to pass.
  DraftRowsArgs RowsAt(const GraphKey& key, int num_blocks) const;
  Pass PassAt(const GraphKey& key, const DraftRowsArgs& rows, const DraftLevels& levels, int index,
              absl::Span<const KvLayer> kv) const;
  absl::Status Choose(const Pass& pass) const;

  // A step over `arrays`; logits of the first entries of its logits_indices, which go to `logits`.
  std::shared_ptr<const Step> StepAt(const StepArrays& arrays, const StepBatches& batches,
                                     at::Tensor logits, absl::Span<const KvLayer> kv,
                                     const KvScales* calibrated) const;

  DraftModelOptions options_;
  std::vector<int> classes_;  // of its layers
  // [max_num_seqs x nodes of a level, vocab_size], or of all passes of a chain; and one row more, of
  // the pass over a prompt.
  at::Tensor logits_;
  at::Tensor chosen_;  // [ranks, max_num_seqs x nodes of a level] int32
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_DRAFTING_DRAFT_MODEL_H_
