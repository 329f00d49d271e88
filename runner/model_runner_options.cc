#include "runner/model_runner_options.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "distributed/rank_grid.h"
#include "distributed/share.h"
#include "runner/speculation/draft_heads.h"
#include "runner/speculation/draft_levels.h"

namespace reprise {
namespace {

absl::Status AtLeast(const char* name, int64_t value, int64_t least) {
  if (value >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is too small: expected at least ", least, ", got ", value));
}

// Fills in the captured sizes of mixed steps, or removes them.
absl::Status ResolveMixedGraphs(bool on_cpu, ModelRunnerOptions& options) {
  if (!options.mixed_graphs) {
    options.mixed_graphs = on_cpu ? MixedGraphs::kOff : MixedGraphs::kOn;
  }
  if (options.mixed_graphs == MixedGraphs::kOff) {
    options.mixed_graph_tokens.clear();
    options.mixed_graph_sizes.clear();
    return absl::OkStatus();
  }
  if (options.mixed_graph_tokens.empty()) {
    options.mixed_graph_tokens = DefaultMixedTokens(options.max_num_tokens);
  }
  if (options.mixed_graph_sizes.empty()) {
    options.mixed_graph_sizes = DefaultMixedSizes(options.max_num_seqs);
  }
  if (options.mixed_graph_tokens.back() <= options.max_num_tokens) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("mixed_graph_tokens must not pass max_num_tokens: expected at most ",
                   options.max_num_tokens, ", got ", options.mixed_graph_tokens.back()));
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
      return absl::UnimplementedError(absl::StrCat(
          "layer ", i, " of the model's spec is encoder-only, which needs no steps: supported are ",
          "decoder, encoder and encoder-decoder layers"));
    }
  }
  if (has_cross == (spec.max_encoder_position > 0)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("max_encoder_position of the model's spec must be ",
                   has_cross ? "at least 1, for it has encoder-decoder layers"
                             : "0, for it has no encoder-decoder layer",
                   ": got ", spec.max_encoder_position));
}

absl::Status CheckDraftModel(const ModelSpec& spec, const ModelRunnerOptions& options) {
  const SpeculationOptions& speculation = options.speculation;
  const bool is_wanted = speculation.proposer == SpeculationOptions::Proposer::kModel;
  if (is_wanted != (speculation.draft_model != nullptr)) {
    return absl::InvalidArgumentError(
        is_wanted ? "speculation.draft_model must be given for Proposer::kModel: got null"
                  : "speculation.draft_model is for Proposer::kModel: expected null");
  }
  if (!is_wanted) return absl::OkStatus();
  const ModelSpec& draft = speculation.draft_model->spec();
  const auto refusal = [](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat("speculation.draft_model must ", parts...));
  };
  if (draft.vocab_size != spec.vocab_size) {
    return refusal("have the model's vocabulary: expected vocab_size ", spec.vocab_size, ", got ",
                   draft.vocab_size);
  }
  if (draft.dtype != spec.dtype) {
    return refusal("have the model's dtype: expected ", std::string(DTypeName(spec.dtype)),
                   ", got ", std::string(DTypeName(draft.dtype)));
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
    return refusal("be a decoder, and the model too: expected no encoder");
  }
  if (draft.num_position_dims > 1 || spec.num_position_dims > 1) {
    return refusal("have positions of one dimension, and the model too: got ",
                   draft.num_position_dims, " and ", spec.num_position_dims);
  }
  if (!draft.within.empty()) {
    return refusal("attend through the cache alone: expected no `within`, got ",
                   draft.within.size());
  }
  return absl::OkStatus();
}

// Whether the drafts that are proposed form a tree, level by level.
absl::Status CheckTree(const SpeculationOptions& speculation) {
  const std::vector<int>& tree = speculation.tree;
  if (tree.empty()) {
    if (speculation.proposer == SpeculationOptions::Proposer::kNone) return absl::OkStatus();
    return CheckBetween("speculation.max_drafts of a proposer without a tree",
                        speculation.max_drafts, 0, kMaxDrafts);
  }
  if (speculation.shape != DraftShape::kTree) {
    return absl::InvalidArgumentError("speculation.tree is for DraftShape::kTree: expected none");
  }
  if (speculation.proposer == SpeculationOptions::Proposer::kNgram) {
    return absl::InvalidArgumentError(
        "speculation.tree is not for Proposer::kNgram, which proposes chains: expected none");
  }
  REPRISE_RETURN_IF_ERROR(CheckBetween("number of entries of speculation.tree",
                                       static_cast<int64_t>(tree.size()), speculation.max_drafts,
                                       speculation.max_drafts));
  return CheckDraftTree(tree);
}

// Whether the model can verify trees: the metadata of its layers have their masks.
absl::Status CheckServesTrees(const ModelSpec& spec, const char* whose) {
  const auto refusal = [&](const auto&... parts) {
    return absl::InvalidArgumentError(
        absl::StrCat("speculation.shape kTree is for ", parts..., ", got ", whose));
  };
  for (const LayerSpec& layer : spec.layers) {
    if (layer.chunk_size.has_value()) {
      return refusal("layers that see a whole tree: expected no layer of chunks");
    }
  }
  if (!spec.within.empty()) return refusal("models without `within`, whose rows are chains");
  if (spec.max_encoder_position > 0) return refusal("decoders: expected no encoder");
  return absl::OkStatus();
}

absl::Status CheckShape(const ModelSpec& spec, const SpeculationOptions& speculation) {
  const bool is_tree = speculation.shape == DraftShape::kTree;
  REPRISE_RETURN_IF_ERROR(CheckBetween("speculation.max_drafts", speculation.max_drafts, 0,
                                       is_tree ? kMaxTreeDrafts : kMaxDrafts));
  if (is_tree) {
    REPRISE_RETURN_IF_ERROR(CheckServesTrees(spec, "the model's spec"));
    if (speculation.draft_model != nullptr) {
      REPRISE_RETURN_IF_ERROR(
          CheckServesTrees(speculation.draft_model->spec(), "the draft model's spec"));
    }
  }
  return CheckTree(speculation);
}

// Heads with layers are a draft model of the model's own dtype, vocabulary and device.
absl::Status CheckHeadLayers(const ModelSpec& spec, const DraftHeads& heads) {
  const absl::Span<const LayerSpec> layers = heads.layers();
  if (layers.empty()) return absl::OkStatus();
  if (spec.max_encoder_position > 0 || spec.num_position_dims > 1) {
    return absl::UnimplementedError(absl::StrCat(
        "speculation.heads with layers are for decoders with positions of one dimension: got ",
        "max_encoder_position ", spec.max_encoder_position, ", num_position_dims ",
        spec.num_position_dims));
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerSpec& layer = layers[i];
    if (layer.kind != AttentionKind::kDecoder) {
      return absl::InvalidArgumentError(absl::StrCat(
          "layers of speculation.heads must be decoder layers: layer ", i, " is of another kind"));
    }
  }
  return absl::OkStatus();
}

// What only chains have.
absl::Status CheckChains(const ModelSpec& spec, const SpeculationOptions& speculation) {
  using Proposer = SpeculationOptions::Proposer;
  const bool is_tree = speculation.shape == DraftShape::kTree;
  if (is_tree && speculation.acceptance == DraftAcceptance::kRejection) {
    return absl::InvalidArgumentError(
        "speculation.acceptance kRejection is for chains, whose places have one draft each: "
        "expected DraftShape::kChain, got kTree");
  }
  const bool has_heads = speculation.proposer == Proposer::kHeads;
  if (has_heads != (speculation.heads != nullptr)) {
    return absl::InvalidArgumentError(
        "speculation.heads must be given for Proposer::kHeads, and for no other");
  }
  if (!has_heads) return absl::OkStatus();
  if (is_tree && !speculation.heads->layers().empty()) {
    return absl::InvalidArgumentError(
        "speculation.heads with layers propose chains: expected DraftShape::kChain, got kTree");
  }
  REPRISE_RETURN_IF_ERROR(CheckHeadLayers(spec, *speculation.heads));
  return AtLeast("the model's hidden_dim (for Proposer::kHeads)", spec.hidden_dim, 1);
}

// SpeculationOptions::graph_num_drafts where none are given. REQUIRES: the other fields are good.
std::vector<int> DefaultGraphDrafts(const SpeculationOptions& speculation) {
  const bool is_given_tree = speculation.shape == DraftShape::kTree &&
                             speculation.proposer == SpeculationOptions::Proposer::kNone;
  if (is_given_tree) return {speculation.max_drafts};
  const DraftLevels levels = LevelsOf(speculation.tree, speculation.max_drafts);
  std::vector<int> sizes;
  for (int level = 1; level < levels.num_levels(); level *= 2) {
    sizes.push_back(levels.first[level + 1] - 1);
  }
  sizes.push_back(speculation.max_drafts);
  return sizes;
}

// Checks the options of speculation, and fills in the sizes that follow from them.
absl::Status ResolveSpeculation(const ModelSpec& spec, ModelRunnerOptions& options) {
  using Proposer = SpeculationOptions::Proposer;
  SpeculationOptions& speculation = options.speculation;
  REPRISE_RETURN_IF_ERROR(CheckShape(spec, speculation));
  if (speculation.max_drafts == 0) {
    if (speculation.proposer == Proposer::kNone) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "speculation.max_drafts must be at least 1 for a proposer: got 0");
  }
  REPRISE_RETURN_IF_ERROR(CheckDraftModel(spec, options));
  if ((speculation.proposer == Proposer::kCustom) != (speculation.drafter != nullptr)) {
    return absl::InvalidArgumentError(
        "speculation.drafter must be given for Proposer::kCustom, and for no other");
  }
  REPRISE_RETURN_IF_ERROR(CheckChains(spec, speculation));
  if (speculation.proposer == Proposer::kNgram) {
    REPRISE_RETURN_IF_ERROR(
        CheckBetween("speculation.ngram.min_ngram", speculation.ngram.min_ngram, 1, 16));
    REPRISE_RETURN_IF_ERROR(CheckBetween("speculation.ngram.max_ngram", speculation.ngram.max_ngram,
                                         speculation.ngram.min_ngram, 16));
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
  options.max_earlier_logits =
      std::max(options.max_earlier_logits, options.max_num_seqs * speculation.max_drafts);
  return absl::OkStatus();
}

// What a rank with a part of the keys cannot serve.
absl::Status CheckContextLayer(int index, const LayerSpec& layer, int64_t cycle) {
  if (layer.kind != AttentionKind::kDecoder || layer.chunk_size.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("divides_context is for layers of full attention or of windows: layer ", index,
                     " of the model's spec has chunks or an encoder's keys"));
  }
  // The first rank counts the sinks. It sees a key of each query that sees any.
  if (layer.params.sinks != nullptr && layer.params.window_left.value_or(cycle) + 1 < cycle) {
    return absl::InvalidArgumentError(
        absl::StrCat("divides_context: the window of layer ", index,
                     ", which has sinks, must hold a run of each rank: expected at least ", cycle,
                     " tokens, got ", *layer.params.window_left + 1));
  }
  return absl::OkStatus();
}

// Checks the options of keys that are divided over ranks, and makes block_size that of all ranks.
absl::Status ResolveContext(const ModelSpec& spec, bool cascade_is_given,
                            ModelRunnerOptions& options) {
  REPRISE_RETURN_IF_ERROR(AtLeast("context_interleave", options.context_interleave, 1));
  const int num_ranks = RanksOf(options.collectives).world;
  if (options.context_ranks == 0) options.context_ranks = options.divides_context ? num_ranks : 1;
  REPRISE_RETURN_IF_ERROR(CheckGrid(num_ranks, options.context_ranks));
  if (options.context_ranks > 1 && !options.divides_context) {
    return absl::InvalidArgumentError(
        absl::StrCat("context_ranks is of divides_context, which is off: expected 0 or 1, got ",
                     options.context_ranks));
  }
  const int world = options.context_ranks;
  if (world == 1) {
    options.divides_context = false;
    return absl::OkStatus();
  }
  const auto excluded = [](const char* what) {
    return absl::InvalidArgumentError(
        absl::StrCat("divides_context excludes ", what, ", which needs all keys of a sequence"));
  };
  if (options.block_size % options.context_interleave != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("block_size must be a multiple of context_interleave (",
                     options.context_interleave, "), got ", options.block_size));
  }
  if (options.block_size > std::numeric_limits<int>::max() / world) {
    return absl::InvalidArgumentError(
        absl::StrCat("block_size is too large for ", world, " ranks: got ", options.block_size));
  }
  const int64_t cycle = int64_t{world} * options.context_interleave;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    REPRISE_RETURN_IF_ERROR(CheckContextLayer(static_cast<int>(i), spec.layers[i], cycle));
  }
  if (options.cascade == CascadeMode::kAuto) {
    if (cascade_is_given) return excluded("cascade");
    options.cascade = CascadeMode::kOff;
  }
  if (options.batch_invariance == BatchInvariance::kOn) return excluded("batch_invariance");
  if (options.kv_calibration != KvCalibration::kOff) return excluded("kv_calibration");
  if (options.speculation.draft_model != nullptr) return excluded("speculation.draft_model");
  if (options.speculation.heads != nullptr) return excluded("speculation.heads");
  if (options.speculation.shape == DraftShape::kTree) return excluded("trees of drafts");
  options.block_size *= world;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelRunnerOptions> ResolveRunnerOptions(const ModelRunnerOptions& options,
                                                        const ModelSpec& spec) {
  REPRISE_RETURN_IF_ERROR(CheckSpec(spec));
  ModelRunnerOptions resolved = options;
  const bool on_cpu = spec.device.is_cpu();
  if (!resolved.max_seq_len) resolved.max_seq_len = spec.max_position;
  if (!resolved.max_encoder_tokens) resolved.max_encoder_tokens = spec.max_encoder_position;
  if (!resolved.kv_dtype) resolved.kv_dtype = spec.dtype;
  if (!resolved.graphs) {
    resolved.graphs = on_cpu ? GraphSetOptions::Mode::kLazy : GraphSetOptions::Mode::kEager;
  }
  if (!resolved.max_steps_in_flight) resolved.max_steps_in_flight = on_cpu ? 1 : 2;
  if (!resolved.sample_shards) resolved.sample_shards = on_cpu;
  const bool invariant = resolved.batch_invariance == BatchInvariance::kOn;
  if (!resolved.cascade) {
    const bool is_measured = !on_cpu && SizeOf(spec.dtype) == 2;
    resolved.cascade = is_measured && !invariant ? CascadeMode::kAuto : CascadeMode::kOff;
  }
  if (resolved.cascade == CascadeMode::kAuto && invariant) {
    return absl::InvalidArgumentError(
        "cascade must be off with batch_invariance, where a row's bits must not depend on whom it "
        "shares a prefix with: expected kOff, got kAuto");
  }

  REPRISE_RETURN_IF_ERROR(AtLeast("max_num_seqs", resolved.max_num_seqs, 1));
  REPRISE_RETURN_IF_ERROR(
      AtLeast("max_num_tokens", resolved.max_num_tokens, resolved.max_num_seqs));
  REPRISE_RETURN_IF_ERROR(
      CheckBetween("max_earlier_logits", resolved.max_earlier_logits, 0, resolved.max_num_tokens));
  REPRISE_RETURN_IF_ERROR(ResolveMixedGraphs(on_cpu, resolved));
  REPRISE_RETURN_IF_ERROR(AtLeast("max_seq_len", *resolved.max_seq_len, 1));
  REPRISE_RETURN_IF_ERROR(ResolveSpeculation(spec, resolved));
  REPRISE_RETURN_IF_ERROR(AtLeast("block_size", resolved.block_size, 1));
  REPRISE_RETURN_IF_ERROR(AtLeast("max_steps_in_flight", *resolved.max_steps_in_flight, 1));
  if (*resolved.max_encoder_tokens > spec.max_encoder_position ||
      (*resolved.max_encoder_tokens < 1 && spec.max_encoder_position > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_encoder_tokens must be in [", spec.max_encoder_position > 0 ? 1 : 0, ", ",
                     spec.max_encoder_position, "], the model's max_encoder_position: got ",
                     *resolved.max_encoder_tokens));
  }
  if (*resolved.max_seq_len > spec.max_position) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_seq_len is beyond the model's max_position: expected at most ",
                     spec.max_position, ", got ", *resolved.max_seq_len));
  }
  if (resolved.kv_form == KvForm::kLatent) {
    return absl::InvalidArgumentError(
        "kv_form must be pair, packed, diffkv or K-packed: latents follow from the model's layers");
  }
  if (resolved.kv_calibration != KvCalibration::kOff && SizeOf(*resolved.kv_dtype) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_calibration is for quantised caches: expected an fp8 kv_dtype, got ",
                     std::string(DTypeName(*resolved.kv_dtype))));
  }
  if (resolved.num_blocks) {
    REPRISE_RETURN_IF_ERROR(AtLeast("num_blocks", *resolved.num_blocks, 2));
    if (resolved.kv_memory_bytes) {
      return absl::InvalidArgumentError("num_blocks and kv_memory_bytes exclude each other");
    }
  }
  REPRISE_RETURN_IF_ERROR(AtLeast("num_swap_blocks", resolved.num_swap_blocks, 0));
  REPRISE_RETURN_IF_ERROR(AtLeast("swap_memory_bytes", resolved.swap_memory_bytes, 0));
  if (resolved.num_swap_blocks == 1) {
    return absl::InvalidArgumentError(
        "num_swap_blocks must be 0, or at least 2, for host block 0 is never used: got 1");
  }
  if (resolved.num_swap_blocks > 0 && resolved.swap_memory_bytes > 0) {
    return absl::InvalidArgumentError("num_swap_blocks and swap_memory_bytes exclude each other");
  }
  REPRISE_RETURN_IF_ERROR(ResolveContext(spec, options.cascade.has_value(), resolved));
  return resolved;
}

}  // namespace reprise
