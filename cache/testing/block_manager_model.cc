#include "cache/testing/block_manager_model.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "cache/group_retention.h"

namespace reprise {
namespace {

using absl::StatusCode;

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t h = (a ^ (b + 0x9E3779B97F4A7C15u + (a << 6) + (a >> 2))) * 0xBF58476D1CE4E5B9u;
  return h ^ (h >> 29);
}

// What stands in memory for a token or a place of the encoder's input.
uint64_t Cell(uint64_t value, int group) { return Mix(value, 1000 + group); }

std::vector<std::unique_ptr<Fence>> FencesOf(DelayedStream& stream) {
  std::vector<std::unique_ptr<Fence>> fences;
  for (int i = 0; i < 3; ++i) fences.push_back(stream.MakeFence());
  return fences;
}

}  // namespace

BlockManagerModel::BlockManagerModel(const BlockManagerModelOptions& options, Choices* choices)
    : options_(options),
      block_size_(options.manager.block_size),
      num_row_tokens_(options.manager.max_blocks * options.manager.block_size),
      choices_(choices),
      manager_(std::make_unique<BlockManager>(*BlockManager::Create(options.manager))),
      store_(std::make_unique<SwapStore>(
          *SwapStore::Create({.num_host_blocks = options.num_host_blocks}, manager_.get(),
                             {.device = FencesOf(swap_stream_), .host = FencesOf(swap_stream_)}))),
      memory_(int64_t{options.manager.num_blocks} * block_size_, 0),
      host_memory_(int64_t{options.num_host_blocks} * block_size_, 0) {
  for (int group = 0; group < manager_->num_groups(); ++group) {
    device_tables_.push_back(*BlockTable::Create(
        {.num_slots = options.manager.num_slots, .max_blocks = options.manager.max_blocks}));
  }
}

// ---- What to do.

void BlockManagerModel::Step() {
  ++num_calls_;
  manager_->Poll();  // so that counts of what can be had are those of now
  const int kind = Below(40);
  if (kind < 1) {
    AddRoom();
  } else if (kind < 6) {
    AddPrompt();
  } else if (kind < 13) {
    AppendBatch();
  } else if (kind < 20) {
    Commit();
  } else if (kind < 21) {
    if (choices_->OneIn(4)) CommitUnknown();
  } else if (kind < 23) {
    Fork();
  } else if (kind < 25) {
    Truncate();
  } else if (kind < 27) {
    Free();
  } else if (kind < 28) {
    PlanOut();
  } else if (kind < 29) {
    PlanIn();
  } else if (kind < 30) {
    LaunchSwaps();
  } else if (kind < 31) {
    RunSwap();
  } else if (kind < 32) {
    BadCall();
  } else if (kind < 33) {
    if (choices_->OneIn(8)) Drop();
    if (choices_->OneIn(30)) ForgetPrefixes();
  } else {
    LaunchStep();
  }
  Check();
}

SlotId BlockManagerModel::AnySlot() {
  return SlotId(choices_->OneIn(20) ? Below(options_.manager.num_slots + 4) - 2
                                    : Below(options_.manager.num_slots));
}

SlotId BlockManagerModel::AnyEmptySlot() {
  if (choices_->OneIn(20)) return AnySlot();
  const int first = Below(options_.manager.num_slots);
  for (int i = 0; i < options_.manager.num_slots; ++i) {
    const SlotId slot((first + i) % options_.manager.num_slots);
    if (!live_.contains(slot)) return slot;
  }
  return SlotId(first);
}

std::optional<SlotId> BlockManagerModel::AnySequence() {
  if (live_.empty()) return std::nullopt;
  const auto it = std::next(live_.begin(), Below(static_cast<int>(live_.size())));
  if (it->second.is_leaving) return std::nullopt;
  return it->first;
}

// Mostly small, now and then absurd or negative.
int BlockManagerModel::AnyCount() {
  const int kind = Below(20);
  if (kind == 0) return -1 - Below(3);
  if (kind == 1) return num_row_tokens_ + Below(3) - 1;
  if (kind == 2) return INT32_MAX - Below(2);
  return kind < 6 ? Below(num_row_tokens_) : Below(3);
}

bool BlockManagerModel::IsSlot(SlotId slot) const {
  return slot.value() >= 0 && slot.value() < options_.manager.num_slots;
}

// ---- What a sequence's keys are.

uint64_t BlockManagerModel::RootOf(const Origin& origin) const {
  return Mix(Mix(17, origin.adapter), Mix(origin.encoder, origin.num_encoder_tokens));
}

uint64_t BlockManagerModel::ValueAfter(const Sequence& sequence, uint64_t before, int position,
                                       int32_t token) const {
  const Origin& origin = sequence.origin;
  uint64_t input = Mix(5, token);
  const int in_image = position - origin.first_of_image;
  if (origin.image != 0 && in_image >= 0 && in_image < origin.num_of_image) {
    input = Mix(input, Mix(Mix(origin.image, in_image), origin.num_of_image));
  }
  return Mix(before, input);
}

void BlockManagerModel::Grow(Sequence& sequence, int num_tokens) {
  while (sequence.num_tokens() < num_tokens) {
    const int position = sequence.num_tokens();
    const int32_t token = Below(2);  // few, so that sequences meet
    const uint64_t before = position == 0 ? RootOf(sequence.origin) : sequence.values[position - 1];
    sequence.values.push_back(ValueAfter(sequence, before, position, token));
    sequence.tokens.push_back(token);
  }
}

void BlockManagerModel::Remember(const Sequence& sequence) {
  if (remembered_.size() < 8) {
    remembered_.push_back(sequence);
  } else {
    remembered_[Below(8)] = sequence;
  }
}

// ---- Calls.

void BlockManagerModel::AddRoom() {
  call_ = "Add room";
  const SlotId slot = AnyEmptySlot();
  const int count = AnyCount();
  const std::vector<int64_t> before = Snapshot();
  std::vector<StatusCode> codes;
  const int64_t num_blocks =
      IsSlot(slot) && count >= 0 && count <= num_row_tokens_ ? manager_->NumBlocksFor(count, 0) : 0;
  const int num_pool = options_.manager.num_blocks - 1 - options_.manager.num_reserved_blocks;
  if (!IsSlot(slot)) {
    codes = {StatusCode::kInvalidArgument};
  } else if (live_.contains(slot)) {
    codes = {StatusCode::kAlreadyExists};
  } else if (count < 0 || count > num_row_tokens_ || num_blocks > num_pool) {
    codes = {StatusCode::kInvalidArgument};
  } else if (num_blocks > manager_->pool().num_allocatable()) {
    codes = {StatusCode::kResourceExhausted};
  } else {
    codes = {StatusCode::kOk};
  }
  const absl::Status status = manager_->Add(slot, count);
  Expect(status, codes, before);
  if (!status.ok()) return;
  Sequence& added = live_[slot];
  Grow(added, count);
}

void BlockManagerModel::AddPrompt() {
  call_ = "Add prompt";
  const SlotId slot = AnyEmptySlot();
  Sequence sequence;
  if (!remembered_.empty() && !choices_->OneIn(5)) {
    const Sequence& like = remembered_[Below(static_cast<int>(remembered_.size()))];
    sequence.origin = like.origin;
    const int num_same = Below(like.num_tokens() + 1);
    sequence.tokens.assign(like.tokens.begin(), like.tokens.begin() + num_same);
    sequence.values.assign(like.values.begin(), like.values.begin() + num_same);
  } else {
    Origin& origin = sequence.origin;
    if (choices_->OneIn(4)) origin.adapter = 1 + Below(2);
    if (choices_->OneIn(4)) {
      origin.image = 1 + Below(2);
      origin.first_of_image = Below(6);
      origin.num_of_image = 1 + Below(5);
    }
    const bool has_cross = absl::c_any_of(
        manager_->groups(), [](const KvGroupSpec& group) { return !HoldsOwnTokens(group); });
    if (has_cross && !choices_->OneIn(3)) {
      origin.encoder = 1 + Below(2);
      origin.num_encoder_tokens = 1 + Below(2 * block_size_);
      origin.encoder_has_name = !choices_->OneIn(4);
      // An input without a name is like no other.
      if (!origin.encoder_has_name) origin.encoder = 100 + static_cast<int>(num_calls_ % 100000);
    }
  }
  Grow(sequence, std::min(sequence.num_tokens() + Below(2 * block_size_ + 1), num_row_tokens_ + 1));
  sequence.is_known = sequence.origin.encoder == 0 || sequence.origin.encoder_has_name;

  const std::string adapter = absl::StrCat("adapter ", sequence.origin.adapter);
  const std::string image = absl::StrCat("image ", sequence.origin.image);
  const std::string encoder = absl::StrCat("input ", sequence.origin.encoder);
  const ExtraKey adapter_key = {.kind = ExtraKeyKind::kAdapter, .value = adapter};
  const ExtraKey encoder_key = {.kind = ExtraKeyKind::kAudio, .value = encoder};
  const RangeKey image_key = {.kind = ExtraKeyKind::kImage,
                              .value = image,
                              .first_token = sequence.origin.first_of_image,
                              .num_tokens = sequence.origin.num_of_image};
  SequencePrompt prompt = {.tokens = sequence.tokens};
  if (sequence.origin.adapter != 0) prompt.extra_keys = absl::MakeConstSpan(&adapter_key, 1);
  if (sequence.origin.image != 0) prompt.range_keys = absl::MakeConstSpan(&image_key, 1);
  prompt.num_encoder_tokens = sequence.origin.num_encoder_tokens;
  if (sequence.origin.encoder_has_name) {
    prompt.encoder_keys = absl::MakeConstSpan(&encoder_key, 1);
  }
  if (choices_->OneIn(3)) prompt.num_new_tokens = Below(sequence.num_tokens() + 2);

  const std::vector<int64_t> before = Snapshot();
  const int num_allocatable = manager_->pool().num_allocatable();
  const int known_prefix = LongestKnownPrefix(sequence);
  const absl::StatusOr<PromptHits> hits = manager_->Add(slot, prompt);
  if (!IsSlot(slot) || sequence.num_tokens() > num_row_tokens_) {
    Expect(hits.status(),
           {IsSlot(slot) && live_.contains(slot) ? StatusCode::kAlreadyExists
                                                 : StatusCode::kInvalidArgument},
           before);
    return;
  }
  if (live_.contains(slot)) {
    Expect(hits.status(), {StatusCode::kAlreadyExists}, before);
    return;
  }
  // With room for all there would be no question; hits need no more than that.
  // A block that is copied from is held beside its copy.
  const int64_t at_most =
      manager_->num_groups() +
      manager_->NumBlocksFor(sequence.num_tokens(), 0, prompt.num_encoder_tokens);
  std::vector<StatusCode> codes = {StatusCode::kOk};
  if (at_most > num_allocatable) codes.push_back(StatusCode::kResourceExhausted);
  if (at_most > options_.manager.num_blocks - 1 - options_.manager.num_reserved_blocks) {
    codes.push_back(StatusCode::kInvalidArgument);
  }
  Expect(hits.status(), codes, before);
  if (!hits.ok()) return;

  const int num_hits = hits->num_tokens;
  CHECK_LT(num_hits, std::max(sequence.num_tokens(), 1)) << "no token is left to compute";
  CHECK_GE(num_hits, known_prefix) << "a prefix of a sequence that lives was not found";
  if (manager_->options().partial_hits == PartialHits::kNone) CHECK_EQ(num_hits % block_size_, 0);
  counts_["hits"] += num_hits > 0;
  counts_["partial hits"] += num_hits % block_size_ != 0;
  counts_["encoder hits"] += hits->has_encoder;
  CHECK_EQ(manager_->num_committed(slot), num_hits);
  CHECK_EQ(manager_->num_tokens(slot),
           std::min(num_hits + prompt.num_new_tokens.value_or(sequence.num_tokens()),
                    sequence.num_tokens()));
  sequence.tokens.resize(manager_->num_tokens(slot));
  sequence.values.resize(manager_->num_tokens(slot));
  sequence.num_written = num_hits;
  sequence.num_committed = num_hits;
  sequence.encoder_is_written = hits->has_encoder;
  sequence.encoder_is_committed = hits->has_encoder;
  live_[slot] = std::move(sequence);
}

// What must be found: the full blocks that a living sequence has committed, if no group has lost
// any.
int BlockManagerModel::LongestKnownPrefix(const Sequence& sequence) const {
  if (!manager_->prefix_cache().is_on() || sequence.num_tokens() == 0 || !sequence.is_known)
    return 0;
  if (absl::c_any_of(manager_->groups(), LosesBlocks)) return 0;
  int longest = 0;
  for (const auto& [slot, other] : live_) {
    if (!other.is_known) continue;
    const int num_compared = std::min(other.num_committed, sequence.num_tokens() - 1);
    int num_same = 0;
    while (num_same < num_compared && other.values[num_same] == sequence.values[num_same])
      ++num_same;
    longest = std::max(longest, num_same / block_size_ * block_size_);
  }
  return longest;
}

void BlockManagerModel::AppendBatch() {
  call_ = "AppendBatch";
  std::vector<SlotAppend> batch(1 + Below(4));
  std::map<SlotId, int64_t> lengths;
  for (SlotAppend& append : batch) {
    append = {.slot = AnySlot(), .num_tokens = choices_->OneIn(4) ? AnyCount() : 1 + Below(2)};
    if (live_.contains(append.slot) && live_[append.slot].is_leaving) append.num_tokens = 0;
  }
  const int num_own = static_cast<int>(absl::c_count_if(manager_->groups(), HoldsOwnTokens));
  int64_t num_lacking = 0;
  std::optional<StatusCode> refusal;
  for (const SlotAppend& append : batch) {
    if (!IsSlot(append.slot)) {
      refusal = StatusCode::kInvalidArgument;
    } else if (!live_.contains(append.slot)) {
      refusal = StatusCode::kNotFound;
    } else if (append.num_tokens < 0) {
      refusal = StatusCode::kInvalidArgument;
    } else {
      const Sequence& now = live_[append.slot];
      int64_t& length = lengths.try_emplace(append.slot, now.num_tokens()).first->second;
      const int64_t longer = length + append.num_tokens;
      if (longer > num_row_tokens_ ||
          manager_->NumBlocksFor(static_cast<int>(longer), static_cast<int>(length),
                                 now.origin.num_encoder_tokens) > options_.manager.num_blocks - 1) {
        refusal = StatusCode::kInvalidArgument;
      } else {
        length = longer;
      }
    }
    if (refusal.has_value()) break;
  }
  for (const auto& [slot, length] : lengths) {
    num_lacking += (manager_->NumBlocksFor(static_cast<int>(length), 0) -
                    manager_->NumBlocksFor(live_[slot].num_tokens(), 0));
  }
  // Each sequence may have to copy the block that it writes to, in each group.
  const int64_t num_copied = options_.manager.num_lookahead_tokens > 0
                                 ? 0
                                 : static_cast<int64_t>(lengths.size()) * num_own;
  const int num_free = manager_->pool().num_allocatable_reserved();
  std::vector<StatusCode> codes;
  if (refusal.has_value()) {
    codes = {*refusal};
  } else {
    if (num_lacking <= num_free) codes.push_back(StatusCode::kOk);
    if (num_lacking + num_copied > num_free) codes.push_back(StatusCode::kResourceExhausted);
  }
  const std::vector<int64_t> before = Snapshot();
  const bool had_copies = manager_->has_copies();
  const absl::Status status = manager_->AppendBatch(batch);
  Expect(status, codes, before);
  if (!status.ok()) return;
  counts_["copies on write"] += !had_copies && manager_->has_copies();
  for (const auto& [slot, length] : lengths) Grow(live_[slot], static_cast<int>(length));
}

void BlockManagerModel::Commit() {
  call_ = "Commit";
  const std::optional<SlotId> slot = AnySequence();
  if (!slot.has_value()) return;
  Sequence& sequence = live_[*slot];
  const int num_new = Below(sequence.num_written - sequence.num_committed + 1);
  const int num_null_before = NumNull(*slot);
  const absl::Status status = manager_->Commit(
      *slot, absl::MakeConstSpan(sequence.tokens).subspan(sequence.num_committed, num_new));
  CHECK(status.ok()) << status;
  sequence.num_committed += num_new;
  counts_["blocks that left a window"] += NumNull(*slot) - num_null_before;
  if (sequence.encoder_is_written && choices_->OneIn(2)) {
    CHECK(manager_->CommitEncoder(*slot).ok());
    sequence.encoder_is_committed = true;
  }
  Remember(sequence);
}

void BlockManagerModel::CommitUnknown() {
  call_ = "CommitUnknown";
  const std::optional<SlotId> slot = AnySequence();
  if (!slot.has_value()) return;
  Sequence& sequence = live_[*slot];
  const int num_new = Below(sequence.num_written - sequence.num_committed + 1);
  CHECK(manager_->CommitUnknown(*slot, num_new).ok());
  sequence.num_committed += num_new;
  if (num_new > 0) sequence.is_known = false;
}

void BlockManagerModel::Fork() {
  call_ = "Fork";
  const SlotId from = AnySlot();
  const SlotId to = AnyEmptySlot();
  const std::vector<int64_t> before = Snapshot();
  std::vector<StatusCode> codes;
  if (!IsSlot(from)) {
    codes = {StatusCode::kInvalidArgument};
  } else if (!live_.contains(from)) {
    codes = {StatusCode::kNotFound};
  } else if (!IsSlot(to)) {
    codes = {StatusCode::kInvalidArgument};
  } else if (live_.contains(to)) {
    codes = {StatusCode::kAlreadyExists};
  } else {
    codes = {StatusCode::kOk};
    const int num_lookahead = options_.manager.num_lookahead_tokens;
    // The look-ahead, and the block that it begins in.
    const int64_t at_most = (num_lookahead / block_size_ + 2) * manager_->num_groups();
    if (num_lookahead > 0 && at_most > manager_->pool().num_allocatable()) {
      codes.push_back(StatusCode::kResourceExhausted);
      codes.push_back(StatusCode::kInvalidArgument);
    }
  }
  const absl::Status status = manager_->Fork(from, to);
  Expect(status, codes, before);
  if (!status.ok()) return;
  Sequence child = live_[from];
  child.tokens.resize(child.num_committed);
  child.values.resize(child.num_committed);
  child.num_written = child.num_committed;
  child.is_leaving = false;
  live_[to] = std::move(child);
  ++counts_["forks"];
}

void BlockManagerModel::Truncate() {
  call_ = "Truncate";
  const SlotId slot = AnySlot();
  const auto found = live_.find(slot);
  if (found != live_.end() && found->second.is_leaving) return;
  const int count = found == live_.end() || choices_->OneIn(4)
                        ? AnyCount()
                        : found->second.num_tokens() - Below(3 * block_size_);
  const std::vector<int64_t> before = Snapshot();
  std::vector<StatusCode> codes;
  if (!IsSlot(slot)) {
    codes = {StatusCode::kInvalidArgument};
  } else if (found == live_.end()) {
    codes = {StatusCode::kNotFound};
  } else if (count < 0 || count > found->second.num_tokens()) {
    codes = {StatusCode::kInvalidArgument};
  } else if (count < found->second.num_committed && count < manager_->min_tokens(slot)) {
    codes = {StatusCode::kFailedPrecondition};
    ++counts_["truncations refused by a window"];
  } else {
    codes = {StatusCode::kOk};
    if (options_.manager.num_lookahead_tokens > 0 && count < found->second.num_committed) {
      codes.push_back(StatusCode::kResourceExhausted);
    }
  }
  const absl::Status status = manager_->Truncate(slot, count);
  Expect(status, codes, before);
  if (!status.ok()) return;
  Sequence& sequence = found->second;
  counts_["truncations of content"] += count < sequence.num_committed;
  sequence.tokens.resize(count);
  sequence.values.resize(count);
  sequence.num_written = std::min(sequence.num_written, count);
  sequence.num_committed = std::min(sequence.num_committed, count);
}

void BlockManagerModel::Leave(SlotId slot) {
  live_.erase(slot);
  left_.push_back(slot);
}

void BlockManagerModel::Free() {
  call_ = "Free";
  const SlotId slot = AnySlot();
  if (live_.contains(slot) && live_[slot].is_leaving) return;
  const std::vector<int64_t> before = Snapshot();
  const absl::Status status = manager_->Free(slot);
  Expect(status,
         {!IsSlot(slot)          ? StatusCode::kInvalidArgument
          : live_.contains(slot) ? StatusCode::kOk
                                 : StatusCode::kNotFound},
         before);
  if (status.ok()) Leave(slot);
}

// What names nothing, or does not fit.
void BlockManagerModel::BadCall() {
  call_ = "a bad call";
  const std::vector<int64_t> before = Snapshot();
  const SlotId slot = AnySlot();
  const bool is_live = live_.contains(slot);
  const StatusCode none = IsSlot(slot) ? StatusCode::kNotFound : StatusCode::kInvalidArgument;
  std::vector<int32_t> row(options_.manager.max_blocks);
  const int group = Below(manager_->num_groups() + 2) - 1;
  const bool is_group = group >= 0 && group < manager_->num_groups();
  Expect(manager_->WriteRow(slot, group, absl::MakeSpan(row)),
         {!is_live   ? none
          : is_group ? StatusCode::kOk
                     : StatusCode::kInvalidArgument},
         before);
  if (is_live) {
    const int num_uncommitted = live_[slot].num_tokens() - live_[slot].num_committed;
    const std::vector<int32_t> tokens(num_uncommitted + 1 + Below(3));
    Expect(manager_->Commit(slot, tokens), {StatusCode::kInvalidArgument}, before);
    Expect(manager_->CommitUnknown(slot, -1), {StatusCode::kInvalidArgument}, before);
    if (live_[slot].origin.num_encoder_tokens == 0) {
      Expect(manager_->CommitEncoder(slot), {StatusCode::kInvalidArgument}, before);
    }
  } else {
    Expect(manager_->Commit(slot, {}), {none}, before);
    Expect(manager_->CommitEncoder(slot), {none}, before);
  }
  Expect(store_->PlanIn(SequenceId(-1), slot), {StatusCode::kNotFound}, before);
  Expect(store_->Drop(SequenceId(-1)), {StatusCode::kNotFound}, before);
}

void BlockManagerModel::ForgetPrefixes() {
  call_ = "ForgetPrefixes";
  manager_->ForgetPrefixes();
  for (auto& [slot, sequence] : live_) sequence.is_known = false;
  // Stored sequences come back with what they knew; their keys are those of the old weights.
  for (auto& [id, sequence] : stored_) sequence.is_known = false;
  ++counts_["prefixes forgotten"];
}

// ---- Swaps.

void BlockManagerModel::PlanOut() {
  call_ = "PlanOut";
  const SlotId slot = AnySlot();
  const std::vector<int64_t> before = Snapshot();
  const SequenceId id(next_id_++);
  const auto found = live_.find(slot);
  std::vector<StatusCode> codes;
  if (found == live_.end()) {
    codes = {StatusCode::kNotFound};
  } else if (found->second.is_leaving || manager_->has_copies() || !store_->copies_in().empty()) {
    codes = {StatusCode::kFailedPrecondition};
  } else {
    const int64_t at_most = manager_->NumBlocksFor(found->second.num_committed, 0,
                                                   found->second.origin.num_encoder_tokens);
    codes = {StatusCode::kOk, StatusCode::kFailedPrecondition};  // a swap in of no blocks
    if (at_most > store_->host_pool().num_allocatable()) {
      codes.push_back(StatusCode::kResourceExhausted);
      codes.push_back(StatusCode::kInvalidArgument);
    }
  }
  const absl::Status status = store_->PlanOut(slot, id);
  Expect(status, codes, before);
  if (!status.ok()) return;
  found->second.is_leaving = true;
  found->second.id = id;
  CHECK(store_->state(id) == SwapState::kPlanned);
}

void BlockManagerModel::PlanIn() {
  call_ = "PlanIn";
  if (stored_.empty()) return;
  const auto found = std::next(stored_.begin(), Below(static_cast<int>(stored_.size())));
  const SlotId slot = AnyEmptySlot();
  const std::vector<int64_t> before = Snapshot();
  std::vector<StatusCode> codes;
  if (!IsSlot(slot)) {
    codes = {StatusCode::kInvalidArgument};
  } else if (live_.contains(slot)) {
    codes = {StatusCode::kAlreadyExists};
  } else {
    codes = {StatusCode::kOk};
    const int64_t at_most = manager_->NumBlocksFor(found->second.num_committed, 0,
                                                   found->second.origin.num_encoder_tokens);
    if (at_most > manager_->pool().num_allocatable()) {
      codes.push_back(StatusCode::kResourceExhausted);
      codes.push_back(StatusCode::kInvalidArgument);
    }
  }
  const absl::Status status = store_->PlanIn(found->first, slot);
  Expect(status, codes, before);
  if (!status.ok()) return;
  live_[slot] = std::move(found->second);
  stored_.erase(found);
  CHECK_EQ(manager_->num_tokens(slot), live_[slot].num_committed);
  ++num_swaps_in_;
  ++counts_["swaps in"];
}

void BlockManagerModel::Drop() {
  call_ = "Drop";
  if (stored_.empty()) return;
  const auto found = std::next(stored_.begin(), Below(static_cast<int>(stored_.size())));
  CHECK(store_->Drop(found->first).ok());
  CHECK(!store_->state(found->first).has_value());
  stored_.erase(found);
}

// The copies go to the stream, to be made some time later; blocks that go out are read only then.
void BlockManagerModel::LaunchSwaps() {
  call_ = "Launched";
  const std::vector<BlockCopy> out(store_->copies_out().begin(), store_->copies_out().end());
  const std::vector<BlockCopy> in(store_->copies_in().begin(), store_->copies_in().end());
  // A swap in waits for the steps before it, which this memory has done; and the copies of forks,
  // which run with the next step, wait for the swap.
  const int num_in = num_swaps_in_ - num_swaps_in_launched_;
  num_swaps_in_launched_ += num_in;
  swap_stream_.Submit([this, out, in, num_in] {
    for (const BlockCopy& copy : out) {
      std::copy_n(&memory_[int64_t{copy.src} * block_size_], block_size_,
                  &host_memory_[int64_t{copy.dst} * block_size_]);
    }
    for (const BlockCopy& copy : in) {
      std::copy_n(&host_memory_[int64_t{copy.src} * block_size_], block_size_,
                  &memory_[int64_t{copy.dst} * block_size_]);
    }
    num_swaps_in_ -= num_in;
    num_swaps_in_launched_ -= num_in;
  });
  store_->Launched();
  std::vector<SlotId> leaving;
  for (auto& [slot, sequence] : live_) {
    if (sequence.is_leaving) leaving.push_back(slot);
  }
  for (const SlotId slot : leaving) {
    Sequence& sequence = live_[slot];
    sequence.is_leaving = false;
    sequence.tokens.resize(sequence.num_committed);
    sequence.values.resize(sequence.num_committed);
    sequence.num_written = sequence.num_committed;
    sequence.encoder_is_written = sequence.encoder_is_committed;
    CHECK(store_->state(sequence.id) == SwapState::kLeaving);
    CHECK_EQ(store_->num_tokens(sequence.id), sequence.num_committed);
    stored_[sequence.id] = std::move(sequence);
    Leave(slot);
    ++counts_["swaps out"];
  }
}

void BlockManagerModel::RunSwap() {
  call_ = "a swap passes";
  if (swap_stream_.empty()) return;
  swap_stream_.RunOldest();
  if (choices_->OneIn(2)) store_->Poll();
}

void BlockManagerModel::FinishSwapsIn() {
  if (num_swaps_in_ > num_swaps_in_launched_) LaunchSwaps();
  while (num_swaps_in_ > 0) swap_stream_.RunOldest();
}

// ---- Steps.

void BlockManagerModel::LaunchStep() {
  call_ = "a step";
  FinishSwapsIn();
  const absl::Span<const BlockCopy> taken = manager_->TakeCopies();
  std::vector<BlockCopy> copies(taken.begin(), taken.end());
  if (choices_->OneIn(2)) absl::c_reverse(copies);  // any order
  for (const BlockCopy& copy : copies) {
    std::copy_n(&memory_[int64_t{copy.src} * block_size_], block_size_,
                &memory_[int64_t{copy.dst} * block_size_]);
  }
  counts_["copies"] += static_cast<int64_t>(copies.size());

  for (const SlotId slot : left_) {
    for (BlockTable& table : device_tables_) {
      const absl::Span<BlockId> row = table.mutable_row(slot);
      std::fill(row.begin(), row.end(), kNullBlock);
    }
  }
  left_.clear();
  std::vector<std::vector<BlockTableUpdate>> updates(device_tables_.size());
  for (const BlockTableUpdate& update : manager_->TakeUpdates()) {
    updates[update.group].push_back(update);
  }
  for (size_t group = 0; group < updates.size(); ++group) {
    if (choices_->OneIn(2)) absl::c_reverse(updates[group]);
    CHECK(device_tables_[group].Apply(updates[group]).ok());
  }

  for (auto& [slot, sequence] : live_) {
    CheckDeviceRows(slot);
    if (sequence.is_leaving || choices_->OneIn(5)) continue;
    WriteTokens(slot, sequence);
    if (choices_->OneIn(2)) WriteEncoder(slot, sequence);
  }
}

void BlockManagerModel::CheckDeviceRows(SlotId slot) const {
  for (int group = 0; group < manager_->num_groups(); ++group) {
    const absl::Span<const BlockId> row = manager_->blocks(slot, group);
    const absl::Span<const BlockId> device_row = device_tables_[group].row(slot);
    for (size_t column = 0; column < row.size(); ++column) {
      CHECK_EQ(device_row[column], row[column])
          << Where() << "slot " << slot << ", group " << group << ", column " << column;
    }
  }
}

void BlockManagerModel::WriteTokens(SlotId slot, Sequence& sequence) {
  const int num_room =
      std::min(sequence.num_tokens() + options_.manager.num_lookahead_tokens, num_row_tokens_);
  for (int group = 0; group < manager_->num_groups(); ++group) {
    if (!HoldsOwnTokens(manager_->groups()[group])) continue;
    const absl::Span<const BlockId> row = device_tables_[group].row(slot);
    for (int i = sequence.num_written; i < num_room; ++i) {
      const BlockId block = row[i / block_size_];
      CHECK(block != kNullBlock) << Where() << "no block for token " << i << " of slot " << slot;
      const bool is_draft = i >= sequence.num_tokens();
      memory_[int64_t{block.value()} * block_size_ + i % block_size_] =
          is_draft ? Mix(99, num_calls_) : Cell(sequence.values[i], group);
    }
  }
  sequence.num_written = sequence.num_tokens();
}

void BlockManagerModel::WriteEncoder(SlotId slot, Sequence& sequence) {
  if (sequence.encoder_is_written || sequence.origin.num_encoder_tokens == 0) return;
  for (int group = 0; group < manager_->num_groups(); ++group) {
    if (HoldsOwnTokens(manager_->groups()[group])) continue;
    const absl::Span<const BlockId> row = device_tables_[group].row(slot);
    for (int i = 0; i < sequence.origin.num_encoder_tokens; ++i) {
      memory_[int64_t{row[i / block_size_].value()} * block_size_ + i % block_size_] =
          Cell(Mix(RootOf(sequence.origin), i), group);
    }
  }
  sequence.encoder_is_written = true;
}

// ---- What must hold.

void BlockManagerModel::Check() {
  manager_->CheckInvariants();
  store_->CheckInvariants();
  CHECK_EQ(manager_->num_sequences(), static_cast<int>(live_.size())) << Where();
  CHECK_EQ(store_->num_sequences(),
           static_cast<int>(stored_.size()) +
               absl::c_count_if(live_, [](const auto& entry) { return entry.second.is_leaving; }))
      << Where();
  for (const auto& [slot, sequence] : live_) {
    CHECK(manager_->contains(slot)) << Where();
    CHECK_EQ(manager_->num_tokens(slot), sequence.num_tokens()) << Where();
    CHECK_EQ(manager_->num_committed(slot), sequence.num_committed) << Where();
    CHECK_LE(manager_->min_tokens(slot), sequence.num_committed) << Where();
    CHECK_EQ(manager_->num_encoder_tokens(slot), sequence.origin.num_encoder_tokens) << Where();
  }
  // What is still to be copied is not there yet.
  if (!manager_->has_copies() && num_swaps_in_ == 0) CheckContent();
}

void BlockManagerModel::CheckContent() {
  ++counts_["content checked"];
  const auto check = [&](SlotId slot, int group, int position, uint64_t value) {
    const BlockId block = manager_->blocks(slot, group)[position / block_size_];
    CHECK(block != kNullBlock) << Where() << "slot " << slot << ", group " << group << ", token "
                               << position << " has no block";
    CHECK_EQ(memory_[int64_t{block.value()} * block_size_ + position % block_size_],
             Cell(value, group))
        << Where() << "slot " << slot << ", group " << group << ", token " << position << ", block "
        << block;
  };
  for (const auto& [slot, sequence] : live_) {
    for (int group = 0; group < manager_->num_groups(); ++group) {
      if (!HoldsOwnTokens(manager_->groups()[group])) {
        if (!sequence.encoder_is_written) continue;
        for (int i = 0; i < sequence.origin.num_encoder_tokens; ++i) {
          check(slot, group, i, Mix(RootOf(sequence.origin), i));
        }
        continue;
      }
      // All that is needed now, or would be after the shortest truncation.
      const int64_t needed = std::min<int64_t>(
          FirstNeededPosition(manager_->groups()[group], manager_->min_tokens(slot)),
          sequence.num_written);
      CHECK_LE(int64_t{manager_->first_column(slot, group)} * block_size_, needed) << Where();
      for (int i = static_cast<int>(needed); i < sequence.num_written; ++i) {
        check(slot, group, i, sequence.values[i]);
      }
    }
  }
}

std::string BlockManagerModel::Where() const {
  return absl::StrCat("call ", num_calls_, ", ", call_, ": ");
}

int BlockManagerModel::NumNull(SlotId slot) const {
  int num_null = 0;
  for (int group = 0; group < manager_->num_groups(); ++group) {
    num_null += manager_->first_column(slot, group);
  }
  return num_null;
}

std::vector<int64_t> BlockManagerModel::Snapshot() const {
  std::vector<int64_t> state = {manager_->pool().num_used(), manager_->num_sequences(),
                                store_->host_pool().num_used(), store_->num_sequences()};
  for (const auto& [slot, sequence] : live_) {
    state.push_back(manager_->num_tokens(slot));
    state.push_back(manager_->num_committed(slot));
    for (int group = 0; group < manager_->num_groups(); ++group) {
      for (const BlockId block : manager_->blocks(slot, group)) state.push_back(block.value());
    }
  }
  return state;
}

void BlockManagerModel::Expect(const absl::Status& status, std::vector<StatusCode> codes,
                               const std::vector<int64_t>& before) {
  CHECK(absl::c_linear_search(codes, status.code())) << Where() << "unexpected status: " << status;
  if (status.ok()) return;
  ++counts_["refusals"];
  counts_["refusals for lack of blocks"] += status.code() == StatusCode::kResourceExhausted;
  CHECK(Snapshot() == before) << Where() << "a refusal changed something: " << status;
}

}  // namespace reprise
