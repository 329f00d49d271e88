#include "reprise/cache/testing/block_manager_model.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "reprise/cache/group_retention.h"
#include "reprise/cache/testing/model_values.h"

namespace reprise {
namespace {

using absl::StatusCode;

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
      store_(std::make_unique<SwapStore>(*SwapStore::Create(
          {.num_host_blocks = options.num_host_blocks}, manager_.get(), FencesOf(swap_stream_)))),
      memory_(int64_t{options.manager.num_blocks} * block_size_, 0),
      host_memory_(int64_t{options.num_host_blocks} * block_size_, 0) {
  for (int group = 0; group < manager_->num_groups(); ++group) {
    device_tables_.push_back(*BlockTable::Create(
        {.num_slots = options.manager.num_slots, .max_blocks = options.manager.max_blocks}));
  }
}

// ---- Choice of the next call.

void BlockManagerModel::Step() {
  ++num_calls_;
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
    choices_->OneIn(4) ? AbandonSwaps() : LaunchSwaps();
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
  if (it->second.is_swapping_out || it->second.is_swapping_in) return std::nullopt;
  return it->first;
}

// Returns a count: mostly small, sometimes absurd or negative.
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

// ---- Values of a sequence's keys.

uint64_t BlockManagerModel::RootOf(const Origin& origin) const {
  return Mix(Mix(Mix(17, origin.epoch), origin.adapter),
             Mix(origin.encoder, origin.num_encoder_tokens));
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

void BlockManagerModel::FillValues(Sequence& sequence) {
  while (sequence.values.size() < sequence.tokens.size()) {
    const int position = static_cast<int>(sequence.values.size());
    const uint64_t before = position == 0 ? RootOf(sequence.origin) : sequence.values.back();
    sequence.values.push_back(ValueAfter(sequence, before, position, sequence.tokens[position]));
  }
}

void BlockManagerModel::Grow(Sequence& sequence, int num_tokens) {
  while (sequence.num_tokens() < num_tokens) {
    sequence.tokens.push_back(Below(2));  // few values, so that sequences share prefixes
  }
  FillValues(sequence);
}

void BlockManagerModel::Remember(const Sequence& sequence) {
  if (remembered_.size() < 8) {
    remembered_.push_back(sequence);
  } else {
    remembered_[Below(8)] = sequence;
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
