// BlockManagerModel: prompts, and the parts of them that must be found.

#include <glog/logging.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "reprise/cache/group_retention.h"
#include "reprise/cache/testing/block_manager_model.h"
#include "reprise/cache/testing/model_values.h"

namespace reprise {

namespace {

using absl::StatusCode;

}  // namespace

void BlockManagerModel::AddPrompt() {
  call_ = "Add prompt";
  const SlotId slot = AnyEmptySlot();
  Sequence sequence;
  if (!remembered_.empty() && !choices_->OneIn(5)) {
    const Sequence& like = remembered_[Below(static_cast<int>(remembered_.size()))];
    sequence.origin = like.origin;
    const int num_same = Below(like.num_tokens() + 1);
    sequence.tokens.assign(like.tokens.begin(), like.tokens.begin() + num_same);
    sequence.origin.epoch = epoch_;
    // Sometimes uses the same tokens with other inputs.
    if (choices_->OneIn(6)) sequence.origin.image = Below(3);
    if (choices_->OneIn(6)) sequence.origin.adapter = Below(3);
    FillValues(sequence);
  } else {
    Origin& origin = sequence.origin;
    origin.epoch = epoch_;
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
      // An input without a key differs from every other input.
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
  // The number of blocks that the call needs without hits, plus one source of a partial hit per
  // group. Hits never need more.
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

// Returns the length of the prefix that must be found: the full blocks that a live sequence has
// committed; 0 if a group may release blocks.
int BlockManagerModel::LongestKnownPrefix(const Sequence& sequence) const {
  if (!manager_->prefix_cache().is_on() || sequence.num_tokens() == 0 || !sequence.is_known)
    return 0;
  if (absl::c_any_of(manager_->groups(), LosesBlocks)) return 0;
  int longest = 0;
  for (const auto& [slot, other] : live_) {
    if (!other.is_known || other.is_swapping_in) continue;
    const int num_compared = std::min(other.num_committed, sequence.num_tokens() - 1);
    int num_same = 0;
    while (num_same < num_compared && other.values[num_same] == sequence.values[num_same])
      ++num_same;
    longest = std::max(longest, num_same / block_size_ * block_size_);
  }
  return longest;
}

}  // namespace reprise
