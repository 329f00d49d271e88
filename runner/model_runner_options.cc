#include "reprise/runner/model_runner_options.h"

#include <algorithm>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"
#include "reprise/distributed/rank_grid.h"
#include "reprise/distributed/share.h"
#include "reprise/runner/speculation/draft_heads.h"
#include "reprise/runner/speculation/draft_levels.h"

namespace reprise {
namespace {

absl::Status AtLeast(const char* name, int64_t value, int64_t least) {
  if (value >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is too small: expected at least ", least, ", got ", value));
}

// Sets the captured sizes of mixed steps, or clears them.
absl::Status ResolveMixedGraphs(bool on_cpu, ModelRunnerOptions& options) {
  GraphOptions& graphs = options.graphs;
  std::vector<int>& sizes = options.debug.mixed_graph_sizes;
  if (!graphs.mixed) graphs.mixed = on_cpu ? MixedGraphs::kOff : MixedGraphs::kOn;
  if (graphs.mixed == MixedGraphs::kOff) {
    graphs.mixed_tokens.clear();
    sizes.clear();
    return absl::OkStatus();
  }
  if (graphs.mixed_tokens.empty()) graphs.mixed_tokens = DefaultMixedTokens(options.max_num_tokens);
  if (sizes.empty()) sizes = DefaultMixedSizes(options.max_num_seqs);
  if (graphs.mixed_tokens.back() <= options.max_num_tokens) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("graphs.mixed_tokens must not pass max_num_tokens: expected at most ",
                   options.max_num_tokens, ", got ", graphs.mixed_tokens.back()));
}

absl::Status CheckSpec(const ModelSpec& spec) {
  if (spec.layers.empty()) {
    return absl::InvalidArgumentError("the model's spec names no attention layer");
  }
  REPRISE_RETURN_IF_ERROR(AtLeast("vocab_size of the model's spec", spec.vocab_size, 1));
  REPRISE_RETURN_IF_ERROR(AtLeast("max_position of the model's spec", spec.max_position, 1));
  REPRISE_RETURN_IF_ERROR(
      AtLeast("input_embedding_dim of the model's spec", spec.input_embedding_dim, 0));
  REPRISE_RETURN_IF_ERROR(
      AtLeast("num_position_dims of the model's spec", spec.num_position_dims, 1));
  bool has_cross = false;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    has_cross |= spec.layers[i].kind == AttentionKind::kEncoderDecoder;
    if (spec.layers[i].kind == AttentionKind::kEncoderOnly) {
      return absl::UnimplementedError(
          absl::StrCat("layer ", i, " of the model's spec must not be encoder-only: supported are ",
                       "decoder, encoder and encoder-decoder layers"));
    }
  }
  if (has_cross == (spec.max_encoder_position > 0)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("max_encoder_position of the model's spec must be ",
                   has_cross ? "at least 1, because it has encoder-decoder layers"
                             : "0, because it has no encoder-decoder layer",
                   ": got ", spec.max_encoder_position));
}

absl::Status CheckDraftModel(const ModelSpec& spec, const ModelRunnerOptions& options) {
  const Model* const model = options.speculation.draft_model();
  if (model == nullptr) return absl::OkStatus();
  const ModelSpec& draft = model->spec();
  const auto refusal = [](const auto&... parts) {
    return absl::InvalidArgumentError(
        absl::StrCat("the draft model of speculation.proposer must ", parts...));
  };
  if (draft.vocab_size != spec.vocab_size) {
    return refusal("have the same vocabulary as the model: expected vocab_size ", spec.vocab_size,
                   ", got ", draft.vocab_size);
  }
  if (draft.dtype != spec.dtype) {
    return refusal("have the same dtype as the model: expected ",
                   std::string(DTypeName(spec.dtype)), ", got ",
                   std::string(DTypeName(draft.dtype)));
  }
  if (draft.device != spec.device) {
    return refusal("be on the model's device: expected ", spec.device.str(), ", got ",
                   draft.device.str());
  }
  if (draft.max_position < *options.max_seq_len) {
    return refusal("serve sequences as long: expected a max_position of at least ",
                   *options.max_seq_len, ", got ", draft.max_position);
  }
  if (draft.max_encoder_position > 0 || spec.max_encoder_position > 0) {
    return refusal("be a decoder, and so must the model: expected no encoder");
  }
  if (draft.num_position_dims > 1 || spec.num_position_dims > 1) {
    return refusal("have one-dimensional positions, and so must the model: got ",
                   draft.num_position_dims, " and ", spec.num_position_dims);
  }
  if (!draft.within.empty()) {
    return refusal("attend only through the cache: expected no `within`, got ",
                   draft.within.size());
  }
  return absl::OkStatus();
}

// Checks the tree of proposed drafts.
absl::Status CheckTree(const SpeculationOptions& speculation) {
  const std::vector<int>& tree = speculation.tree;
  if (tree.empty()) {
    if (!speculation.has_proposer()) return absl::OkStatus();
    return CheckBetween("speculation.max_drafts of a proposer without a tree",
                        speculation.max_drafts, 0, kMaxDrafts);
  }
  if (speculation.shape != DraftShape::kTree) {
    return absl::InvalidArgumentError("speculation.tree must be empty without DraftShape::kTree");
  }
  if (speculation.ngram() != nullptr) {
    return absl::InvalidArgumentError(
        "speculation.tree must be empty with NgramProposer, which proposes chains");
  }
  REPRISE_RETURN_IF_ERROR(CheckBetween("number of entries of speculation.tree",
                                       static_cast<int64_t>(tree.size()), speculation.max_drafts,
                                       speculation.max_drafts));
  return CheckDraftTree(tree);
}

// Checks that the model can verify trees: layers with chunks, attention within steps and encoders
// do not support tree masks.
absl::Status CheckServesTrees(const ModelSpec& spec, const char* whose) {
  const auto refusal = [&](const auto&... parts) {
    return absl::InvalidArgumentError(
        absl::StrCat("speculation.shape kTree requires ", parts..., ", got ", whose));
  };
  for (const LayerSpec& layer : spec.layers) {
    if (layer.chunk_size.has_value()) {
      return refusal("layers without chunks");
    }
  }
  if (!spec.within.empty()) return refusal("a model without `within`");
  if (spec.max_encoder_position > 0) return refusal("a decoder without an encoder");
  return absl::OkStatus();
}

absl::Status CheckShape(const ModelSpec& spec, const SpeculationOptions& speculation) {
  const bool is_tree = speculation.shape == DraftShape::kTree;
  REPRISE_RETURN_IF_ERROR(CheckBetween("speculation.max_drafts", speculation.max_drafts, 0,
                                       is_tree ? kMaxTreeDrafts : kMaxDrafts));
  if (is_tree) {
    REPRISE_RETURN_IF_ERROR(CheckServesTrees(spec, "the model's spec"));
    if (const Model* const draft = speculation.draft_model()) {
      REPRISE_RETURN_IF_ERROR(CheckServesTrees(draft->spec(), "the draft model's spec"));
    }
  }
  return CheckTree(speculation);
}

// Heads with layers run as a draft model with the model's dtype, vocabulary and device.
absl::Status CheckHeadLayers(const ModelSpec& spec, const DraftHeads& heads) {
  const absl::Span<const LayerSpec> layers = heads.layers();
  if (layers.empty()) return absl::OkStatus();
  if (spec.max_encoder_position > 0 || spec.num_position_dims > 1) {
    return absl::UnimplementedError(
        absl::StrCat("the heads of speculation.proposer, which have layers, are for decoders with "
                     "positions of one dimension: got ",
                     "max_encoder_position ", spec.max_encoder_position, ", num_position_dims ",
                     spec.num_position_dims));
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerSpec& layer = layers[i];
    if (layer.kind != AttentionKind::kDecoder) {
      return absl::InvalidArgumentError(
          absl::StrCat("layers of the heads of speculation.proposer must be decoder layers: layer ",
                       i, " has another kind"));
    }
  }
  return absl::OkStatus();
}

// Checks options that are supported only for chains, and the options of heads.
absl::Status CheckChains(const ModelSpec& spec, const SpeculationOptions& speculation) {
  const bool is_tree = speculation.shape == DraftShape::kTree;
  if (is_tree && speculation.acceptance == DraftAcceptance::kRejection) {
    return absl::InvalidArgumentError(
        "speculation.acceptance kRejection requires chains, which have one draft per position: "
        "expected DraftShape::kChain, got kTree");
  }
  const DraftHeads* const heads = speculation.heads();
  if (heads == nullptr) return absl::OkStatus();
  if (is_tree && !heads->layers().empty()) {
    return absl::InvalidArgumentError(
        "heads with layers propose chains: expected DraftShape::kChain, got kTree");
  }
  REPRISE_RETURN_IF_ERROR(CheckHeadLayers(spec, *heads));
  return AtLeast("the model's hidden_dim (for HeadsProposer)", spec.hidden_dim, 1);
}

// Returns the default of SpeculationOptions::graph_num_drafts. REQUIRES: the other fields are
// valid.
std::vector<int> DefaultGraphDrafts(const SpeculationOptions& speculation) {
  const bool is_tree = speculation.shape == DraftShape::kTree;
  if (is_tree && !speculation.has_proposer()) return {speculation.max_drafts};
  const DraftLevels levels = LevelsOf(speculation.tree, speculation.max_drafts);
  std::vector<int> sizes;
  for (int level = 1; level < levels.num_levels(); level *= 2) {
    sizes.push_back(levels.first[level + 1] - 1);
  }
  sizes.push_back(speculation.max_drafts);
  return sizes;
}

// Checks the options of speculation, and sets the sizes that follow from them.
absl::Status ResolveSpeculation(const ModelSpec& spec, ModelRunnerOptions& options) {
  SpeculationOptions& speculation = options.speculation;
  REPRISE_RETURN_IF_ERROR(CheckShape(spec, speculation));
  if (speculation.max_drafts == 0) {
    if (!speculation.has_proposer()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "speculation.max_drafts must be at least 1 for a proposer: got 0");
  }
  REPRISE_RETURN_IF_ERROR(CheckDraftModel(spec, options));
  REPRISE_RETURN_IF_ERROR(CheckChains(spec, speculation));
  if (const NgramProposer* const ngram = speculation.ngram()) {
    REPRISE_RETURN_IF_ERROR(
        CheckBetween("min_ngram of speculation.proposer", ngram->min_ngram, 1, 16));
    REPRISE_RETURN_IF_ERROR(
        CheckBetween("max_ngram of speculation.proposer", ngram->max_ngram, ngram->min_ngram, 16));
  }
  std::vector<int>& sizes = speculation.graph_num_drafts;
  if (sizes.empty()) sizes = DefaultGraphDrafts(speculation);
  if (sizes.back() != speculation.max_drafts) {
    return absl::InvalidArgumentError(
        absl::StrCat("speculation.graph_num_drafts must end with max_drafts: expected ",
                     speculation.max_drafts, ", got ", sizes.back()));
  }
  const int64_t most = int64_t{options.max_num_seqs} * (1 + speculation.max_drafts);
  REPRISE_RETURN_IF_ERROR(
      AtLeast("max_num_tokens (for max_num_seqs rows of 1 + speculation.max_drafts tokens)",
              options.max_num_tokens, most));
  options.logits.max_earlier_logits =
      std::max(options.logits.max_earlier_logits, options.max_num_seqs * speculation.max_drafts);
  return absl::OkStatus();
}

// Checks that a layer works on a rank that stores only a part of the keys.
absl::Status CheckContextLayer(int index, const LayerSpec& layer, int64_t cycle) {
  if (layer.kind != AttentionKind::kDecoder || layer.chunk_size.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ranks.context_ranks above 1 require layers with full attention or windows: layer ", index,
        " of the model's spec has chunks or an encoder's keys"));
  }
  // The first rank applies the sinks, so it must read at least one key of every query.
  if (layer.params.sinks != nullptr && layer.params.window_left.value_or(cycle) + 1 < cycle) {
    return absl::InvalidArgumentError(
        absl::StrCat("ranks.context_ranks: the window of layer ", index,
                     ", which has sinks, must span a run of each rank: expected at least ", cycle,
                     " tokens, got ", *layer.params.window_left + 1));
  }
  return absl::OkStatus();
}

// Checks the options for keys that are sharded over ranks. Sets block_size to the number of tokens
// per block on all these ranks together.
absl::Status ResolveContext(const ModelSpec& spec, bool cascade_is_given,
                            ModelRunnerOptions& options) {
  const int interleave = options.debug.context_interleave;
  REPRISE_RETURN_IF_ERROR(AtLeast("debug.context_interleave", interleave, 1));
  const int num_ranks = RanksOf(options.ranks.collectives).world;
  int& world = options.ranks.context_ranks;
  if (world == RankOptions::kAllRanks) world = num_ranks;
  REPRISE_RETURN_IF_ERROR(CheckGrid(num_ranks, world));
  if (world == 1) return absl::OkStatus();
  const auto excluded = [](const char* what) {
    return absl::InvalidArgumentError(absl::StrCat("ranks.context_ranks above 1 exclude ", what,
                                                   ", which needs all keys of a sequence"));
  };
  int& block_size = options.cache.block_size;
  if (block_size % interleave != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cache.block_size must be a multiple of debug.context_interleave (",
                     interleave, "), got ", block_size));
  }
  if (block_size > std::numeric_limits<int>::max() / world) {
    return absl::InvalidArgumentError(
        absl::StrCat("cache.block_size is too large for ", world, " ranks: got ", block_size));
  }
  const int64_t cycle = int64_t{world} * interleave;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    REPRISE_RETURN_IF_ERROR(CheckContextLayer(static_cast<int>(i), spec.layers[i], cycle));
  }
  if (options.device.cascade == CascadeMode::kAuto) {
    if (cascade_is_given) return excluded("device.cascade");
    options.device.cascade = CascadeMode::kOff;
  }
  if (options.device.batch_invariance == BatchInvariance::kOn) {
    return excluded("device.batch_invariance");
  }
  if (options.cache.calibration != KvCalibration::kOff) return excluded("cache.calibration");
  if (options.speculation.draft_model() != nullptr) return excluded("a draft model");
  if (options.speculation.heads() != nullptr) return excluded("heads that propose drafts");
  if (options.speculation.shape == DraftShape::kTree) return excluded("trees of drafts");
  block_size *= world;
  return absl::OkStatus();
}

// Sets the defaults that do not depend on the sizes of steps.
void FillDefaults(const ModelSpec& spec, ModelRunnerOptions& options) {
  const bool on_cpu = spec.device.is_cpu();
  if (!options.max_seq_len) options.max_seq_len = spec.max_position;
  if (!options.max_encoder_tokens) options.max_encoder_tokens = spec.max_encoder_position;
  if (!options.max_steps_in_flight) options.max_steps_in_flight = on_cpu ? 1 : 2;
  if (!options.cache.dtype) options.cache.dtype = spec.dtype;
  if (!options.graphs.mode) {
    options.graphs.mode = on_cpu ? GraphSetOptions::Mode::kLazy : GraphSetOptions::Mode::kEager;
  }
  if (!options.debug.sample_shards) options.debug.sample_shards = on_cpu;
  if (!options.device.cascade) {
    const bool is_measured = !on_cpu && SizeOf(spec.dtype) == 2;
    const bool invariant = options.device.batch_invariance == BatchInvariance::kOn;
    options.device.cascade = is_measured && !invariant ? CascadeMode::kAuto : CascadeMode::kOff;
  }
}

// Returns the number in a BlockMemory that is not empty.
int64_t ValueOf(const BlockMemory& memory) {
  const auto* const blocks = std::get_if<NumBlocks>(&memory);
  return blocks != nullptr ? blocks->value : std::get<NumBytes>(memory).value;
}

// Checks the cache's options, and clears a swap size of 0.
absl::Status ResolveCache(CacheOptions& cache) {
  REPRISE_RETURN_IF_ERROR(AtLeast("cache.block_size", cache.block_size, 1));
  if (cache.form == KvForm::kLatent) {
    return absl::InvalidArgumentError(
        "cache.form must be pair, packed, diffkv or K-packed: latents follow from the model's "
        "layers");
  }
  if (cache.calibration != KvCalibration::kOff && SizeOf(*cache.dtype) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("cache.calibration is for quantised caches: expected an fp8 cache.dtype, got ",
                     std::string(DTypeName(*cache.dtype))));
  }
  if (const auto* const blocks = std::get_if<NumBlocks>(&cache.size)) {
    REPRISE_RETURN_IF_ERROR(AtLeast("cache.size", blocks->value, 2));
  }
  if (!cache.swaps()) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(AtLeast("cache.swap", ValueOf(cache.swap), 0));
  if (cache.swap == BlockMemory(NumBlocks{1})) {
    return absl::InvalidArgumentError(
        "cache.swap must be 0, or at least 2 blocks, because host block 0 is never used: got 1");
  }
  if (ValueOf(cache.swap) == 0) cache.swap = {};
  return absl::OkStatus();
}

absl::Status CheckLengths(const ModelSpec& spec, const ModelRunnerOptions& options) {
  const int max_encoder_tokens = *options.max_encoder_tokens;
  if (max_encoder_tokens > spec.max_encoder_position ||
      (max_encoder_tokens < 1 && spec.max_encoder_position > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_encoder_tokens must be in [", spec.max_encoder_position > 0 ? 1 : 0, ", ",
                     spec.max_encoder_position, "], the model's max_encoder_position: got ",
                     max_encoder_tokens));
  }
  if (*options.max_seq_len > spec.max_position) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_seq_len is beyond the model's max_position: expected at most ",
                     spec.max_position, ", got ", *options.max_seq_len));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelRunnerOptions> ResolveRunnerOptions(const ModelRunnerOptions& options,
                                                        const ModelSpec& spec) {
  REPRISE_RETURN_IF_ERROR(CheckSpec(spec));
  ModelRunnerOptions resolved = options;
  FillDefaults(spec, resolved);
  if (resolved.device.cascade == CascadeMode::kAuto &&
      resolved.device.batch_invariance == BatchInvariance::kOn) {
    return absl::InvalidArgumentError(
        "device.cascade must be off with device.batch_invariance, because a row's result must not "
        "depend on shared prefixes: expected kOff, got kAuto");
  }
  REPRISE_RETURN_IF_ERROR(AtLeast("max_num_seqs", resolved.max_num_seqs, 1));
  REPRISE_RETURN_IF_ERROR(
      AtLeast("max_num_tokens", resolved.max_num_tokens, resolved.max_num_seqs));
  REPRISE_RETURN_IF_ERROR(CheckBetween(
      "logits.max_earlier_logits", resolved.logits.max_earlier_logits, 0, resolved.max_num_tokens));
  REPRISE_RETURN_IF_ERROR(ResolveMixedGraphs(spec.device.is_cpu(), resolved));
  REPRISE_RETURN_IF_ERROR(AtLeast("max_seq_len", *resolved.max_seq_len, 1));
  REPRISE_RETURN_IF_ERROR(ResolveSpeculation(spec, resolved));
  REPRISE_RETURN_IF_ERROR(AtLeast("max_steps_in_flight", *resolved.max_steps_in_flight, 1));
  REPRISE_RETURN_IF_ERROR(CheckLengths(spec, resolved));
  REPRISE_RETURN_IF_ERROR(ResolveCache(resolved.cache));
  REPRISE_RETURN_IF_ERROR(ResolveContext(spec, options.device.cascade.has_value(), resolved));
  return resolved;
}

}  // namespace reprise
