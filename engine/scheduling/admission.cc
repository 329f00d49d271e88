#include "reprise/engine/scheduling/admission.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "glog/logging.h"
#include "reprise/base/catch_all.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/prefix/prefix_hash.h"
#include "reprise/engine/prompt_content.h"
#include "reprise/engine/scheduling/row_logits.h"
#include "reprise/runner/sampling/sampling_check.h"

namespace reprise {
namespace {

uint64_t SeedFromSystem() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

Admission::Admission(const RunnerShape& shape, const SchedulerPolicy& policy, BlockManager* blocks,
                     const CacheLimits* limits, SequenceTable* table, Preemptor* preemptor)
    : shape_(shape),
      max_waiting_(policy.max_waiting),
      blocks_(blocks),
      limits_(limits),
      table_(table),
      preemptor_(preemptor),
      seeds_(policy.seed.has_value() ? *policy.seed : SeedFromSystem()) {}

// ---- Requests.

absl::Status Admission::CheckRequest(const Request& request) const {
  const int64_t num_prompt = static_cast<int64_t>(request.prompt.size());
  if (num_prompt == 0) return absl::InvalidArgumentError("prompt must have at least one token");
  const int min_new_tokens = request.num_prompt_log_probs >= 0 ? 0 : 1;
  if (request.max_new_tokens < min_new_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_new_tokens must be at least ", min_new_tokens, ": got ", request.max_new_tokens));
  }
  if (num_prompt > shape_.max_seq_len) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt is longer than max_seq_len: expected at most ", shape_.max_seq_len,
                     " tokens, got ", num_prompt));
  }
  if (num_prompt > limits_->max_tokens()) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt is longer than the whole KV cache: expected at most ",
                     limits_->max_tokens(), " tokens (", shape_.num_blocks - 1, " blocks of ",
                     shape_.block_size, "), got ", num_prompt));
  }
  if (static_cast<int64_t>(request.encoder_tokens.size()) > shape_.max_encoder_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("encoder_tokens are too long: expected at most ", shape_.max_encoder_tokens,
                     shape_.max_encoder_tokens == 0 ? " (the model has no encoder)" : "", ", got ",
                     request.encoder_tokens.size()));
  }
  if (request.num_sequences < 1 || request.num_sequences > shape_.max_num_seqs) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_sequences must be in [1, ", shape_.max_num_seqs,
                     "], the rows of a step: ", "got ", request.num_sequences));
  }
  if (request.max_drafts < -1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_drafts must be at least -1: got ", request.max_drafts));
  }
  REPRISE_RETURN_IF_ERROR(CheckSampling(ToSamplingParams(request.sampling, 0)));
  REPRISE_RETURN_IF_ERROR(CheckPromptContent(
      request,
      {.num_position_dims = shape_.num_position_dims, .max_position = shape_.max_position}));
  if (request.new_token_masker && shape_.mask_words == 0) {
    return absl::InvalidArgumentError(
        "new_token_masker must be empty: the runner's LogitsOptions do not provide for masks "
        "(allowed_tokens)");
  }
  if (max_waiting_ == 0) return absl::OkStatus();
  if (request.num_sequences > max_waiting_) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_sequences must be at most max_waiting: expected at most ", max_waiting_,
                     ", got ", request.num_sequences));
  }
  if (table_->num_waiting() + int64_t{request.num_sequences} > max_waiting_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "too many sequences wait: ", table_->num_waiting(), " of max_waiting = ", max_waiting_,
        " do, and the request has ", request.num_sequences, "; retry after some have started"));
  }
  return absl::OkStatus();
}

absl::StatusOr<RequestState*> Admission::Add(Request request) {
  REPRISE_RETURN_IF_ERROR(CheckRequest(request));
  auto added = std::make_unique<RequestState>();
  added->sequences.resize(request.num_sequences);
  REPRISE_RETURN_IF_ERROR(MakeCallbacks(request, added->sequences));
  added->request = std::move(request);
  AddContent(*added);
  const Request& kept = added->request;
  if (kept.num_prompt_log_probs >= 0) {
    added->prompt_log_probs = std::make_shared<std::vector<TokenLogProbs>>();
    added->prompt_log_probs->reserve(kept.prompt.size() - 1);
  }
  for (int i = 0; i < kept.num_sequences; ++i) InitSequence(*added, i);
  return &table_->Add(std::move(added));
}

void Admission::InitSequence(RequestState& added, int sample) {
  const Request& request = added.request;
  SequenceState& sequence = added.sequences[sample];
  sequence.added = &added;
  sequence.seed = request.sampling.seed.has_value()
                      ? *request.sampling.seed + static_cast<uint64_t>(sample)
                      : seeds_();
  if (!request.predicted_tokens.empty()) sequence.predicted.emplace(request.predicted_tokens);
  sequence.tokens.reserve(request.prompt.size() +
                          std::min(sequence.max_generated(), shape_.max_seq_len) + 1);
  sequence.tokens = request.prompt;
  sequence.tokens.insert(sequence.tokens.end(), request.forced_tokens.begin(),
                         request.forced_tokens.end());
  sequence.num_known = static_cast<int>(request.prompt.size());
}

absl::Status Admission::MakeCallbacks(const Request& request,
                                      std::vector<SequenceState>& sequences) {
  for (SequenceState& sequence : sequences) {
    if (request.new_stop_matcher) {
      REPRISE_RETURN_IF_ERROR(CallUser(
          "new_stop_matcher", [&] { sequence.stop_matcher = request.new_stop_matcher(); }));
    }
    if (request.new_token_masker && request.forced_tokens.empty()) {
      REPRISE_RETURN_IF_ERROR(CallUser(
          "new_token_masker", [&] { sequence.token_masker = request.new_token_masker(); }));
    }
  }
  return absl::OkStatus();
}

void Admission::AddContent(RequestState& added) const {
  const PrefixCache& cache = blocks_->prefix_cache();
  added.content = MakePromptContent(
      added.request,
      {.num_position_dims = shape_.num_position_dims, .max_position = shape_.max_position},
      cache.is_on() ? &cache.hasher() : nullptr, table_->next_id().value());
  for (const ContentKey& key : added.content.keys) {
    added.range_keys.push_back({.kind = key.kind,
                                .value = key.value,
                                .first_token = key.first_token,
                                .num_tokens = key.num_tokens});
  }
}

// ---- Slots.

std::optional<Admitted> Admission::Next(BatchInProgress& batch) {
  const size_t num_slots = table_->num_free_slots();
  while (num_put_off_ < table_->waiting().size() && num_put_off_ < num_slots &&
         batch.prompt_tokens_left() > 0 && !batch.lacks_blocks()) {
    SequenceState& sequence = *table_->waiting()[num_put_off_];
    if (AwaitsKeys(sequence)) {
      ++num_put_off_;
      continue;
    }
    if (sequence.num_encoder_tokens() > batch.encoder_tokens_left()) return std::nullopt;
    const SlotId slot = table_->next_slot();
    const absl::StatusOr<Start> start = TakeSlot(sequence, slot, batch);
    if (!start.ok()) {  // later sequences must wait, too
      CHECK(absl::IsResourceExhausted(start.status())) << start.status();
      return std::nullopt;
    }
    return Admit(sequence, *start, batch);
  }
  return std::nullopt;
}

Admitted Admission::Admit(SequenceState& sequence, const Start& start, BatchInProgress& batch) {
  table_->Admit(sequence);
  const PromptHits& hits = start.hits;
  if (!sequence.num_cached_tokens.has_value()) {
    sequence.num_cached_tokens = std::min(hits.num_tokens, sequence.num_prompt());
  }
  sequence.num_scheduled = hits.num_tokens;
  sequence.num_in_flight = 0;
  sequence.prefill_end = sequence.num_known;
  if (FeedsForcedInChunks(sequence, shape_.max_earlier_logits)) {
    sequence.prefill_end = std::min(sequence.num_prompt() + sequence.max_generated() - 1,
                                    limits_->MaxTokens(sequence));
  }
  const absl::Span<const int32_t> input = sequence.request().encoder_tokens;
  if (!input.empty() && !hits.has_encoder) {
    batch.AddEncode({.slot = *sequence.slot, .tokens = input});
  }
  return {.sequence = &sequence,
          .join = {.slot = *sequence.slot,
                   .seq_len = hits.num_tokens,
                   .prompt_len = sequence.num_known,
                   .sample_index = sequence.num_generated(),
                   .sampling = ToSamplingParams(sequence.request().sampling, sequence.seed),
                   .num_encoder_tokens = sequence.num_encoder_tokens(),
                   .encoder_is_cached = hits.has_encoder,
                   .position_delta = sequence.added->content.position_delta},
          .swapped_in = start.swapped_in};
}

absl::StatusOr<Admission::Start> Admission::TakeSlot(SequenceState& sequence, SlotId slot,
                                                     BatchInProgress& batch) {
  const int max_chunk = batch.prompt_tokens_left();
  if (sequence.stored_as.has_value()) {
    const absl::StatusOr<PromptHits> found =
        AsPrompt(sequence, max_chunk,
                 [&](const SequencePrompt& prompt) { return blocks_->Lookup(slot, prompt); });
    CHECK(found.ok()) << found.status();
    if (preemptor_->ReturnsBySwap(sequence, found->num_tokens)) {
      REPRISE_ASSIGN_OR_RETURN(const PromptHits hits,
                               preemptor_->SwapIn(sequence, slot, max_chunk, batch));
      return Start{.hits = hits, .swapped_in = true};
    }
  } else if (const SequenceState* const sibling = ForkableSibling(sequence)) {
    if (const std::optional<PromptHits> hits = Fork(*sibling, slot)) return Start{.hits = *hits};
  }
  REPRISE_ASSIGN_OR_RETURN(const PromptHits hits, AddToCache(sequence, slot, max_chunk));
  preemptor_->Drop(sequence);
  return Start{.hits = hits};
}

absl::StatusOr<PromptHits> Admission::AddToCache(const SequenceState& sequence, SlotId slot,
                                                 int max_chunk) {
  // After the hit tokens, the pool may be too small for the chunk, but it holds at least one token.
  int chunk = limits_->FittingChunk(/*num_cached=*/0, sequence.num_encoder_tokens(), max_chunk);
  const auto add = [&] {
    return AsPrompt(sequence, chunk,
                    [&](const SequencePrompt& prompt) { return blocks_->Add(slot, prompt); });
  };
  absl::StatusOr<PromptHits> hits = add();
  while (absl::IsInvalidArgument(hits.status()) && chunk > 1) {
    chunk /= 2;
    hits = add();
  }
  return hits;
}

absl::StatusOr<PromptHits> Admission::AsPrompt(
    const SequenceState& sequence, int chunk,
    absl::FunctionRef<absl::StatusOr<PromptHits>(const SequencePrompt&)> use) const {
  const Request& request = sequence.request();
  SequencePrompt prompt = {.tokens =
                               absl::MakeConstSpan(sequence.tokens).first(sequence.num_known)};
  prompt.range_keys = sequence.added->range_keys;
  if (limits_->has_windows()) prompt.num_new_tokens = chunk;
  if (sequence.needs_prompt_log_probs()) {
    prompt.max_hit_tokens = static_cast<int>(sequence.added->prompt_log_probs->size());
  }
  const ExtraKey salt = {.kind = ExtraKeyKind::kSalt, .value = request.prefix_salt};
  if (!request.prefix_salt.empty()) prompt.extra_keys = absl::MakeConstSpan(&salt, 1);
  // The tokens of an encoder's input identify it.
  const std::vector<int32_t>& input = request.encoder_tokens;
  const ExtraKey input_key = {
      .kind = ExtraKeyKind::kOther,
      .value = {reinterpret_cast<const char*>(input.data()), input.size() * sizeof(int32_t)}};
  if (!input.empty()) {
    prompt.num_encoder_tokens = static_cast<int>(input.size());
    prompt.encoder_keys = absl::MakeConstSpan(&input_key, 1);
  }
  return use(prompt);
}

// ---- Keys that other sequences compute.

bool Admission::AwaitsKeys(SequenceState& sequence) const {
  if (sequence.stored_as.has_value()) return false;  // the keys are in host memory
  if (sequence.awaited.has_value()) {
    const SequenceState* const other = table_->in_slot(sequence.awaited->slot);
    if (other != nullptr && other->admission == sequence.awaited->admission &&
        blocks_->num_committed(*other->slot) < sequence.awaited->num_tokens) {
      return true;
    }
    sequence.awaited.reset();
  }
  if (ForkableSibling(sequence) != nullptr) return false;
  return AwaitsSibling(sequence) || AwaitsEqualPrefix(sequence);
}

namespace {

// Number of tokens of a request's prompt that its first sequence must have committed before its
// siblings fork it. Each sibling computes the last token again. With an encoder all tokens must be
// committed: only the commit of a row shows that the encoder's keys are written.
int NumForkable(const Request& request) {
  return static_cast<int>(request.prompt.size()) - (request.encoder_tokens.empty() ? 1 : 0);
}

}  // namespace

const SequenceState* Admission::ForkableSibling(const SequenceState& sequence) const {
  if (sequence.num_generated() > 0 || sequence.num_prompt() == 1) return nullptr;
  const Request& request = sequence.request();
  for (const SequenceState& sibling : sequence.added->sequences) {
    if (!sibling.slot.has_value()) continue;
    if (blocks_->num_committed(*sibling.slot) < NumForkable(request)) continue;
    // A sibling that returned after a preemption may have hit its tokens in the cache, and may
    // still be encoding its input again.
    if (!request.encoder_tokens.empty() && !blocks_->has_encoder(*sibling.slot)) continue;
    return &sibling;
  }
  return nullptr;
}

bool Admission::AwaitsSibling(SequenceState& sequence) const {
  if (sequence.num_generated() > 0 || sequence.num_prompt() == 1) return false;
  for (const SequenceState& sibling : sequence.added->sequences) {
    if (!sibling.slot.has_value()) continue;
    sequence.awaited = {.slot = *sibling.slot,
                        .admission = sibling.admission,
                        .num_tokens = NumForkable(sequence.request())};
    return true;
  }
  return false;
}

bool Admission::AwaitsEqualPrefix(SequenceState& sequence) const {
  if (!blocks_->prefix_cache().is_on() || sequence.needs_prompt_log_probs()) return false;
  // The last token is always computed.
  const auto first = sequence.tokens.begin();
  const Request& request = sequence.request();
  for (const SequenceState* const other : table_->running()) {
    // A sequence with a lower priority may be delayed, so the prompt does not wait for its keys.
    if (other->request().priority < request.priority) break;
    const int num_committed = blocks_->num_committed(*other->slot);
    if (num_committed >= other->prefill_end) continue;
    const int num_compared = std::min(sequence.num_known - 1, other->prefill_end);
    const auto end = std::mismatch(first, first + num_compared, other->tokens.begin()).first;
    const int num_equal = NumEqualTokens(sequence.added->content.keys, other->added->content.keys,
                                         static_cast<int>(end - first));
    const int num_blocks = num_equal / shape_.block_size;
    if (num_blocks <= num_committed / shape_.block_size) continue;
    if (other->request().prefix_salt != request.prefix_salt) continue;
    if (other->request().encoder_tokens != request.encoder_tokens) continue;
    sequence.awaited = {.slot = *other->slot,
                        .admission = other->admission,
                        .num_tokens = num_blocks * shape_.block_size};
    return true;
  }
  return false;
}

std::optional<PromptHits> Admission::Fork(const SequenceState& sibling, SlotId slot) {
  // The last token of the prompt is computed again, because the fork needs its logits.
  const int num_shared = sibling.num_prompt() - 1;
  if (!blocks_->Fork(*sibling.slot, slot).ok()) return std::nullopt;
  // A window may have released some of the sibling's prompt blocks, and the partial last block may
  // need a copy.
  if (!blocks_->Truncate(slot, num_shared).ok() || !blocks_->Append(slot, 1).ok()) {
    const absl::Status freed = blocks_->Free(slot);
    CHECK(freed.ok()) << freed;
    return std::nullopt;
  }
  ++num_forks_;
  return PromptHits{.num_tokens = num_shared,
                    .has_encoder = !sibling.request().encoder_tokens.empty()};
}

}  // namespace reprise
