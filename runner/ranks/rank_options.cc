#include "reprise/runner/ranks/rank_options.h"

#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "reprise/base/status_macros.h"
#include "reprise/distributed/agreement.h"
#include "reprise/runner/speculation/draft_heads.h"

namespace reprise {
namespace {

// Collects lines of names and values.
class OptionLines {
 public:
  template <typename T>
  void Add(std::string_view name, const T& value) {
    absl::StrAppend(&text_, std::string(name), "=", value, "\n");
  }
  template <typename T>
  void Add(std::string_view name, const std::optional<T>& value) {
    value.has_value() ? Add(name, *value) : Add(name, "none");
  }
  void Add(std::string_view name, bool value) { Add(name, value ? "on" : "off"); }
  void Add(std::string_view name, DType value) { Add(name, std::string(DTypeName(value))); }
  void Add(std::string_view name, const std::vector<int>& values) {
    Add(name, values.empty() ? "none" : absl::StrJoin(values, ","));
  }
  // Adds the name of an enumerator, or of a variant's alternative, from `names`, which is indexed
  // by value.
  template <typename Enum>
  void AddName(std::string_view name, Enum value, std::initializer_list<const char*> names) {
    const auto index = static_cast<size_t>(value);
    Add(name, index < names.size() ? std::string(names.begin()[index]) : absl::StrCat(index));
  }

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Returns which keys each layer reads: all (f), a window (w) or a chunk (c) with its number of
// tokens, the encoder's keys (e), or the keys of an encoder layer (x). A layer that shares the keys
// of layer i has the suffix =i.
std::string LayersText(const std::vector<LayerSpec>& layers) {
  return absl::StrJoin(layers, ",", [](std::string* out, const LayerSpec& layer) {
    if (layer.kind == AttentionKind::kEncoderDecoder) {
      out->append("e");
    } else if (layer.kind != AttentionKind::kDecoder) {
      out->append("x");
    } else if (layer.chunk_size.has_value()) {
      absl::StrAppend(out, "c", *layer.chunk_size);
    } else if (layer.params.window_left.has_value()) {
      absl::StrAppend(out, "w", *layer.params.window_left + 1);
    } else {
      out->append("f");
    }
    if (layer.shares_kv_with.has_value()) absl::StrAppend(out, "=", *layer.shares_kv_with);
  });
}

void AddSpec(const ModelSpec& spec, OptionLines& lines) {
  lines.Add("device", spec.device.is_cpu() ? "cpu" : "cuda");
  lines.Add("dtype", spec.dtype);
  lines.Add("logits_dtype", spec.logits_dtype.value_or(spec.dtype));
  lines.Add("vocab_size", spec.vocab_size);
  lines.Add("max_position", spec.max_position);
  lines.Add("max_encoder_position", spec.max_encoder_position);
  lines.Add("input_embedding_dim", spec.input_embedding_dim);
  lines.Add("num_position_dims", spec.num_position_dims);
  lines.Add("hidden_dim", spec.hidden_dim);
  lines.Add("num_layers", spec.layers.size());
  lines.Add("layers", LayersText(spec.layers));
  lines.Add("within", spec.within.size());
}

void AddGraphs(const ModelRunnerOptions& options, OptionLines& lines) {
  lines.AddName("graphs.mode", *options.graphs.mode, {"off", "eager", "lazy"});
  lines.Add("graphs.sizes", options.graphs.sizes);
  lines.Add("graphs.memory_budget_bytes", options.graphs.memory_budget_bytes);
  lines.AddName("graphs.mixed", *options.graphs.mixed, {"off", "on"});
  lines.Add("graphs.mixed_tokens", options.graphs.mixed_tokens);
  lines.Add("debug.mixed_graph_sizes", options.debug.mixed_graph_sizes);
  lines.AddName("debug.attention", options.debug.attention, {"in_graphs", "between_graphs"});
  lines.AddName("debug.replay_check", options.debug.replay_check, {"off", "every_replay"});
  lines.AddName("device.cascade", *options.device.cascade, {"off", "auto"});
  if (*options.device.cascade == CascadeMode::kOff) return;
  const CascadeCosts& costs = options.device.profile->cascade_costs;
  lines.Add(
      "device.profile.cascade_costs",
      absl::StrJoin({costs.read_tb_per_s, costs.reread_tb_per_s, costs.tile_reread_tb_per_s,
                     costs.suffix_tb_per_s, costs.products_tflops, costs.call_us, costs.prefix_us,
                     costs.merge_us, costs.merge_us_per_token, costs.min_gain},
                    ","));
}

void AddSpeculation(const SpeculationOptions& speculation, OptionLines& lines) {
  lines.Add("speculation.max_drafts", speculation.max_drafts);
  lines.AddName("speculation.proposer", speculation.proposer.index(),
                {"none", "ngram", "model", "custom", "heads"});
  lines.AddName("speculation.shape", speculation.shape, {"chain", "tree"});
  lines.Add("speculation.tree", speculation.tree);
  lines.AddName("speculation.acceptance", speculation.acceptance, {"same_text", "rejection"});
  lines.Add("speculation.graph_num_drafts", speculation.graph_num_drafts);
  if (const NgramProposer* const ngram = speculation.ngram()) {
    lines.Add("min_ngram of speculation.proposer", ngram->min_ngram);
    lines.Add("max_ngram of speculation.proposer", ngram->max_ngram);
  }
  if (const Model* const draft = speculation.draft_model()) {
    lines.Add("layers of the draft model", LayersText(draft->spec().layers));
  }
  if (const DraftHeads* const heads = speculation.heads()) {
    const absl::Span<const LayerSpec> layers = heads->layers();
    lines.Add("layers of the heads", LayersText({layers.begin(), layers.end()}));
  }
}

}  // namespace

std::string RankOptionsText(const ModelRunnerOptions& options, const ModelSpec& spec) {
  OptionLines lines;
  AddSpec(spec, lines);
  lines.Add("max_num_seqs", options.max_num_seqs);
  lines.Add("max_num_tokens", options.max_num_tokens);
  lines.Add("max_seq_len", options.max_seq_len);
  lines.Add("max_encoder_tokens", options.max_encoder_tokens);
  lines.Add("cache.block_size", options.cache.block_size);
  lines.Add("swaps", options.cache.swaps());
  lines.Add("cache.dtype", *options.cache.dtype);
  lines.Add("cache.order", std::string(KvOrderName(options.cache.order)));
  lines.AddName("cache.form", options.cache.form,
                {"pair", "packed", "diff_kv", "k_packed", "latent"});
  lines.AddName("cache.scale_shape", options.cache.scale_shape, {"per_layer", "per_head"});
  lines.AddName("cache.calibration", options.cache.calibration, {"off", "first_step"});
  AddGraphs(options, lines);
  lines.Add("max_steps_in_flight", options.max_steps_in_flight);
  lines.AddName("logits.step_logits", options.logits.step_logits, {"of_newest", "of_every"});
  // Speculation may have raised max_earlier_logits, so the options of speculation come first.
  AddSpeculation(options.speculation, lines);
  lines.Add("logits.max_earlier_logits", options.logits.max_earlier_logits);
  lines.Add("logits.penalties", options.logits.penalties);
  lines.Add("logits.max_biases", options.logits.max_biases);
  lines.Add("logits.allowed_tokens", options.logits.allowed_tokens);
  lines.Add("logits.max_log_probs", options.logits.max_log_probs);
  lines.Add("logits.stages", options.logits.stages.size());
  lines.AddName("device.batch_invariance", options.device.batch_invariance, {"off", "on"});
  lines.Add("debug.context_interleave", options.debug.context_interleave);
  lines.Add("ranks.context_ranks", options.ranks.context_ranks);
  lines.Add("debug.sample_shards", options.debug.sample_shards);
  return lines.text();
}

absl::StatusOr<CascadeMode> CascadeOverRanks(Collectives* collectives, CascadeMode cascade,
                                             absl::Span<const LayerSpec> layers) {
  if (cascade == CascadeMode::kOff) return cascade;
  const std::string heads =
      absl::StrJoin(layers, ",", [](std::string* out, const LayerSpec& layer) {
        absl::StrAppend(out, layer.params.num_q_heads, "/", layer.params.num_kv_heads);
      });
  REPRISE_ASSIGN_OR_RETURN(const bool same, IsSameTextOverRanks(collectives, heads));
  return same ? cascade : CascadeMode::kOff;
}

}  // namespace reprise
