// The work of a ModelRunner's step at a key: what graphs capture, what it reads, and how a batch reaches
// it.

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/torch_status.h"
#include "distributed/collectives.h"
#include "runner/model_runner.h"
#include "runner/speculation/block_tokens.h"
#include "runner/speculation/drafter.h"
#include "runner/speculation/ngram_drafts_args.h"

namespace reprise {

// Values that captured steps hold: constant during the life of the graphs.
struct ModelRunner::Constants {
  Model* model = nullptr;
  const StepMetadata* metadata = nullptr;
  std::vector<int> model_classes;                // of the model's layers
  std::vector<KvLayer> kv;                       // one per layer, those of a draft model included
  std::optional<BlockTokens> block_tokens = {};  // of drafters that read histories
};

absl::Span<const KvLayer> ModelRunner::kv_layers() const {
  return absl::MakeConstSpan(constants_->kv).first(num_model_layers());
}

PlaceTokens ModelRunner::place_tokens() const {
  const std::optional<BlockTokens>& tokens = constants_->block_tokens;
  return tokens.has_value() ? tokens->places() : PlaceTokens{};
}

absl::Status ModelRunner::Prepare(const ScheduledBatch& batch, const LogitsBatch& logits,
                                  const StepShape& shape, int common_prefix_len, Output& output) {
  const StepTrace::Span span(options_.trace, "refill", num_launched_);
  const std::optional<BlockTokens>& tokens = constants_->block_tokens;
  REPRISE_RETURN_IF_ERROR(MoveBlocks(batch));
  REPRISE_RETURN_IF_ERROR(driver_->OnStream([&] { return stages_->Begin(logits); }));
  output.is_verified_in_graph = VerifiesInGraph(output);
  REPRISE_RETURN_IF_ERROR(Refill(batch, shape, output.decision.key, common_prefix_len, output));
  if (tokens.has_value() && !batch.joins.empty()) {
    // A drafter with keys reads nothing of a sequence of which it has seen all.
    const auto reads = [&](const SlotJoin& join) {
      return has_draft_model() ? join.num_undrafted > 0 : join.seq_len > 0;
    };
    REPRISE_RETURN_IF_ERROR(driver_->OnStream([&]() -> absl::Status {
      for (const SlotJoin& join : batch.joins) {
        if (reads(join)) REPRISE_RETURN_IF_ERROR(tokens->Recall(memory_->slots(), join));
      }
      return absl::OkStatus();
    }));
  }
  if (head_model_ != nullptr && !batch.joins.empty()) {
    REPRISE_RETURN_IF_ERROR(driver_->OnStream([&] {
      return CatchTorch([&] {
        head_model_->Forget(batch.joins);
        return absl::OkStatus();
      });
    }));
  }
  if (encoder_ != nullptr) encoder_->Follow(batch.updates);
  EndPart(DevicePart::kRefill);
  return absl::OkStatus();
}

// What proposes the drafts of a step at `key`; null if nothing does.
std::function<absl::Status()> ModelRunner::MakeDrafts(const GraphKey& key) const {
  using Proposer = SpeculationOptions::Proposer;
  const SpeculationOptions& options = options_.speculation;
  if (key.num_drafts == 0 || options.proposer == Proposer::kNone) return nullptr;
  if (heads_ != nullptr) return heads_->Passes(key, trees_.get());
  if (draft_model_ != nullptr) return draft_model_->Passes(key, constants_->kv, num_cache_blocks_);
  if (options.proposer == Proposer::kNgram) {
    const NgramDraftsArgs args = {.slots = memory_->slots(),
                                  .arrays = memory_->arrays(),
                                  .num_rows = key.padded_num_seqs,
                                  .min_ngram = options.ngram.min_ngram,
                                  .max_ngram = options.ngram.max_ngram};
    return [args, driver = driver_.get()] { return driver->ProposeNgrams(args); };
  }
  const DraftStep step = {.slots = memory_->slots(),
                          .arrays = memory_->arrays(),
                          .num_rows = key.padded_num_seqs,
                          .max_drafts = key.num_drafts,
                          .vocab_size = spec_.vocab_size,
                          .stream = driver_->cuda_stream()};
  return [step, drafter = options.drafter] { return drafter->Propose(step); };
}

absl::Status ModelRunner::AllocateCache(const CachePlan& plan, int num_blocks) {
  block_store_.reset();  // before the new ones: both might not fit
  kv_cache_.reset();
  REPRISE_ASSIGN_OR_RETURN(kv_cache_, plan.Allocate(num_blocks, driver_->device()));
  num_cache_blocks_ = num_blocks;
  for (int i = 0; kv_scales_ && i < static_cast<int>(spec_.layers.size()); ++i) {
    if (const std::optional<int> layer = plan.cache_layer(i)) {
      kv_cache_->SetScales(*layer, kv_scales_->k_scale(i), kv_scales_->v_scale(i));
    }
  }
  Constants constants = {.model = model_,
                         .metadata = metadata_.get(),
                         .model_classes = model_classes_,
                         .kv = plan.LayersOf(*kv_cache_)};
  BlockStoreOptions store;
  using Proposer = SpeculationOptions::Proposer;
  const Proposer proposer = options_.speculation.proposer;
  // A drafter with keys reads what it has not seen.
  if (proposer == Proposer::kNgram || proposer == Proposer::kCustom || has_draft_model()) {
    REPRISE_ASSIGN_OR_RETURN(
        constants.block_tokens,
        BlockTokens::Allocate(num_blocks, options_.block_size, classes_.groups, driver_->device()));
    store.with = {constants.block_tokens->blocks()};
  }
  REPRISE_ASSIGN_OR_RETURN(block_store_, BlockStore::Over(*kv_cache_, store));
  constants_ = std::make_shared<const Constants>(std::move(constants));
  if (trees_ != nullptr) REPRISE_RETURN_IF_ERROR(trees_->SetLayers(constants_->kv, classes_));
  fingerprint_ = MakeFingerprint(num_blocks);
  return absl::OkStatus();
}

std::function<absl::Status()> ModelRunner::MakeStep(const GraphKey& key,
                                                    const StepVariant& variant) const {
  const StepArrays& all_arrays = memory_->arrays();
  const StepArrays arrays = context_ != nullptr ? context_->ArraysOf(all_arrays) : all_arrays;
  StepBatches batches = metadata_->BatchesAt(key, arrays, memory_->slots());
  if (context_ != nullptr) context_->Place(all_arrays, batches);
  const int64_t num_tokens = key.padded_num_tokens;
  const int num_logits = key.padded_num_seqs + key.num_earlier_logits;
  std::vector<at::Tensor> slot_mappings;
  for (int group = 0; group < classes_.num_groups(); ++group) {
    slot_mappings.push_back(memory_->View(arrays.group_slots(group), num_tokens));
  }
  const bool is_embedded = key.input == StepInput::kEmbeddings;
  auto step = std::make_shared<const reprise::Step>(reprise::Step::Parts{
      .token_ids = memory_->View(arrays.token_ids, num_tokens),
      .positions = memory_->ModelPositions(num_tokens),
      .embeddings = is_embedded ? embeddings_->rows(num_tokens) : at::Tensor(),
      .is_embedded = is_embedded ? embeddings_->is_embedded(num_tokens) : at::Tensor(),
      .slot_mappings = std::move(slot_mappings),
      .logits_indices = memory_->View(arrays.logits_indices, num_logits),
      .logits = memory_->logits(num_logits),
      .kv = absl::MakeConstSpan(constants_->kv).first(num_model_layers()),
      .batches = batches,
      .metadata = metadata_.get(),
      .linears = &driver_->linears(),
      .dtype = spec_.dtype,
      .calibrated = variant.calibrated,
      .watch = variant.watch,
      .graphs = &driver_->graphs(),
      .attends_between_graphs = !options_.attention_in_graphs});
  std::function<absl::Status()> drafts;
  if (variant.proposes_drafts) drafts = MakeDrafts(key);
  std::function<absl::Status()> prompt_pass;
  if (variant.runs_draft_model && draft_model_ != nullptr) {
    prompt_pass = draft_model_->PromptPass(key, constants_->kv, variant.calibrated);
  }
  std::optional<TreeTokensArgs> tree_tokens;
  if (trees_ != nullptr && key.num_drafts > 0) {
    tree_tokens = {
        .slots = memory_->slots(), .arrays = all_arrays, .num_rows = key.padded_num_seqs};
  }
  const DraftVerification* verification =
      variant.verifies_drafts && key.num_drafts > 0 ? verification_.get() : nullptr;
  VerifiedOutput results;
  if (verification != nullptr) {
    results = ResultsOf(output_memory_->device<int32_t>());
    results.stride = output_stride_;
  }
  return [step, batches = std::move(batches), constants = constants_, tree_tokens,
          driver = driver_.get(), drafts = std::move(drafts), prompt_pass = std::move(prompt_pass),
          heads = heads_.get(), head_model = head_model_.get(), verification, results, key,
          context = context_.get(), all_arrays, watch = variant.watch,
          shards = LeavesLogits(key) ? shards_.get() : nullptr]() -> absl::Status {
    return CatchTorch([&]() -> absl::Status {
      if (tree_tokens) REPRISE_RETURN_IF_ERROR(driver->TreeTokens(*tree_tokens));
      if (drafts != nullptr) REPRISE_RETURN_IF_ERROR(drafts());
      if (watch != nullptr) watch->Begin();
      if (context != nullptr) {
        REPRISE_RETURN_IF_ERROR(
            context->Build(all_arrays, key.padded_num_seqs, key.padded_num_tokens));
      }
      REPRISE_RETURN_IF_ERROR(constants->metadata->Build(batches, constants->model_classes));
      std::optional<DividedLogits::Leaving> leaving;
      if (shards != nullptr) leaving.emplace(*shards->logits(), shards->memory());
      if (heads == nullptr && head_model == nullptr) {
        REPRISE_ASSIGN_OR_RETURN(const at::Tensor logits, constants->model->Forward(*step));
        REPRISE_RETURN_IF_ERROR(step->KeepLogits(logits));
      } else {
        REPRISE_ASSIGN_OR_RETURN(const ForwardOutput out, constants->model->ForwardHidden(*step));
        REPRISE_RETURN_IF_ERROR(step->KeepLogits(out.logits));
        REPRISE_RETURN_IF_ERROR(heads != nullptr ? heads->Take(key, out.hidden)
                                                 : head_model->Take(key, out.hidden));
      }
      leaving.reset();  // a draft model may be the same
      step->Watch("logits", step->logits());
      if (watch != nullptr) REPRISE_RETURN_IF_ERROR(watch->End());
      if (prompt_pass != nullptr) REPRISE_RETURN_IF_ERROR(prompt_pass());
      if (head_model != nullptr) REPRISE_RETURN_IF_ERROR(head_model->Keep(key, *driver));
      return verification == nullptr ? absl::OkStatus() : verification->Run(key, results);
    });
  };
}

std::function<absl::Status()> ModelRunner::MakeCapturedStep(const GraphKey& key) const {
  // A graph with drafts whose rows cannot all have so many tokens is mixed: some bring tokens.
  const bool is_mixed =
      key.padded_num_tokens < int64_t{key.padded_num_seqs} * int64_t{key.max_query_len};
  return MakeStep(key, {.watch = checker_ != nullptr ? checker_->WatchOf(key) : nullptr,
                        .runs_draft_model = RunsDraftModel(key, /*has_given_tokens=*/is_mixed),
                        .verifies_drafts = true});
}

Fingerprint ModelRunner::MakeFingerprint(int num_blocks) const {
  Fingerprint fingerprint;
  fingerprint.AddValue("max_seq_len", max_seq_len());
  fingerprint.AddValue("block_size", options_.block_size);
  fingerprint.AddValue("num_blocks", num_blocks);
  memory_->AddTo(fingerprint);
  metadata_->AddTo(fingerprint);
  if (context_ != nullptr) context_->AddTo(fingerprint);
  if (shards_ != nullptr) shards_->AddTo(fingerprint);
  if (embeddings_ != nullptr) embeddings_->AddTo(fingerprint);
  if (heads_ != nullptr) heads_->AddTo(fingerprint);
  if (head_model_ != nullptr) head_model_->AddTo(fingerprint);
  if (constants_->block_tokens.has_value()) constants_->block_tokens->AddTo(fingerprint);
  if (verification_ != nullptr) verification_->AddTo(fingerprint);
  if (options_.collectives != nullptr) {
    fingerprint.AddValue(absl::StrCat("collectives ", options_.collectives->Fingerprint()), 1);
  }
  for (const KvLayer& layer : constants_->kv) {
    fingerprint.AddAddress("k", layer.k.data);
    fingerprint.AddAddress("v", layer.v.data);
  }
  return fingerprint;
}

}  // namespace reprise
