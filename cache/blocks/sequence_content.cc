#include "reprise/cache/blocks/sequence_content.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace reprise {

absl::StatusOr<SequenceContent> SequenceContent::Create(const Options& options,
                                                        const PrefixHasher& hasher) {
  const int64_t num_blocks = int64_t{options.num_slots} * options.max_blocks;
  LazyArray<int32_t> tokens = LazyArray<int32_t>::Create(num_blocks * options.block_size);
  LazyArray<PrefixHash> hashes = LazyArray<PrefixHash>::Create(num_blocks);
  if (num_blocks > 0 && (tokens.empty() || hashes.empty())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "num_slots * max_blocks * block_size is too large to keep tokens: expected less, got ",
        options.num_slots, " * ", options.max_blocks, " * ", options.block_size));
  }
  return SequenceContent(options, hasher, std::move(tokens), std::move(hashes));
}

SequenceContent::SequenceContent(const Options& options, const PrefixHasher& hasher,
                                 LazyArray<int32_t> tokens, LazyArray<PrefixHash> hashes)
    : options_(options),
      hasher_(hasher),
      sequences_(options.num_slots),
      tokens_(std::move(tokens)),
      hashes_(std::move(hashes)) {}

void SequenceContent::Begin(SlotId slot, const SequencePrompt& prompt) {
  Sequence& begun = sequences_[slot.value()];
  begun.num_known = 0;
  begun.num_known_blocks = 0;
  begun.num_hashed = 0;
  begun.is_open = true;
  begun.encoder_root.reset();
  begun.root = hasher_.Root(prompt.extra_keys);
  if (prompt.num_encoder_tokens > 0) {
    // The decoder's keys depend on the encoder's input and its length.
    ExtraKey length;
    length.offset = prompt.num_encoder_tokens;
    begun.is_open = !prompt.encoder_keys.empty();
    begun.root = hasher_.Salted(begun.root, prompt.encoder_keys);
    begun.root = hasher_.Salted(begun.root, absl::MakeConstSpan(&length, 1));
    if (begun.is_open) begun.encoder_root = begun.root;
  }
  begun.ranges.clear();
  for (const RangeKey& range : prompt.range_keys) {
    // The length is part of the key, because a block may hold only a part of the range.
    const ExtraKey value = {.kind = range.kind, .value = range.value, .offset = range.num_tokens};
    const PrefixHash digest = hasher_.Root(absl::MakeConstSpan(&value, 1));
    KeptRange kept = {.kind = range.kind,
                      .first_token = range.first_token,
                      .end_token = int64_t{range.first_token} + range.num_tokens};
    std::memcpy(kept.digest.data(), &digest, sizeof(digest));
    begun.ranges.push_back(kept);
  }
}

absl::Span<const ExtraKey> SequenceContent::ExtraOf(SlotId slot, int column) {
  extra_.clear();
  const int64_t first = int64_t{column} * options_.block_size;
  for (const KeptRange& range : sequences_[slot.value()].ranges) {
    if (range.first_token >= first + options_.block_size || range.end_token <= first) continue;
    extra_.push_back({.kind = range.kind,
                      .value = std::string_view(range.digest.data(), range.digest.size()),
                      .offset = range.first_token - first});
  }
  return extra_;
}

void SequenceContent::HashTo(SlotId slot, int num_blocks) {
  Sequence& hashed = sequences_[slot.value()];
  if (hashed.num_hashed >= num_blocks) return;
  const absl::Span<const int32_t> tokens(token_row(slot),
                                         size_t{1} * num_blocks * options_.block_size);
  const absl::Span<PrefixHash> hashes(hash_row(slot), num_blocks);
  const int first = hashed.num_hashed;
  if (hashed.ranges.empty()) {
    hasher_.Chain(Parent(slot, first), tokens.subspan(size_t{1} * first * options_.block_size),
                  options_.block_size, hashes.subspan(first));
  } else {
    for (int column = first; column < num_blocks; ++column) {
      hashes[column] = hasher_.Extend(
          Parent(slot, column),
          tokens.subspan(size_t{1} * column * options_.block_size, options_.block_size),
          ExtraOf(slot, column));
    }
  }
  hashed.num_hashed = num_blocks;
}

absl::Span<const PrefixHash> SequenceContent::HashPrompt(SlotId slot,
                                                         absl::Span<const int32_t> tokens,
                                                         int num_blocks) {
  Sequence& hashed = sequences_[slot.value()];
  DCHECK_EQ(hashed.num_known, 0) << "the sequence has begun";
  if (hashed.num_hashed < num_blocks) {
    const int64_t first = int64_t{hashed.num_hashed} * options_.block_size;
    const int64_t end = int64_t{num_blocks} * options_.block_size;
    CHECK_LE(end, static_cast<int64_t>(tokens.size()));
    std::copy(tokens.begin() + first, tokens.begin() + end, token_row(slot) + first);
    HashTo(slot, num_blocks);
  }
  return {hash_row(slot), static_cast<size_t>(num_blocks)};
}

int SequenceContent::Commit(SlotId slot, absl::Span<const int32_t> tokens) {
  Sequence& grown = sequences_[slot.value()];
  if (!grown.is_open || tokens.empty()) return num_known_blocks(slot);
  int32_t* row = token_row(slot);
  const int first = grown.num_known;
  const int end = first + static_cast<int>(tokens.size());
  CHECK_LE(end, int64_t{options_.max_blocks} * options_.block_size);
  // Hashes after the known tokens are valid only for the blocks whose committed tokens equal the
  // hashed tokens.
  const int num_hashed_tokens = grown.num_hashed * options_.block_size;
  if (first < num_hashed_tokens) {
    const int num_compared = std::min(end, num_hashed_tokens) - first;
    const auto different =
        std::mismatch(tokens.begin(), tokens.begin() + num_compared, row + first).first;
    if (different != tokens.begin() + num_compared) {
      grown.num_hashed =
          (first + static_cast<int>(different - tokens.begin())) / options_.block_size;
    }
  }
  std::copy(tokens.begin(), tokens.end(), row + first);
  grown.num_known = end;
  if (end - grown.num_known_blocks * options_.block_size >= options_.block_size) {
    grown.num_known_blocks = end / options_.block_size;
    HashTo(slot, grown.num_known_blocks);
  }
  return grown.num_known_blocks;
}

void SequenceContent::ForgetRest(SlotId slot) { sequences_[slot.value()].is_open = false; }

void SequenceContent::Forget(SlotId slot) {
  Sequence& forgotten = sequences_[slot.value()];
  forgotten.encoder_root.reset();
  forgotten.num_known = 0;
  forgotten.num_known_blocks = 0;
  forgotten.num_hashed = 0;
  forgotten.is_open = false;
}

void SequenceContent::Truncate(SlotId slot, int num_tokens) {
  // Hashes remain valid: they belong to the tokens in the row.
  Sequence& shortened = sequences_[slot.value()];
  shortened.num_known = std::min(shortened.num_known, num_tokens);
  shortened.num_known_blocks = shortened.num_known / options_.block_size;
}

void SequenceContent::Copy(SlotId from, SlotId to, int num_tokens) {
  const Sequence& source = sequences_[from.value()];
  Sequence& copy = sequences_[to.value()];
  copy.root = source.root;
  copy.encoder_root = source.encoder_root;
  copy.ranges.assign(source.ranges.begin(), source.ranges.end());
  copy.num_known = std::min(source.num_known, num_tokens);
  copy.num_known_blocks = copy.num_known / options_.block_size;
  copy.num_hashed = copy.num_known_blocks;
  // If the parent has unknown committed tokens, the later tokens of the child are unknown, too.
  copy.is_open = source.is_open && source.num_known >= num_tokens;
  std::copy_n(token_row(from), copy.num_known, token_row(to));
  std::copy_n(hash_row(from), copy.num_hashed, hash_row(to));
}

SavedContent SequenceContent::Save(SlotId slot) const {
  const Sequence& saved = sequences_[slot.value()];
  const absl::Span<const int32_t> known = tokens(slot);
  return {.root = saved.root,
          .encoder_root = saved.encoder_root,
          .ranges = saved.ranges,
          .tokens = {known.begin(), known.end()},
          .is_open = saved.is_open};
}

void SequenceContent::Load(SlotId slot, const SavedContent& saved) {
  Sequence& loaded = sequences_[slot.value()];
  loaded.root = saved.root;
  loaded.encoder_root = saved.encoder_root;
  loaded.ranges = saved.ranges;
  loaded.num_known = static_cast<int>(saved.tokens.size());
  loaded.num_known_blocks = loaded.num_known / options_.block_size;
  loaded.num_hashed = 0;
  loaded.is_open = saved.is_open;
  std::copy(saved.tokens.begin(), saved.tokens.end(), token_row(slot));
  HashTo(slot, num_known_blocks(slot));
}

PrefixKey SequenceContent::Key(SlotId slot, int column, int group) {
  DCHECK_LT(column, num_known_blocks(slot));
  return {.group = group,
          .hash = hash_row(slot)[column],
          .parent = Parent(slot, column),
          .tokens = {token_row(slot) + int64_t{column} * options_.block_size,
                     static_cast<size_t>(options_.block_size)},
          .extra = ExtraOf(slot, column)};
}

absl::Span<const int32_t> SequenceContent::tokens(SlotId slot) const {
  return {token_row(slot), static_cast<size_t>(num_known(slot))};
}

}  // namespace reprise
