#include "engine/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/passed_fence.h"
#include "base/status_macros.h"
#include "cache/group_retention.h"
#include "engine/scheduler_sequence.h"
#include "glog/logging.h"

namespace reprise {
namespace {

uint64_t SeedFromSystem() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

// Swaps are on the stream of the steps, and whatever uses their blocks next is, too.
SwapFences FencesOfOneStream() {
  SwapFences fences;
  for (int i = 0; i < 2; ++i) {
    fences.device.push_back(std::make_unique<PassedFence>());
    fences.host.push_back(std::make_unique<PassedFence>());
  }
  return fences;
}

absl::Status CheckLevels(const SchedulerOptions& options) {
  const std::vector<int>& graphs = options.graph_levels;
  for (size_t i = 0; i < graphs.size(); ++i) {
    const int before = i == 0 ? 0 : graphs[i - 1];
    if (graphs[i] > before) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("graph_levels[", i, "] must be above ", before, ": got ", graphs[i]));
  }
  const std::vector<int>& drafts = options.level_drafts;
  if (drafts.empty()) return absl::OkStatus();
  if (options.speculation.num_drafts > static_cast<int>(drafts.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("speculation.num_drafts must be at most the levels of level_drafts: expected ",
                     "at most ", drafts.size(), ", got ", options.speculation.num_drafts));
  }
  for (size_t i = 0; i < drafts.size(); ++i) {
    const int before = i == 0 ? 0 : drafts[i - 1];
    if (drafts[i] > before) continue;
    return absl::InvalidArgumentError(absl::StrCat("level_drafts[", i, "] must be above ", before,
                                                   ", the drafts before: got ", drafts[i]));
  }
  return absl::OkStatus();
}

// The numbers of levels that steps choose among.
std::vector<int> MeasuredLevels(const SchedulerOptions& options) {
  std::vector<int> levels = options.graph_levels;
  const int most = options.speculation.num_drafts;
  for (int level = 1; options.graph_levels.empty() && level < most; level *= 2) {
    levels.push_back(level);
  }
  std::erase_if(levels, [&](int level) { return level >= most; });
  if (most > 0) levels.push_back(most);
  return levels;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Scheduler>> Scheduler::Create(const SchedulerOptions& options) {
  const auto at_least = [](const char* name, int value, int least) {
    return value >= least ? absl::OkStatus()
                          : absl::InvalidArgumentError(
                                absl::StrCat(name, " must be at least ", least, ": got ", value));
  };
  REPRISE_RETURN_IF_ERROR(at_least("max_num_seqs", options.max_num_seqs, 1));
  REPRISE_RETURN_IF_ERROR(at_least("max_num_tokens", options.max_num_tokens, options.max_num_seqs));
  REPRISE_RETURN_IF_ERROR(at_least("prefill_chunk", options.prefill_chunk, 0));
  REPRISE_RETURN_IF_ERROR(
      at_least("max_prefill_tokens_while_decoding", options.max_prefill_tokens_while_decoding, 0));
  REPRISE_RETURN_IF_ERROR(at_least("max_seq_len", options.max_seq_len, 1));
  REPRISE_RETURN_IF_ERROR(at_least("max_steps_in_flight", options.max_steps_in_flight, 1));
  REPRISE_RETURN_IF_ERROR(at_least("max_waiting", options.max_waiting, 0));
  REPRISE_RETURN_IF_ERROR(at_least("block_size", options.block_size, 1));
  REPRISE_RETURN_IF_ERROR(at_least("num_position_dims", options.num_position_dims, 1));
  if (options.num_position_dims > 1) {
    REPRISE_RETURN_IF_ERROR(at_least("max_position", options.max_position, options.max_seq_len));
  }
  REPRISE_RETURN_IF_ERROR(at_least("mask_words", options.mask_words, 0));
  REPRISE_RETURN_IF_ERROR(at_least("max_earlier_logits", options.max_earlier_logits, 0));
  REPRISE_RETURN_IF_ERROR(at_least("max_encoder_tokens", options.max_encoder_tokens, 0));
  REPRISE_RETURN_IF_ERROR(at_least("max_encoder_step_tokens", options.max_encoder_step_tokens,
                                   options.max_encoder_tokens));
  REPRISE_RETURN_IF_ERROR(CheckSpeculationPolicy(options.speculation));
  REPRISE_RETURN_IF_ERROR(CheckLevels(options));
  REPRISE_RETURN_IF_ERROR(at_least("num_swap_blocks", options.num_swap_blocks, 0));
  if (options.num_swap_blocks > 0) {
    REPRISE_RETURN_IF_ERROR(at_least("num_swap_blocks", options.num_swap_blocks, 2));
    if (options.bytes_per_block < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("bytes_per_block must be at least 1 where num_swap_blocks are given: got ",
                       options.bytes_per_block));
    }
    REPRISE_RETURN_IF_ERROR(CheckPreemptionCosts(options.preemption_costs));
  }
  // The width of any group's row, as in the runner's tables.
  const int max_row_tokens = std::max(options.max_seq_len, options.max_encoder_tokens);
  REPRISE_ASSIGN_OR_RETURN(
      BlockManager blocks,
      BlockManager::Create({.num_blocks = options.num_blocks,
                            .block_size = options.block_size,
                            .num_slots = options.max_num_seqs,
                            .max_blocks = (max_row_tokens - 1) / options.block_size + 1,
                            .groups = options.groups,
                            .prefix_reuse = options.prefix_reuse,
                            .prefix_tokens = options.partial_hits == PartialHits::kCopied
                                                 ? PrefixTokens::kStored
                                                 : PrefixTokens::kNotStored,
                            .partial_hits = options.partial_hits,
                            .prefix_seed = options.prefix_seed,
                            .num_prefix_events = options.num_prefix_events}));
  auto scheduler = std::unique_ptr<Scheduler>(new Scheduler(options, std::move(blocks)));
  if (options.num_swap_blocks > 0 && options.preemption != PreemptionMode::kRecompute) {
    REPRISE_ASSIGN_OR_RETURN(scheduler->swap_store_,
                             SwapStore::Create({.num_host_blocks = options.num_swap_blocks},
                                               &scheduler->blocks_, FencesOfOneStream()));
  }
  return scheduler;
}

Scheduler::Scheduler(const SchedulerOptions& options, BlockManager blocks)
    : options_(options),
      blocks_(std::move(blocks)),
      seeds_(options.seed.has_value() ? *options.seed : SeedFromSystem()),
      draft_costs_(MeasuredLevels(options)),
      by_slot_(options.max_num_seqs, nullptr) {
  if (options_.prefill_chunk == 0) options_.prefill_chunk = options_.max_num_tokens;
  has_windows_ = absl::c_any_of(blocks_.groups(), LosesBlocks);
  const absl::Span<const KvGroupSpec> groups = blocks_.groups();
  const auto full = absl::c_find_if(
      groups, [](const KvGroupSpec& group) { return group.retention == KvRetention::kFull; });
  if (options_.drafter_keys != DrafterKeys::kNone && full != groups.end()) {
    drafted_group_ = static_cast<int>(full - groups.begin());
    drafted_blocks_.emplace(
        DraftedBlocksOptions{.num_blocks = options_.num_blocks, .block_size = options_.block_size});
  }
  // The device may be behind by a chunk, or by a row with drafts, for each step in flight.
  const int64_t num_uncommitted =
      int64_t{options_.max_steps_in_flight} *
      std::max(options_.prefill_chunk, 1 + DraftsOf(options_.speculation.num_drafts));
  const int num_behind =
      static_cast<int>(std::min<int64_t>(num_uncommitted, std::numeric_limits<int>::max()));
  max_cached_tokens_ =
      std::min(options_.max_seq_len, blocks_.max_tokens(num_behind, options_.max_encoder_tokens));
  for (int slot = options_.max_num_seqs - 1; slot >= 0; --slot) free_slots_.emplace_back(slot);
  running_.reserve(options_.max_num_seqs);
  rows_.reserve(options_.max_num_seqs);
  joins_.reserve(options_.max_num_seqs);
  logits_requests_.reserve(options_.max_num_seqs);
  encodes_.reserve(options_.max_num_seqs);
  leaves_.reserve(options_.max_num_seqs);
  next_leaves_.reserve(options_.max_num_seqs);
  open_.reserve(options_.max_steps_in_flight);
  spare_.resize(options_.max_steps_in_flight);
  for (OpenBatch& batch : spare_) batch.reserve(options_.max_num_seqs);
}

Scheduler::~Scheduler() = default;

bool Scheduler::has_work() const {
  return !waiting_.empty() || !running_.empty() || !open_.empty();
}

const ScheduledBatch& Scheduler::Schedule() {
  CHECK(can_schedule()) << "max_steps_in_flight = " << options_.max_steps_in_flight;
  if (batch_was_launched_) {  // else they still wait for a batch with rows
    leaves_.clear();
    swap_outs_.clear();
    swap_ins_.clear();
  }
  leaves_.insert(leaves_.end(), next_leaves_.begin(), next_leaves_.end());
  next_leaves_.clear();
  joins_.clear();
  logits_requests_.clear();
  encodes_.clear();
  rows_.clear();
  embeddings_.clear();
  num_row_tokens_ = 0;
  num_prefill_tokens_ = 0;
  num_decode_rows_ = 0;
  num_encoder_tokens_ = 0;
  num_earlier_logits_ = 0;
  lacks_blocks_ = false;
  open_.push_back(std::move(spare_.back()));
  spare_.pop_back();

  // Preemption takes the last of running_, which has no row yet: this loop goes in their order.
  for (size_t i = 0; i < running_.size(); ++i) ScheduleDecode(*running_[i]);
  for (size_t i = 0; i < running_.size(); ++i) SchedulePrefill(*running_[i]);
  if (!lacks_blocks_) AdmitWaiting();
  AddDrafts();
  MarkFedRows();

  batch_was_launched_ = !rows_.empty();
  if (!batch_was_launched_) {
    Recycle(std::move(open_.back()));
    open_.pop_back();
    batch_ = {};  // updates and copies wait for a batch with rows
    return batch_;
  }
  batch_ = {.leaves = leaves_,
            .joins = joins_,
            .logits_requests = logits_requests_,
            .updates = blocks_.TakeUpdates(),
            .swap_outs = swap_outs_,
            .swap_ins = swap_ins_,
            .copies = blocks_.TakeCopies(),
            .encodes = encodes_,
            .rows = rows_,
            .embeddings = embeddings_};
  return batch_;
}

void Scheduler::ScheduleDecode(Sequence& sequence) {
  if (sequence.num_scheduled < sequence.prefill_end) return;
  if (sequence.num_generated() + sequence.num_in_flight >= sequence.max_generated()) return;
  if (sequence.num_scheduled >= MaxCachedTokens(sequence)) return;
  if (sequence.token_masker != nullptr && sequence.num_in_flight > 0) return;  // no mask yet
  DCHECK_GE(sequence.num_scheduled, sequence.last_fed());
  if (!MakeRoom(sequence, sequence.num_scheduled + 1)) return;
  absl::Span<const int32_t> tokens;  // none: what the device sampled last
  if (sequence.forced()) {
    tokens = absl::MakeConstSpan(sequence.tokens).subspan(sequence.num_scheduled, 1);
  }
  AddRow(sequence, tokens);
  ++num_decode_rows_;
}

bool Scheduler::MakeRoom(Sequence& sequence, int num_tokens) {
  const int num_lacking = num_tokens - blocks_.num_tokens(*sequence.slot);
  if (num_lacking <= 0) return true;
  while (!blocks_.Append(*sequence.slot, num_lacking).ok()) {
    // Alone, a sequence has the whole pool, which holds max_cached_tokens_.
    CHECK_GT(running_.size(), 1u);
    const bool itself = running_.back() == &sequence;
    PreemptLast();
    if (itself) return false;
  }
  return true;
}

int Scheduler::ChunkBudget() const {
  int budget = std::min(options_.max_num_tokens - num_row_tokens_, options_.prefill_chunk);
  if (num_decode_rows_ > 0 && options_.max_prefill_tokens_while_decoding > 0) {
    budget = std::min(budget, options_.max_prefill_tokens_while_decoding - num_prefill_tokens_);
  }
  return budget;
}

void Scheduler::SchedulePrefill(Sequence& sequence) {
  const int remaining = sequence.prefill_end - sequence.num_scheduled;
  int chunk = ScoredChunk(sequence, std::min(remaining, ChunkBudget()));
  if (chunk <= 0) return;
  const int num_tokens = sequence.num_scheduled + chunk;
  const int num_lacking = num_tokens - blocks_.num_tokens(*sequence.slot);
  if (num_lacking > 0 && !blocks_.Append(*sequence.slot, num_lacking).ok()) {
    // What it has room for already. A sequence that has just been admitted has room for a token.
    chunk -= num_lacking;
    if (chunk <= 0) {
      // While other sequences run, their steps will free blocks; and a sequence with a row in this
      // batch cannot be preempted.
      if (!rows_.empty() || open_.size() > 1) {
        lacks_blocks_ = true;
        return;
      }
      if (!MakeRoom(sequence, num_tokens)) return;
      chunk += num_lacking;
    }
  }
  AddRow(sequence, absl::MakeConstSpan(sequence.tokens).subspan(sequence.num_scheduled, chunk));
  num_prefill_tokens_ += chunk;
}

void Scheduler::AddDrafts() {
  const SpeculationPolicy& policy = options_.speculation;
  // Where blocks are lacking, those that are freed are for the prompt that waits for them.
  if (policy.num_drafts == 0 || lacks_blocks_) return;
  const int step_levels = StepLevels();
  const int num_rows = static_cast<int>(rows_.size());
  // Of the step: a runner has room for drafts of all rows, or for the logits of prompts.
  const int64_t max_earlier_logits = std::max<int64_t>(
      options_.max_earlier_logits, int64_t{options_.max_num_seqs} * DraftsOf(policy.num_drafts));
  bool may_grow = true;
  int num_earlier_before = 0;  // of the rows before
  for (int i = 0; i < num_rows; ++i) {
    OpenRow& open = open_.back()[i];
    Sequence& sequence = *open.sequence;
    open.first_earlier = num_earlier_before;
    if (!rows_[i].tokens.empty()) {  // a chunk of a prompt, or a forced token
      num_earlier_before += rows_[i].num_earlier_logits();
      continue;
    }
    const int room = static_cast<int>(std::min<int64_t>(options_.max_num_tokens - num_row_tokens_,
                                                        max_earlier_logits - num_earlier_logits_));
    const int most = std::min({step_levels, MostLevels(open, rows_[i]), LevelsOf(room)});
    if (most <= 0) continue;
    const absl::Span<const int32_t> given = sequence.PredictedDrafts(most);
    open.has_given_drafts = !given.empty();
    int num_levels = 0;
    int num_drafts = 0;
    if (open.has_given_drafts) {
      const int wanted = std::min(NumByAcceptance(sequence, most), static_cast<int>(given.size()));
      num_drafts = num_levels = RoomForDrafts(sequence, wanted, may_grow);
      rows_[i].drafts = given.first(num_drafts);
    } else {
      const int wanted = DraftsOf(WantedLevels(sequence, most));
      num_levels = LevelsOf(RoomForDrafts(sequence, wanted, may_grow));
      num_drafts = DraftsOf(num_levels);
      rows_[i].num_drafts = num_drafts;
    }
    if (num_drafts == 0) continue;
    open.num_drafts = num_drafts;
    open.num_levels = num_levels;
    open.num_tokens += num_drafts;
    open.num_new_tokens += num_levels;
    open.has_earlier = true;
    sequence.num_scheduled += num_drafts;
    sequence.num_in_flight += num_levels;
    num_row_tokens_ += num_drafts;
    num_earlier_logits_ += num_drafts;
    num_earlier_before += num_drafts;
  }
}

int Scheduler::NumByAcceptance(Sequence& sequence, int most) const {
  // What is measured is one number of drafts for the whole step.
  return options_.speculation.measures_steps ? most : sequence.draft_length.Next(most);
}

int Scheduler::WantedLevels(Sequence& sequence, int most) {
  const int wanted = NumByAcceptance(sequence, most);
  if (options_.drafter_keys == DrafterKeys::kNone || wanted == 0) return wanted;
  const int num_unseen = sequence.num_unseen();
  if (num_unseen <= DraftsOf(wanted)) return wanted;
  // Each row brings a token, too. Probes would have to catch up all the time.
  const int num_drafts = DraftsOf(most);
  const int num_rows = (num_unseen + num_drafts - 1) / num_drafts - 1;
  const int num_left = sequence.max_generated() - sequence.num_generated() - sequence.num_in_flight;
  return sequence.draft_length.pays() && num_rows < num_left ? most : 0;
}

void Scheduler::MarkFedRows() {
  if (options_.drafter_keys == DrafterKeys::kNone) return;
  // As ModelRunner::RunsDraftModel().
  const bool has_given = absl::c_any_of(rows_, [](const auto& row) { return !row.tokens.empty(); });
  const bool has_long =
      absl::c_any_of(open_.back(), [](const auto& row) { return row.num_tokens > 1; });
  for (OpenRow& row : open_.back()) row.feeds_drafter = has_given && has_long;
}

bool Scheduler::HasProposed(const OpenRow& row, absl::Span<const int32_t> new_tokens) const {
  if (options_.drafter_keys == DrafterKeys::kNone || row.has_given_drafts) return true;
  if (row.sequence->num_unseen() <= row.num_drafts) return true;
  // A drafter that proposes none leaves token 0 in the places of drafts, which may be right: others that
  // were accepted, all new tokens but the last, are certainly its own.
  return !new_tokens.empty() && absl::c_any_of(new_tokens.first(new_tokens.size() - 1),
                                               [](int32_t token) { return token != 0; });
}

int Scheduler::MostLevels(const OpenRow& open, const ScheduledRow& row) const {
  if (!row.tokens.empty()) return 0;
  const Sequence& sequence = *open.sequence;
  if (!options_.has_drafter && sequence.PredictedDrafts(/*most=*/1).empty()) return 0;
  const int num_left = sequence.max_generated() - sequence.num_generated() - sequence.num_in_flight;
  const int room = MaxCachedTokens(sequence) - sequence.num_scheduled;
  return std::max(0, std::min({sequence.max_drafts(), num_left, LevelsOf(room)}));
}

int Scheduler::StepLevels() {
  const SpeculationPolicy& policy = options_.speculation;
  DraftableStep step = {.num_rows = static_cast<int>(rows_.size())};
  for (int i = 0; i < step.num_rows; ++i) {
    const int most = MostLevels(open_.back()[i], rows_[i]);
    if (most == 0) continue;
    ++step.num_drafting;
    step.most = std::max(step.most, most);
  }
  if (step.num_drafting == 0) return 0;
  if (policy.max_speculating_rows > 0 && step.num_rows > policy.max_speculating_rows) {
    ++speculation_statistics_.num_too_large_steps;
    return 0;
  }
  if (!policy.measures_steps) return step.most;
  // Steps with prompts are not measured.
  const int num_levels =
      num_prefill_tokens_ > 0 ? draft_costs_.ChooseBesidePrompts(step) : draft_costs_.Choose(step);
  if (num_levels == 0) ++speculation_statistics_.num_unpaid_steps;
  return num_levels;
}

int Scheduler::DraftsOf(int num_levels) const {
  const std::vector<int>& drafts = options_.level_drafts;
  return drafts.empty() || num_levels == 0 ? num_levels : drafts[num_levels - 1];
}

int Scheduler::LevelsOf(int num_drafts) const {
  const std::vector<int>& drafts = options_.level_drafts;
  if (drafts.empty()) return num_drafts;
  return static_cast<int>(absl::c_upper_bound(drafts, num_drafts) - drafts.begin());
}

int Scheduler::RoomForDrafts(const Sequence& sequence, int num_tokens, bool& may_grow) {
  const SlotId slot = *sequence.slot;
  const int num_there = blocks_.num_tokens(slot) - sequence.num_scheduled;
  if (num_there >= num_tokens) return num_tokens;
  if (may_grow && blocks_.Append(slot, num_tokens - num_there).ok()) return num_tokens;
  may_grow = false;
  // What is left of the last block.
  const int begun = blocks_.num_tokens(slot) % options_.block_size;
  const int num_left = begun == 0 ? 0 : options_.block_size - begun;
  const int num_more = std::min(num_left, num_tokens - num_there);
  return num_more > 0 && blocks_.Append(slot, num_more).ok() ? num_there + num_more : num_there;
}

int Scheduler::MaxCachedTokens(const Sequence& sequence) const {
  if (options_.num_position_dims == 1) return max_cached_tokens_;
  // Beyond the prompt a token's position is its index + position_delta.
  return static_cast<int>(std::min<int64_t>(
      max_cached_tokens_, int64_t{options_.max_position} - sequence.added->content.position_delta));
}

void Scheduler::AddRow(Sequence& sequence, absl::Span<const int32_t> tokens) {
  ScheduledRow row{.slot = *sequence.slot, .tokens = tokens};
  const AddedRequest& added = *sequence.added;
  if (!tokens.empty() && !added.request.positions.empty()) {
    row.positions = PositionsOf(added.request, sequence.num_scheduled, row.query_len());
  }
  if (!tokens.empty() && !added.content.ranges.empty()) {
    AppendEmbeddings(added.request, added.content, sequence.num_scheduled, row.query_len(),
                     static_cast<int>(rows_.size()), copies_, embeddings_);
  }
  OpenRow open{.sequence = &sequence,
               .admission = sequence.admission,
               .first_token = sequence.num_scheduled,
               .num_tokens = row.query_len(),
               .encodes = !encodes_.empty() && encodes_.back().slot == row.slot};
  SetOutput(sequence, row, open);
  sequence.num_scheduled += row.query_len();
  sequence.num_in_flight += open.num_new_tokens;
  num_row_tokens_ += row.query_len();
  num_earlier_logits_ += row.num_earlier_logits();
  ++sequence.added->num_open_rows;
  rows_.push_back(row);
  open_.back().push_back(open);
}

}  // namespace reprise
