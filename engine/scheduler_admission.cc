// The Scheduler's part before the first step of a sequence: what is refused, who is admitted next,
// and what its prompt finds computed.

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/scheduler.h"
#include "engine/scheduler_sequence.h"
#include "glog/logging.h"
#include "runner/sampling/sampling_check.h"

namespace reprise {

absl::Status Scheduler::CheckRequest(const Request& request) const {
  const int64_t num_prompt = static_cast<int64_t>(request.prompt.size());
  if (num_prompt == 0) return absl::InvalidArgumentError("prompt must have at least one token");
  const int least_new_tokens = request.num_prompt_log_probs >= 0 ? 0 : 1;
  if (request.max_new_tokens < least_new_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_new_tokens must be at least ", least_new_tokens, ": got ", request.max_new_tokens));
  }
  if (num_prompt > options_.max_seq_len) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt is longer than max_seq_len: expected at most ", options_.max_seq_len,
                     " tokens, got ", num_prompt));
  }
  if (num_prompt > max_cached_tokens_) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt is longer than the whole KV cache: expected at most ",
                     max_cached_tokens_, " tokens (", options_.num_blocks - 1, " blocks of ",
                     options_.block_size, "), got ", num_prompt));
  }
  if (static_cast<int64_t>(request.encoder_tokens.size()) > options_.max_encoder_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("encoder_tokens are too long: expected at most ", options_.max_encoder_tokens,
                     options_.max_encoder_tokens == 0 ? " (the model has no encoder)" : "",
                     ", got ", request.encoder_tokens.size()));
  }
  if (request.num_sequences < 1 || request.num_sequences > options_.max_num_seqs) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_sequences must be in [1, ", options_.max_num_seqs,
                     "], the rows of a step: ", "got ", request.num_sequences));
  }
  if (request.max_drafts < -1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_drafts must be at least -1: got ", request.max_drafts));
  }
  REPRISE_RETURN_IF_ERROR(CheckSampling(ToSamplingParams(request.sampling, 0)));
  REPRISE_RETURN_IF_ERROR(CheckPromptContent(
      request,
      {.num_position_dims = options_.num_position_dims, .max_position = options_.max_position}));
  if (request.new_token_masker && options_.mask_words == 0) {
    return absl::InvalidArgumentError(
        "new_token_masker must be empty: the runner's LogitsOptions do not provide for masks "
        "(allowed_tokens)");
  }
  if (options_.max_waiting == 0) return absl::OkStatus();
  if (request.num_sequences > options_.max_waiting) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_sequences must be at most max_waiting: expected at most ",
                     options_.max_waiting, ", got ", request.num_sequences));
  }
  if (num_waiting() + int64_t{request.num_sequences} > options_.max_waiting) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "too many sequences wait: ", num_waiting(), " of max_waiting = ", options_.max_waiting,
        " do, and the request has ", request.num_sequences, "; retry after some have started"));
  }
  return absl::OkStatus();
}

absl::StatusOr<SequenceId> Scheduler::Add(Request request) {
  REPRISE_RETURN_IF_ERROR(CheckRequest(request));
  auto added = std::make_unique<AddedRequest>();
  added->id = SequenceId(next_id_++);
  added->request = std::move(request);
  const Request& kept = added->request;
  AddContent(*added);
  added->max_drafts = MaxDraftsOf(kept);
  added->sequences.resize(kept.num_sequences);
  added->num_unfinished = kept.num_sequences;
  if (kept.num_prompt_log_probs >= 0) {
    added->prompt_log_probs = std::make_shared<std::vector<TokenLogProbs>>();
    added->prompt_log_probs->reserve(kept.prompt.size() - 1);
  }
  for (int i = 0; i < kept.num_sequences; ++i) {
    Sequence& sequence = added->sequences[i];
    sequence.added = added.get();
    sequence.sample = i;
    sequence.seed =
        kept.sampling.seed.has_value() ? *kept.sampling.seed + static_cast<uint64_t>(i) : seeds_();
    if (kept.new_stop_matcher) sequence.stop_matcher = kept.new_stop_matcher();
    if (kept.new_token_masker && !sequence.forced()) {
      sequence.token_masker = kept.new_token_masker();
      masks_.resize(static_cast<size_t>(options_.max_num_seqs) * options_.mask_words);
    }
    if (!kept.predicted_tokens.empty()) sequence.predicted.emplace(kept.predicted_tokens);
    sequence.tokens.reserve(kept.prompt.size() +
                            std::min(sequence.max_generated(), options_.max_seq_len) + 1);
    sequence.tokens = kept.prompt;
    sequence.tokens.insert(sequence.tokens.end(), kept.forced_tokens.begin(),
                           kept.forced_tokens.end());
    sequence.num_known = static_cast<int>(kept.prompt.size());
    InsertWaiting(sequence);
  }
  next_deadline_ = std::min(next_deadline_, kept.deadline);
  const SequenceId id = added->id;
  requests_.emplace(id, std::move(added));
  return id;
}

int Scheduler::MaxDraftsOf(const Request& request) const {
  if (!request.forced_tokens.empty() || request.new_token_masker) return 0;
  const LogitsRequest logits = ToLogitsRequest(request);
  if (logits.params != LogitsParams() || logits.stages != 0) return 0;
  const int most = options_.speculation.num_drafts;
  return request.max_drafts < 0 ? most : std::min(most, request.max_drafts);
}

void Scheduler::AddContent(AddedRequest& added) {
  const PrefixCache& cache = blocks_.prefix_cache();
  added.content = MakePromptContent(
      added.request,
      {.num_position_dims = options_.num_position_dims, .max_position = options_.max_position},
      cache.is_on() ? &cache.hasher() : nullptr, added.id.value());
  for (const ContentKey& key : added.content.keys) {
    added.range_keys.push_back({.kind = key.kind,
                                .value = key.value,
                                .first_token = key.first_token,
                                .num_tokens = key.num_tokens});
  }
}

void Scheduler::InsertWaiting(Sequence& sequence) {
  // Most come last.
  const auto is_before = [](const Sequence* a, const Sequence* b) { return a->IsBefore(*b); };
  if (waiting_.empty() || is_before(waiting_.back(), &sequence)) {
    waiting_.push_back(&sequence);
    return;
  }
  waiting_.insert(absl::c_upper_bound(waiting_, &sequence, is_before), &sequence);
}

void Scheduler::AdmitWaiting() {
  size_t num_put_off = 0;  // the first ones of waiting_; slots are kept for them
  while (num_put_off < waiting_.size() && num_put_off < free_slots_.size() && ChunkBudget() > 0 &&
         !lacks_blocks_) {
    Sequence& sequence = *waiting_[num_put_off];
    if (AwaitsKeys(sequence)) {
      ++num_put_off;
      continue;
    }
    const absl::Span<const int32_t> input = sequence.request().encoder_tokens;
    const int num_input = static_cast<int>(input.size());
    if (num_encoder_tokens_ + num_input > options_.max_encoder_step_tokens) return;
    const SlotId slot = free_slots_.back();
    const absl::StatusOr<PromptHits> hits = TakeSlot(sequence, slot);
    if (!hits.ok()) {  // first come, first served
      CHECK(absl::IsResourceExhausted(hits.status())) << hits.status();
      return;
    }
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(num_put_off));
    free_slots_.pop_back();
    by_slot_[slot.value()] = &sequence;
    sequence.slot = slot;
    sequence.admission = ++num_admissions_;
    if (!sequence.num_cached_tokens.has_value()) {
      sequence.num_cached_tokens = std::min(hits->num_tokens, sequence.num_prompt());
    }
    sequence.num_scheduled = hits->num_tokens;
    sequence.num_in_flight = 0;
    sequence.prefill_end = sequence.num_known;
    if (FeedsForcedInChunks(sequence)) {
      sequence.prefill_end =
          std::min(sequence.num_prompt() + sequence.max_generated() - 1, MaxCachedTokens(sequence));
    }
    const auto has_priority = [](const Sequence* a, const Sequence* b) {
      return a->request().priority > b->request().priority;
    };
    running_.insert(absl::c_upper_bound(running_, &sequence, has_priority), &sequence);
    joins_.push_back({.slot = slot.value(),
                      .seq_len = hits->num_tokens,
                      .sample_index = sequence.num_generated(),
                      .sampling = ToSamplingParams(sequence.request().sampling, sequence.seed),
                      .num_encoder_tokens = num_input,
                      .encoder_is_cached = hits->has_encoder,
                      .position_delta = sequence.added->content.position_delta,
                      .num_undrafted = options_.drafter_keys == DrafterKeys::kNone
                                           ? 0
                                           : hits->num_tokens - sequence.num_drafted});
    AddLogitsRequest(sequence);
    if (num_input > 0 && !hits->has_encoder) {
      encodes_.push_back({.slot = slot, .tokens = input});
      num_encoder_tokens_ += num_input;
    }
    SchedulePrefill(sequence);
  }
}

absl::StatusOr<PromptHits> Scheduler::TakeSlot(Sequence& sequence, SlotId slot) {
  if (sequence.stored_as.has_value()) return TakeSlotAgain(sequence, slot);
  if (const Sequence* const sibling = ForkableSibling(sequence)) {
    if (const std::optional<PromptHits> hits = Fork(*sibling, slot)) {
      sequence.num_drafted = NumDraftedHits(slot, hits->num_tokens);
      return *hits;
    }
  }
  return AddToCache(sequence, slot);
}

absl::StatusOr<PromptHits> Scheduler::AddToCache(Sequence& sequence, SlotId slot) {
  const absl::StatusOr<PromptHits> hits =
      AsPrompt(sequence, [&](const SequencePrompt& prompt) { return blocks_.Add(slot, prompt); });
  if (hits.ok()) sequence.num_drafted = NumDraftedHits(slot, hits->num_tokens);
  return hits;
}

int Scheduler::NumDraftedHits(SlotId slot, int num_tokens) {
  if (!drafted_blocks_.has_value() || num_tokens == 0) return num_tokens;
  const absl::Span<const BlockId> blocks = blocks_.blocks(slot, drafted_group_);
  // The last one may be a copy, still to be made, of which only the first tokens are wanted.
  const BlockId last = blocks[(num_tokens - 1) / options_.block_size];
  drafted_blocks_->Copy(blocks_.OriginOf(last), last);
  return drafted_blocks_->NumSeen(blocks, num_tokens);
}

absl::StatusOr<PromptHits> Scheduler::AsPrompt(
    const Sequence& sequence,
    absl::FunctionRef<absl::StatusOr<PromptHits>(const SequencePrompt&)> use) const {
  const Request& request = sequence.request();
  SequencePrompt prompt = {.tokens =
                               absl::MakeConstSpan(sequence.tokens).first(sequence.num_known)};
  prompt.range_keys = sequence.added->range_keys;
  if (has_windows_) prompt.num_new_tokens = ChunkBudget();
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

// ---- Keys that others compute.

bool Scheduler::AwaitsKeys(Sequence& sequence) const {
  if (sequence.stored_as.has_value()) return false;  // it has its own
  if (sequence.awaited.has_value()) {
    const Sequence* const other = by_slot_[sequence.awaited->slot.value()];
    if (other != nullptr && other->admission == sequence.awaited->admission &&
        blocks_.num_committed(*other->slot) < sequence.awaited->num_tokens) {
      return true;
    }
    sequence.awaited.reset();
  }
  if (ForkableSibling(sequence) != nullptr) return false;
  return AwaitsSibling(sequence) || AwaitsEqualPrefix(sequence);
}

namespace {

// How many tokens of a request's prompt its first sequence must have committed before others fork
// it. They compute the last token themselves. But an encoder's keys are certain only when a row has
// been committed, and thus a token that was not found in the cache.
int NumForkable(const Request& request) {
  return static_cast<int>(request.prompt.size()) - (request.encoder_tokens.empty() ? 1 : 0);
}

}  // namespace

const Scheduler::Sequence* Scheduler::ForkableSibling(const Sequence& sequence) const {
  if (sequence.num_generated() > 0 || sequence.num_prompt() == 1) return nullptr;
  const Request& request = sequence.request();
  for (const Sequence& sibling : sequence.added->sequences) {
    if (!sibling.slot.has_value()) continue;
    if (blocks_.num_committed(*sibling.slot) < NumForkable(request)) continue;
    // One that came back may have found its tokens in the cache, and be encoding its input again.
    if (!request.encoder_tokens.empty() && !blocks_.has_encoder(*sibling.slot)) continue;
    return &sibling;
  }
  return nullptr;
}

bool Scheduler::AwaitsSibling(Sequence& sequence) const {
  if (sequence.num_generated() > 0 || sequence.num_prompt() == 1) return false;
  for (const Sequence& sibling : sequence.added->sequences) {
    if (!sibling.slot.has_value()) continue;
    sequence.awaited = {.slot = *sibling.slot,
                        .admission = sibling.admission,
                        .num_tokens = NumForkable(sequence.request())};
    return true;
  }
  return false;
}

bool Scheduler::AwaitsEqualPrefix(Sequence& sequence) const {
  if (!blocks_.prefix_cache().is_on() || sequence.needs_prompt_log_probs()) return false;
  // Of its tokens, the last is computed in any case.
  const auto first = sequence.tokens.begin();
  const Request& request = sequence.request();
  for (const Sequence* const other : running_) {
    if (other->request().priority < request.priority) break;  // it may take long
    const int num_committed = blocks_.num_committed(*other->slot);
    if (num_committed >= other->prefill_end) continue;
    const int num_compared = std::min(sequence.num_known - 1, other->prefill_end);
    const auto end = std::mismatch(first, first + num_compared, other->tokens.begin()).first;
    const int num_equal = NumEqualTokens(sequence.added->content.keys, other->added->content.keys,
                                         static_cast<int>(end - first));
    const int num_blocks = num_equal / options_.block_size;
    if (num_blocks <= num_committed / options_.block_size) continue;
    if (other->request().prefix_salt != request.prefix_salt) continue;
    if (other->request().encoder_tokens != request.encoder_tokens) continue;
    sequence.awaited = {.slot = *other->slot,
                        .admission = other->admission,
                        .num_tokens = num_blocks * options_.block_size};
    return true;
  }
  return false;
}

std::optional<PromptHits> Scheduler::Fork(const Sequence& sibling, SlotId slot) {
  // The last token of the prompt is computed again: its logits are wanted once more.
  const int num_shared = sibling.num_prompt() - 1;
  if (!blocks_.Fork(*sibling.slot, slot).ok()) return std::nullopt;
  // The sibling may have lost blocks before the prompt's end to a window, and the begun block may
  // have to be copied.
  if (!blocks_.Truncate(slot, num_shared).ok() || !blocks_.Append(slot, 1).ok()) {
    const absl::Status freed = blocks_.Free(slot);
    CHECK(freed.ok()) << freed;
    return std::nullopt;
  }
  ++num_forks_;
  return PromptHits{.num_tokens = num_shared,
                    .has_encoder = !sibling.request().encoder_tokens.empty()};
}

}  // namespace reprise
