#include "reprise/runner/drafting/speculation_part.h"

#include <algorithm>
#include <utility>

#include "reprise/attention/metadata/batch_arrays.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"
#include "reprise/runner/slots/slot_rows.h"
#include "reprise/runner/speculation/draft_heads.h"
#include "reprise/runner/speculation/drafter.h"
#include "reprise/runner/speculation/ngram_drafts_args.h"

namespace reprise {

bool HeadsAttend(const SpeculationOptions& options) {
  return options.heads() != nullptr && !options.heads()->layers().empty();
}

bool HasDraftLayers(const SpeculationOptions& options) {
  return options.draft_model() != nullptr || HeadsAttend(options);
}

bool ReadsHistories(const SpeculationOptions& options) {
  return options.ngram() != nullptr || options.drafter() != nullptr || HasDraftLayers(options);
}

bool KeepsDraftLogits(const SpeculationOptions& options) {
  return options.acceptance == DraftAcceptance::kRejection &&
         (options.draft_model() != nullptr || options.heads() != nullptr);
}

absl::StatusOr<std::unique_ptr<SpeculationPart>> SpeculationPart::Create(
    const SpeculationPartOptions& options, const RunnerShape& shape, RunnerMemory* memory,
    const StepOutputs* outputs) {
  auto part =
      std::unique_ptr<SpeculationPart>(new SpeculationPart(options, shape, memory, outputs));
  REPRISE_RETURN_IF_ERROR(part->Allocate());
  return part;
}

absl::Status SpeculationPart::Allocate() {
  const SpeculationOptions& drafts = options_.drafts;
  const int max_logits = shape_.max_num_seqs + shape_.max_earlier_logits;
  const std::optional<DType> kept_logits_dtype =
      KeepsDraftLogits(drafts) ? std::optional<DType>(memory_.logits_dtype()) : std::nullopt;
  if (drafts.shape == DraftShape::kTree) {
    REPRISE_ASSIGN_OR_RETURN(trees_,
                             DraftTrees::Create({.tree = drafts.tree,
                                                 .max_drafts = drafts.max_drafts,
                                                 .max_num_seqs = shape_.max_num_seqs,
                                                 .num_groups = memory_.classes().num_groups(),
                                                 .driver = &memory_.driver()}));
  }
  if (drafts.heads() != nullptr) {
    REPRISE_RETURN_IF_ERROR(AllocateHeads(max_logits, kept_logits_dtype));
  }
  if (HasDraftLayers(drafts)) REPRISE_RETURN_IF_ERROR(AllocateDraftModel(kept_logits_dtype));
  DraftVerificationOptions verification = {.driver = &memory_.driver(),
                                           .memory = &memory_.steps(),
                                           .trees = trees_.get(),
                                           .heads = heads_.get(),
                                           .acceptance = drafts.acceptance,
                                           .max_drafts = drafts.max_drafts,
                                           .max_logits = max_logits};
  if (kept_logits_dtype.has_value()) {
    verification.draft_logits = heads_ != nullptr ? heads_->logits() : draft_model_->logits();
  }
  REPRISE_ASSIGN_OR_RETURN(verification_, DraftVerification::Create(verification));
  return absl::OkStatus();
}

absl::Status SpeculationPart::AllocateHeads(int max_logits,
                                            std::optional<DType> kept_logits_dtype) {
  const SpeculationOptions& drafts = options_.drafts;
  const ModelSpec& spec = options_.model->spec();
  if (HeadsAttend(drafts)) {
    const int max_pass_tokens = shape_.max_num_seqs * (1 + drafts.max_drafts);
    REPRISE_ASSIGN_OR_RETURN(
        head_model_,
        HeadModel::Create({.heads = drafts.heads(),
                           .collectives = options_.collectives,
                           .of = &spec,
                           .memory = &memory_.steps(),
                           .max_num_seqs = shape_.max_num_seqs,
                           .max_num_tokens = std::max(shape_.max_num_tokens, max_pass_tokens)}));
    return absl::OkStatus();
  }
  REPRISE_ASSIGN_OR_RETURN(heads_, HeadDrafts::Create({.heads = drafts.heads(),
                                                       .collectives = options_.collectives,
                                                       .driver = &memory_.driver(),
                                                       .memory = &memory_.steps(),
                                                       .hidden_dim = spec.hidden_dim,
                                                       .dtype = spec.dtype,
                                                       .vocab_size = spec.vocab_size,
                                                       .max_num_seqs = shape_.max_num_seqs,
                                                       .max_drafts = drafts.max_drafts,
                                                       .max_logits = max_logits,
                                                       .kept_logits_dtype = kept_logits_dtype}));
  return absl::OkStatus();
}

absl::Status SpeculationPart::AllocateDraftModel(std::optional<DType> kept_logits_dtype) {
  Model* const model = head_model_ != nullptr ? head_model_.get() : options_.drafts.draft_model();
  REPRISE_ASSIGN_OR_RETURN(draft_model_,
                           DraftModel::Create({.model = model,
                                               .heads = head_model_.get(),
                                               .first_layer = memory_.num_model_layers(),
                                               .max_num_seqs = shape_.max_num_seqs,
                                               .block_size = shape_.block_size,
                                               .groups = memory_.classes().groups,
                                               .driver = &memory_.driver(),
                                               .memory = &memory_.steps(),
                                               .metadata = &memory_.metadata(),
                                               .trees = trees_.get(),
                                               .attention_in_graphs = options_.attention_in_graphs,
                                               .kept_logits_dtype = kept_logits_dtype,
                                               .max_drafts = options_.drafts.max_drafts}));
  return absl::OkStatus();
}

template <typename Visit>
void SpeculationPart::ForEachMember(Visit visit) const {
  const auto visit_given = [&](const auto& member) {
    if (member != nullptr) visit(*member);
  };
  visit_given(verification_);
  visit_given(trees_);
  visit_given(heads_);
  visit_given(head_model_);
  visit_given(draft_model_);
}

int64_t SpeculationPart::bytes() const {
  int64_t bytes = 0;
  ForEachMember([&](const auto& member) { bytes += member.bytes(); });
  return bytes;
}

void SpeculationPart::AddTo(Fingerprint& fingerprint) const {
  ForEachMember([&](const auto& member) { member.AddTo(fingerprint); });
}

absl::Status SpeculationPart::SetCache() {
  return trees_ == nullptr ? absl::OkStatus()
                           : trees_->SetLayers(memory_.layers(), memory_.classes());
}

void SpeculationPart::FillRefill(const StepPlan& plan, RefillArgs& args) const {
  if (trees_ != nullptr) {
    args.tree = trees_->tree();
    args.tree_size = trees_->tree_size();
  }
  if (const BlockTokens* const tokens = memory_.block_tokens())
    args.place_tokens = tokens->places();
  args.runs_draft_model = RunsDraftModel(plan.decision.key, plan.shape.has_given_tokens);
}

absl::Status SpeculationPart::Apply(const ScheduledBatch& batch, const StepPlan&) {
  const BlockTokens* const tokens = memory_.block_tokens();
  for (const SlotJoin& join : batch.joins) {
    // A drafter with a KV cache does not read the history of a sequence if the cache has all of the
    // drafter's keys.
    const bool reads = draft_model_ != nullptr ? join.num_undrafted > 0 : join.seq_len > 0;
    if (tokens == nullptr || !reads) continue;
    REPRISE_RETURN_IF_ERROR(tokens->Recall(memory_.steps().slots(), join));
  }
  if (head_model_ == nullptr || batch.joins.empty()) return absl::OkStatus();
  return CatchTorch([&] {
    head_model_->Forget(batch.joins);
    return absl::OkStatus();
  });
}

void SpeculationPart::Fill(const GraphKey& key, const StepVariant&, Step::Parts& parts) const {
  if (heads_ != nullptr) {
    parts.take_hidden = [heads = heads_.get(), key](const Step& step, const at::Tensor& hidden) {
      return heads->Take(key, step, hidden);
    };
  } else if (head_model_ != nullptr) {
    parts.take_hidden = [heads = head_model_.get(), key](const Step&, const at::Tensor& hidden) {
      return heads->Take(key, hidden);
    };
  }
}

StepStage::Work SpeculationPart::Before(const GraphKey& key, const StepVariant& variant) {
  if (key.num_drafts == 0) return nullptr;
  Work proposals = variant.runs_drafter ? Proposals(key) : nullptr;
  if (trees_ == nullptr) return proposals;
  return [tree_tokens = TreeTokensOf(key), driver = &memory_.driver(),
          proposals = std::move(proposals)] {
    REPRISE_RETURN_IF_ERROR(driver->TreeTokens(tree_tokens));
    return proposals == nullptr ? absl::OkStatus() : proposals();
  };
}

TreeTokensArgs SpeculationPart::TreeTokensOf(const GraphKey& key) const {
  const StepArrays& arrays = memory_.steps().arrays();
  const SlotState& slots = memory_.steps().slots();
  BatchArrays batch = BatchArraysOf(arrays);
  batch.tail_len = arrays.tail_len;
  batch.tail_mask = arrays.tail_mask;
  TreeTokensArgs args = {.arrays = batch,
                         .num_groups = slots.num_groups,
                         .parents = {.nodes = arrays.parents},
                         .first_verified = arrays.first_verified,
                         .sample_offset = arrays.sample_offset,
                         .num_rows = key.padded_num_seqs,
                         .num_tokens = arrays.max_tokens,
                         .num_logits = arrays.max_rows + arrays.max_earlier_logits};
  if (arrays.num_position_dims > 1) {
    args.model_positions = {.positions = arrays.model_positions,
                            .delta = slots.position_delta,
                            .num_dims = arrays.num_position_dims,
                            .stride = arrays.max_tokens};
  }
  return args;
}

StepStage::Work SpeculationPart::Proposals(const GraphKey& key) const {
  const SpeculationOptions& drafts = options_.drafts;
  if (!drafts.has_proposer()) return nullptr;
  if (heads_ != nullptr) return heads_->Passes(key, trees_.get());
  if (draft_model_ != nullptr) {
    return draft_model_->Passes(key, memory_.layers(), memory_.num_blocks());
  }
  if (const NgramProposer* const ngram = drafts.ngram()) {
    const NgramDraftsArgs args = {.slots = memory_.steps().slots(),
                                  .arrays = memory_.steps().arrays(),
                                  .num_rows = key.padded_num_seqs,
                                  .min_ngram = ngram->min_ngram,
                                  .max_ngram = ngram->max_ngram};
    return [args, driver = &memory_.driver()] { return driver->ProposeNgrams(args); };
  }
  const DraftStep step = {.slots = memory_.steps().slots(),
                          .arrays = memory_.steps().arrays(),
                          .num_rows = key.padded_num_seqs,
                          .max_drafts = key.num_drafts,
                          .vocab_size = memory_.spec().vocab_size,
                          .stream = memory_.driver().cuda_stream()};
  return [step, drafter = drafts.drafter()] { return drafter->Propose(step); };
}

bool SpeculationPart::RunsDraftModel(const GraphKey& key, bool has_given_tokens) const {
  return draft_model_ != nullptr && key.max_query_len > 1 &&
         (key.num_drafts == 0 || has_given_tokens);
}

absl::Status SpeculationPart::CheckHiddenTaken() const {
  if (heads_ == nullptr && head_model_ == nullptr) return absl::OkStatus();
  if (heads_ != nullptr ? heads_->EndTake() : head_model_->has_taken()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "the model's forward pass must call Step::KeepHidden(), which heads read: expected one call, "
      "got none");
}

StepStage::Work SpeculationPart::After(const GraphKey& key, const StepVariant& variant) {
  Work prompt_pass;
  if (variant.runs_drafter && RunsDraftModel(key, variant.has_given_tokens)) {
    prompt_pass = draft_model_->PromptPass(key, memory_.layers(),
                                           variant.calibrates ? memory_.kv_scales() : nullptr);
  }
  const bool verifies = variant.verifies_drafts && key.num_drafts > 0;
  if (prompt_pass == nullptr && head_model_ == nullptr && heads_ == nullptr && !verifies) {
    return nullptr;
  }
  VerifiedOutput results = ResultsAt(outputs_.device_tokens());
  results.stride = outputs_.layout().size();
  return [this, key, verifies, results, prompt_pass = std::move(prompt_pass)]() -> absl::Status {
    REPRISE_RETURN_IF_ERROR(CheckHiddenTaken());
    if (prompt_pass != nullptr) REPRISE_RETURN_IF_ERROR(prompt_pass());
    if (head_model_ != nullptr) REPRISE_RETURN_IF_ERROR(head_model_->Keep(key, memory_.driver()));
    return verifies ? verification_->Run(key, results) : absl::OkStatus();
  };
}

VerifiedOutput SpeculationPart::ResultsAt(int32_t* device_tokens) const {
  const StepOutputLayout& layout = outputs_.layout();
  const BlockTokens* const tokens = memory_.block_tokens();
  return {.tokens = device_tokens,
          .num_new = device_tokens + layout.num_new(),
          .new_tokens = device_tokens + layout.new_tokens(),
          .place_tokens = tokens == nullptr ? PlaceTokens{} : tokens->places()};
}

absl::Status SpeculationPart::Choose(const StepPlan& plan, const LogitsStep&, int32_t* out) {
  if (plan.verifies_in_graph) return absl::OkStatus();
  return verification_->Run(plan.decision.key, ResultsAt(out), plan.features);
}

}  // namespace reprise
