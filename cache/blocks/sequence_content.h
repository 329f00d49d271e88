// The known tokens of each sequence, and the hashes of their blocks.
//
//   SequenceContent content = *SequenceContent::Create(
//       {.num_slots = 256, .max_blocks = 512, .block_size = 16}, hasher);
//   content.Begin(slot, prompt);
//   content.HashPrompt(slot, 8);                      // the first 8 blocks, to look them up
//   const int num_known = content.Commit(slot, tokens);   // blocks whose keys are certain now
//   index.Insert(block, content.Key(slot, column, group));
//
// Hashes are computed once: the hashes of a prompt's lookup are used again when its tokens are
// committed.
//
// Thread safety: none; one owner. Cost: a hash a full block, a copy a token. Memory: 4 bytes a
// token and 16 bytes a block of every slot's longest sequence; the operating system provides pages
// on first use. No heap allocation after Create(), except for keys of ranges.

#ifndef REPRISE_CACHE_BLOCKS_SEQUENCE_CONTENT_H_
#define REPRISE_CACHE_BLOCKS_SEQUENCE_CONTENT_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/base/ids.h"
#include "reprise/cache/blocks/lazy_array.h"
#include "reprise/cache/prefix/prefix_hash.h"
#include "reprise/cache/prefix/prefix_index.h"

namespace reprise {

// Content in place of tokens, such as an image: prefixes with different values differ.
struct RangeKey {
  ExtraKeyKind kind = ExtraKeyKind::kOther;
  std::string_view value;  // any bytes
  int first_token = 0;     // position in the sequence
  int num_tokens = 0;
};

// The beginning of a sequence. Read before the call that takes it returns.
struct SequencePrompt {
  absl::Span<const int32_t> tokens = {};
  // Inputs of keys and values besides the tokens, for the whole sequence: adapter, salt.
  absl::Span<const ExtraKey> extra_keys = {};
  // Inputs for some of its tokens: images.
  absl::Span<const RangeKey> range_keys = {};
  // The most tokens beyond the hits to make room for: a long prompt that is computed in chunks
  // needs fewer blocks in groups with a window. nullopt: all.
  std::optional<int> num_new_tokens = std::nullopt;
  // The most first tokens to take from the cache: for callers that want logits of a prompt's tokens,
  // which only computing them gives. nullopt: as many as there are.
  std::optional<int> max_hit_tokens = std::nullopt;
  // Of the encoder's input, for cross groups.
  int num_encoder_tokens = 0;
  // Identifies that input. Without a key, nothing of a sequence with an encoder is shared.
  absl::Span<const ExtraKey> encoder_keys = {};
};

// A RangeKey whose value is kept as a digest.
struct KeptRange {
  ExtraKeyKind kind = ExtraKeyKind::kOther;
  std::array<char, sizeof(PrefixHash)> digest = {};
  int64_t first_token = 0;
  int64_t end_token = 0;
};

// The known content of a sequence, without its slot.
struct SavedContent {
  PrefixHash root;
  std::optional<PrefixHash> encoder_root = std::nullopt;
  std::vector<KeptRange> ranges = {};
  std::vector<int32_t> tokens = {};
  bool is_open = false;  // more may be known later
};

class SequenceContent {
 public:
  struct Options {
    int num_slots = 0;   // 0: it knows nothing of any sequence, for caches without reuse
    int max_blocks = 0;  // of a sequence
    int block_size = 0;
  };

  // Errors: InvalidArgument if there is no memory for rows of that size.
  static absl::StatusOr<SequenceContent> Create(const Options& options, const PrefixHasher& hasher);

  // REQUIRES, all: the slot is one of num_slots.

  // A sequence without committed tokens.
  void Begin(SlotId slot, const SequencePrompt& prompt);

  // Hashes the first `num_blocks` full blocks of `tokens`, the prompt's, as far as not done yet.
  absl::Span<const PrefixHash> HashPrompt(SlotId slot, absl::Span<const int32_t> tokens,
                                          int num_blocks);

  // The hash of the block before `column`: the root for the first.
  // REQUIRES: the blocks before `column` are hashed.
  PrefixHash Parent(SlotId slot, int column) const {
    return column == 0 ? sequences_[slot.value()].root : hash_row(slot)[column - 1];
  }

  // The extra keys in the hash of the block at `column`. Valid until the next call.
  absl::Span<const ExtraKey> ExtraOf(SlotId slot, int column);

  // The next tokens are committed. Returns how many full blocks are now known.
  int Commit(SlotId slot, absl::Span<const int32_t> tokens);

  // The following tokens are not known.
  void ForgetRest(SlotId slot);

  // Forgets the sequence, its encoder's input included, now and for later commits: its keys are of
  // other weights than those that are computed from now on.
  void Forget(SlotId slot);

  // Shortens what is known. REQUIRES: num_tokens >= 0.
  void Truncate(SlotId slot, int num_tokens);

  // `to` begins with the first `num_tokens` of `from`. Allocates if there are keys of ranges.
  void Copy(SlotId from, SlotId to, int num_tokens);

  // For a sequence that leaves its slot and comes back to another. Allocate.
  SavedContent Save(SlotId slot) const;
  void Load(SlotId slot, const SavedContent& saved);

  // REQUIRES: column < num_known_blocks(slot). Valid until the next call.
  PrefixKey Key(SlotId slot, int column, int group);

  int num_known(SlotId slot) const { return sequences_[slot.value()].num_known; }
  // Full blocks of them.
  int num_known_blocks(SlotId slot) const { return sequences_[slot.value()].num_known_blocks; }
  // Committed tokens, as far as known.
  absl::Span<const int32_t> tokens(SlotId slot) const;

  // The hash that names the encoder's input, if it has a name.
  const std::optional<PrefixHash>& encoder_root(SlotId slot) const {
    return sequences_[slot.value()].encoder_root;
  }

 private:
  struct Sequence {
    PrefixHash root;
    std::optional<PrefixHash> encoder_root;
    std::vector<KeptRange> ranges;
    int num_known = 0;  // committed tokens
    int num_known_blocks = 0;
    int num_hashed = 0;    // blocks whose tokens and hashes are in the rows, committed or not
    bool is_open = false;  // else commits add nothing to what is known
  };

  SequenceContent(const Options& options, const PrefixHasher& hasher, LazyArray<int32_t> tokens,
                  LazyArray<PrefixHash> hashes);

  int32_t* token_row(SlotId slot) {
    return tokens_.data() + int64_t{slot.value()} * options_.max_blocks * options_.block_size;
  }
  const int32_t* token_row(SlotId slot) const {
    return tokens_.data() + int64_t{slot.value()} * options_.max_blocks * options_.block_size;
  }
  PrefixHash* hash_row(SlotId slot) {
    return hashes_.data() + int64_t{slot.value()} * options_.max_blocks;
  }
  const PrefixHash* hash_row(SlotId slot) const {
    return hashes_.data() + int64_t{slot.value()} * options_.max_blocks;
  }
  // Hashes blocks up to `num_blocks` from the token row.
  void HashTo(SlotId slot, int num_blocks);

  Options options_;
  PrefixHasher hasher_;
  std::vector<Sequence> sequences_;  // by slot
  LazyArray<int32_t> tokens_;        // [num_slots, max_blocks * block_size]
  LazyArray<PrefixHash> hashes_;     // [num_slots, max_blocks]
  std::vector<ExtraKey> extra_;      // of ExtraOf()
};

}  // namespace reprise

#endif  // REPRISE_CACHE_BLOCKS_SEQUENCE_CONTENT_H_
