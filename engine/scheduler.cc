#include "reprise/engine/scheduler.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "reprise/base/status_macros.h"
#include "reprise/engine/prompt_content.h"
#include "reprise/engine/scheduling/admission.h"
#include "reprise/engine/scheduling/batch_in_progress.h"
#include "reprise/engine/scheduling/cache_limits.h"
#include "reprise/engine/scheduling/draft_planner.h"
#include "reprise/engine/scheduling/open_batches.h"
#include "reprise/engine/scheduling/preemptor.h"
#include "reprise/engine/scheduling/row_logits.h"
#include "reprise/engine/scheduling/sequence_state.h"
#include "reprise/engine/scheduling/sequence_table.h"
#include "reprise/runner/speculation/draft_capability.h"

namespace reprise {
namespace {

absl::Status CheckLevels(const SchedulerOptions& options) {
  const std::vector<int>& graphs = options.shape.drafts.graph_levels;
  for (size_t i = 0; i < graphs.size(); ++i) {
    const int before = i == 0 ? 0 : graphs[i - 1];
    if (graphs[i] > before) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("graph_levels[", i, "] must be above ", before, ": got ", graphs[i]));
  }
  const std::vector<int>& drafts = options.shape.drafts.level_drafts;
  if (drafts.empty()) return absl::OkStatus();
  if (options.policy.speculation->num_drafts > static_cast<int>(drafts.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("speculation.num_drafts must be at most the levels of level_drafts: expected ",
                     "at most ", drafts.size(), ", got ", options.policy.speculation->num_drafts));
  }
  for (size_t i = 0; i < drafts.size(); ++i) {
    const int before = i == 0 ? 0 : drafts[i - 1];
    if (drafts[i] > before) continue;
    return absl::InvalidArgumentError(absl::StrCat("level_drafts[", i, "] must be above ", before,
                                                   ", the previous entry: got ", drafts[i]));
  }
  return absl::OkStatus();
}

SchedulerOptions WithDefaults(SchedulerOptions options) {
  const DraftCapability& drafts = options.shape.drafts;
  SchedulerPolicy& policy = options.policy;
  if (!policy.speculation.has_value()) {
    policy.speculation =
        SpeculationPolicy{.num_drafts = drafts.max_levels(),
                          .measures_steps = drafts.acceptance == DraftAcceptance::kSameText};
  }
  if (!policy.preemption_costs.has_value()) policy.preemption_costs = H200PreemptionCosts();
  if (policy.prefill_chunk == 0) policy.prefill_chunk = options.shape.max_num_tokens;
  return options;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Scheduler>> Scheduler::Create(const SchedulerOptions& given) {
  const SchedulerOptions options = WithDefaults(given);
  const auto at_least = [](const char* name, int value, int least) {
    return value >= least ? absl::OkStatus()
                          : absl::InvalidArgumentError(
                                absl::StrCat(name, " must be at least ", least, ": got ", value));
  };
  REPRISE_RETURN_IF_ERROR(at_least("max_num_seqs", options.shape.max_num_seqs, 1));
  REPRISE_RETURN_IF_ERROR(
      at_least("max_num_tokens", options.shape.max_num_tokens, options.shape.max_num_seqs));
  REPRISE_RETURN_IF_ERROR(at_least("prefill_chunk", options.policy.prefill_chunk, 0));
  REPRISE_RETURN_IF_ERROR(at_least("max_prefill_tokens_while_decoding",
                                   options.policy.max_prefill_tokens_while_decoding, 0));
  REPRISE_RETURN_IF_ERROR(at_least("max_seq_len", options.shape.max_seq_len, 1));
  REPRISE_RETURN_IF_ERROR(at_least("max_steps_in_flight", options.shape.max_steps_in_flight, 1));
  REPRISE_RETURN_IF_ERROR(at_least("max_waiting", options.policy.max_waiting, 0));
  REPRISE_RETURN_IF_ERROR(at_least("block_size", options.shape.block_size, 1));
  REPRISE_RETURN_IF_ERROR(at_least("num_position_dims", options.shape.num_position_dims, 1));
  if (options.shape.num_position_dims > 1) {
    REPRISE_RETURN_IF_ERROR(
        at_least("max_position", options.shape.max_position, options.shape.max_seq_len));
  }
  REPRISE_RETURN_IF_ERROR(at_least("mask_words", options.shape.mask_words, 0));
  REPRISE_RETURN_IF_ERROR(at_least("max_earlier_logits", options.shape.max_earlier_logits, 0));
  REPRISE_RETURN_IF_ERROR(at_least("max_encoder_tokens", options.shape.max_encoder_tokens, 0));
  REPRISE_RETURN_IF_ERROR(at_least("max_encoder_step_tokens", options.shape.max_encoder_step_tokens,
                                   options.shape.max_encoder_tokens));
  REPRISE_RETURN_IF_ERROR(CheckSpeculationPolicy(*options.policy.speculation));
  REPRISE_RETURN_IF_ERROR(CheckLevels(options));
  REPRISE_RETURN_IF_ERROR(at_least("num_swap_blocks", options.shape.num_swap_blocks, 0));
  if (options.shape.num_swap_blocks > 0) {
    REPRISE_RETURN_IF_ERROR(at_least("num_swap_blocks", options.shape.num_swap_blocks, 2));
    if (options.shape.bytes_per_block < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("bytes_per_block must be at least 1 if num_swap_blocks is above 0: got ",
                       options.shape.bytes_per_block));
    }
    REPRISE_RETURN_IF_ERROR(CheckPreemptionCosts(*options.policy.preemption_costs));
  }
  BlockManagerOptions block_options =
      BlockOptionsOf(options.shape, options.policy.prefix_reuse, options.policy.partial_hits);
  block_options.prefix_seed = options.policy.prefix_seed;
  block_options.num_prefix_events = options.policy.num_prefix_events;
  REPRISE_ASSIGN_OR_RETURN(BlockManager blocks, BlockManager::Create(block_options));
  auto scheduler = std::unique_ptr<Scheduler>(new Scheduler(options, std::move(blocks)));
  REPRISE_ASSIGN_OR_RETURN(scheduler->preemptor_,
                           Preemptor::Create(options.shape, options.policy, &scheduler->blocks_,
                                             scheduler->limits_.get(), scheduler->table_.get()));
  scheduler->admission_ = std::make_unique<Admission>(
      options.shape, options.policy, &scheduler->blocks_, scheduler->limits_.get(),
      scheduler->table_.get(), scheduler->preemptor_.get());
  return scheduler;
}

Scheduler::Scheduler(const SchedulerOptions& options, BlockManager blocks)
    : options_(options),
      blocks_(std::move(blocks)),
      limits_(std::make_unique<CacheLimits>(options.shape, blocks_)),
      table_(std::make_unique<SequenceTable>(options.shape.max_num_seqs)),
      batch_(std::make_unique<BatchInProgress>(options.shape, options.policy)),
      open_(std::make_unique<OpenBatches>(options.shape)),
      drafts_(
          std::make_unique<DraftPlanner>(options.shape, options.policy, &blocks_, limits_.get())) {}

Scheduler::~Scheduler() = default;

absl::StatusOr<SequenceId> Scheduler::Add(Request request) {
  REPRISE_ASSIGN_OR_RETURN(RequestState* const added, admission_->Add(std::move(request)));
  added->max_drafts = drafts_->MaxDraftsOf(added->request);
  if (added->request.new_token_masker) batch_->ReserveMasks();
  next_deadline_ = std::min(next_deadline_, added->request.deadline);
  return added->id;
}

// ---- Batches.

const ScheduledBatch& Scheduler::Schedule() {
  CHECK(can_schedule()) << "max_steps_in_flight = " << options_.shape.max_steps_in_flight;
  batch_->Begin();
  // Preemption takes the last running sequences. They have no rows yet: the first loop visits
  // sequences in order, and the second loop preempts only if the batch has no rows.
  for (int i = 0; i < table_->num_running(); ++i) ScheduleDecode(*table_->running()[i]);
  for (int i = 0; i < table_->num_running(); ++i) SchedulePrefill(*table_->running()[i]);
  if (!batch_->lacks_blocks()) AdmitWaiting();
  drafts_->AddDrafts(*batch_);
  // Without rows, updates and copies wait for a batch with rows.
  if (!batch_->has_rows()) return batch_->Finish({}, {});
  const ScheduledBatch& finished = batch_->Finish(blocks_.TakeUpdates(), blocks_.TakeCopies());
  open_->Push(batch_->finished_rows());
  return finished;
}

void Scheduler::ScheduleDecode(SequenceState& sequence) {
  if (sequence.num_scheduled < sequence.prefill_end) return;
  if (sequence.num_left() <= 0) return;
  if (sequence.num_scheduled >= limits_->MaxTokens(sequence)) return;
  if (sequence.token_masker != nullptr && sequence.num_in_flight > 0) return;  // no mask yet
  DCHECK_GE(sequence.num_scheduled, sequence.last_fed());
  if (!preemptor_->MakeRoom(sequence, sequence.num_scheduled + 1, num_in_flight(), *batch_)) return;
  absl::Span<const int32_t> tokens;  // empty: the token that the device sampled last
  if (sequence.forced()) {
    tokens = absl::MakeConstSpan(sequence.tokens).subspan(sequence.num_scheduled, 1);
  }
  AddRow(sequence, BatchRowKind::kDecode, tokens);
}

void Scheduler::SchedulePrefill(SequenceState& sequence) {
  const int remaining = sequence.prefill_end - sequence.num_scheduled;
  int chunk =
      ScoredChunk(sequence, std::min(remaining, batch_->prompt_tokens_left()),
                  {.max = options_.shape.max_earlier_logits, .used = batch_->num_earlier_logits()});
  if (chunk <= 0) return;
  chunk = limits_->FittingChunk(sequence.num_scheduled, sequence.num_encoder_tokens(), chunk);
  const int num_tokens = sequence.num_scheduled + chunk;
  const int num_lacking = num_tokens - blocks_.num_tokens(*sequence.slot);
  if (num_lacking > 0 && !blocks_.Append(*sequence.slot, num_lacking).ok()) {
    // Takes the tokens that have room already. A sequence that was just admitted has room for at
    // least one token.
    chunk -= num_lacking;
    if (chunk <= 0) {
      // Waits, because steps may end sequences and thereby free blocks. Besides, a sequence with a
      // row in this batch cannot be preempted.
      if (batch_->has_rows() || num_in_flight() > 0) {
        batch_->NoteLackOfBlocks();
        return;
      }
      if (!preemptor_->MakeRoom(sequence, num_tokens, num_in_flight(), *batch_)) return;
      chunk += num_lacking;
    }
  }
  AddRow(sequence, BatchRowKind::kPrompt,
         absl::MakeConstSpan(sequence.tokens).subspan(sequence.num_scheduled, chunk));
}

void Scheduler::AdmitWaiting() {
  admission_->BeginBatch();
  while (std::optional<Admitted> admitted = admission_->Next(*batch_)) {
    SequenceState& sequence = *admitted->sequence;
    SlotJoin& join = admitted->join;
    join.num_undrafted =
        drafts_->Join(sequence, *sequence.slot, join.seq_len, admitted->swapped_in);
    batch_->Join(join);
    if (const auto request = LogitsRequestOf(sequence)) batch_->AddLogitsRequest(*request);
    SchedulePrefill(sequence);
  }
}

void Scheduler::AddRow(SequenceState& sequence, BatchRowKind kind,
                       absl::Span<const int32_t> tokens) {
  ScheduledRow row{.slot = *sequence.slot, .tokens = tokens};
  const RequestState& added = *sequence.added;
  if (!tokens.empty()) {
    const int num_tokens = static_cast<int>(tokens.size());
    if (!added.request.positions.empty()) {
      row.positions = PositionsOf(added.request, sequence.num_scheduled, num_tokens);
    }
    batch_->AddEmbeddings(added, sequence.num_scheduled, num_tokens);
  }
  OpenRow open{.sequence = &sequence};
  SetOutput(sequence, row, open);
  if (NeedsMask(sequence, open)) SetMask(sequence, batch_->NextMask(), row, open);
  batch_->AddRow(kind, row, open);
}

// ---- State.

bool Scheduler::has_work() const {
  return table_->num_waiting() > 0 || table_->num_running() > 0 || !open_->empty();
}

int Scheduler::num_in_flight() const { return open_->size(); }
int Scheduler::max_cached_tokens() const { return limits_->max_tokens(); }
int Scheduler::num_waiting() const { return table_->num_waiting(); }
int Scheduler::num_running() const { return table_->num_running(); }
int64_t Scheduler::num_preemptions() const { return preemptor_->num_preemptions(); }
const SwapStatistics& Scheduler::swap_statistics() const { return preemptor_->swap_statistics(); }
const SwapStore* Scheduler::swap_store() const { return preemptor_->swap_store(); }
const SpeculationStatistics& Scheduler::speculation_statistics() const {
  return drafts_->statistics();
}
const DraftCosts& Scheduler::draft_costs() const { return drafts_->costs(); }
int64_t Scheduler::num_forks() const { return admission_->num_forks(); }

}  // namespace reprise
