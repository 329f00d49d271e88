// Runs a smaller model that proposes drafts. Its passes run in each step before the model's forward
// pass.
//
//   pass 0   the tokens of a row that the draft model has not processed, up to the newest token;
//            proposes the first draft
//   pass i   draft i - 1; proposes draft i
//
// For a tree (DraftTrees), each pass processes all nodes of one level. For each node, it proposes
// the tokens that the model is most likely to choose with the noise of that position.
//
// All data of the passes stays on the device, so all passes are in the graph of the step. Drafts
// are sampled like the model's tokens, with the same noise: if both models assign the same
// probabilities, they choose the same token (Daliri et al., "Coupling without communication and
// drafter-invariant speculative decoding", 2024).
//
// In the metadata and the cache, the draft model's layers follow the model's layers. In steps with
// prefill chunks, the draft model also processes the tokens of the step (PromptPass()), so that it
// is up to date when decoding begins. Pass 0 catches up on other tokens, such as tokens decoded
// without drafts: at most 1 + num_drafts tokens per step. Until it has caught up, it proposes no
// drafts for the sequence.
//
// Thread safety: none; one owner. This object and the objects that it is given must outlive the
// functions that it returns.

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
  // The same object as `model` if the drafter is heads with layers; otherwise null. Chains only.
  HeadModel* heads = nullptr;
  int first_layer = 0;  // index of the draft model's first layer in the metadata's layers
  int max_num_seqs = 0;
  int block_size = 0;
  std::vector<KvGroupSpec> groups;
  DeviceDriver* driver = nullptr;
  const StepMemory* memory = nullptr;  // with draft_arrays()
  const StepMetadata* metadata = nullptr;
  const DraftTrees* trees = nullptr;  // null: drafts are chains
  bool attention_in_graphs = true;    // as in ModelRunnerOptions
  // For rejection sampling of chains of at most max_drafts: keeps the logits of all passes, in this
  // dtype, ordered by pass. nullopt: does not keep them.
  std::optional<DType> kept_logits_dtype = {};
  int max_drafts = 0;  // read with kept_logits_dtype
};

// Returns the model's spec with the layers of a draft model appended.
ModelSpec WithLayersOf(const ModelSpec& spec, const ModelSpec& draft);

// Returns the layer classes of a model with a drafter: layers from `first_draft_layer` belong to a
// draft model or to heads. Draft layers retain the keys of whole sequences even if their attention
// is windowed. A drafter that catches up needs keys that the model's window has already released.
// Errors: as CollectLayerClasses().
absl::StatusOr<LayerClasses> CollectClassesWithDrafter(absl::Span<const LayerSpec> layers,
                                                       int first_draft_layer);

class DraftModel {
 public:
  // Allocates the logits and the sampled tokens. Errors: ResourceExhausted if the device has too
  // little memory.
  static absl::StatusOr<std::unique_ptr<DraftModel>> Create(const DraftModelOptions& options);

  // Returns the work that writes the drafts of a step at `key` into its token_ids. `kv`: one entry
  // per layer of the metadata, each with `num_blocks` blocks.
  std::function<absl::Status()> Passes(const GraphKey& key, absl::Span<const KvLayer> kv,
                                       int num_blocks) const;

  // Returns the draft model's forward pass over the tokens of a step at `key`, like the model's
  // own. `calibrated`: as in Step::Parts.
  std::function<absl::Status()> PromptPass(const GraphKey& key, absl::Span<const KvLayer> kv,
                                           const KvScales* calibrated) const;

  // [.., vocab_size] logits of all passes, if they are kept. StepArrays::draft_logits holds their
  // rows.
  const at::Tensor& logits() const { return logits_; }

  int64_t bytes() const { return static_cast<int64_t>(logits_.nbytes() + chosen_.nbytes()); }
  void AddTo(Fingerprint& fingerprint) const;

 private:
  // A pass: its rows, its forward pass, and one sampling per child index.
  struct Pass {
    DraftRowsArgs rows;
    StepBatches batches;
    std::shared_ptr<const Step> step = {};
    std::vector<SampleArgs> samples = {};
  };

  explicit DraftModel(const DraftModelOptions& options);
  // Returns the rows for a step at `key`, without the fields that differ between passes.
  DraftRowsArgs RowsAt(const GraphKey& key, int num_blocks) const;
  Pass PassAt(const GraphKey& key, const DraftRowsArgs& rows, const DraftLevels& levels, int index,
              absl::Span<const KvLayer> kv) const;
  absl::Status Choose(const Pass& pass) const;

  // Returns a step over `arrays`. The logits for the first entries of logits_indices are written to
  // `logits`.
  std::shared_ptr<const Step> StepAt(const StepArrays& arrays, const StepBatches& batches,
                                     at::Tensor logits, absl::Span<const KvLayer> kv,
                                     const KvScales* calibrated) const;

  DraftModelOptions options_;
  std::vector<int> classes_;  // of the draft model's layers
  // [max_num_seqs x max. nodes per level, vocab_size], for chains with kept logits one such block
  // per pass; and one more row for the pass over a prompt.
  at::Tensor logits_;
  at::Tensor chosen_;  // [child indices, max_num_seqs x max. nodes per level] int32
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_DRAFTING_DRAFT_MODEL_H_
