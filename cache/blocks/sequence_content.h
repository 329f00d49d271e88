// The known tokens of each sequence, and the hashes of its blocks.
//
//   SequenceContent content = *SequenceContent::Create(
//       {.num_slots = 256, .max_blocks = 512, .block_size = 16}, hasher);
//   content.Begin(slot, prompt);
//   content.HashPrompt(slot, prompt.tokens, 8);       // the first 8 blocks, for lookups
//   const int num_known = content.Commit(slot, tokens);   // full blocks with a known key
//   index.Insert(block, content.Key(slot, column, group));
//
// Hashes from the lookup of a prompt are reused when its tokens are committed. Load() computes them
// again.
//
// Thread safety: not thread-safe; one owner. Cost: one hash per full block, one copy per token.
// Memory: 4 bytes per token and 16 bytes per block of every slot's maximum length; the operating
// system provides pages on first use. No heap allocation after Create(), except in Save() and
// Load() and for range keys.

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

// Content that replaces tokens, such as an image. Prefixes with different values have different
// hashes.
struct RangeKey {
  ExtraKeyKind kind = ExtraKeyKind::kOther;
  std::string_view value;  // any bytes
  int first_token = 0;     // position in the sequence
  int num_tokens = 0;
};

// The prompt of a sequence. Its spans are read only during the call that takes it.
struct SequencePrompt {
  absl::Span<const int32_t> tokens = {};
  // Inputs other than tokens that affect the keys and values of the whole sequence: adapter, salt.
  absl::Span<const ExtraKey> extra_keys = {};
  // Inputs for some of the tokens: images.
  absl::Span<const RangeKey> range_keys = {};
  // Maximum number of tokens after the hits to allocate. A long prompt that is computed in chunks
  // then needs fewer blocks in groups with a window. nullopt: all tokens.
  std::optional<int> num_new_tokens = std::nullopt;
  // Maximum number of tokens to reuse from the cache. For callers that need the logits of prompt
  // tokens, which are available only for computed tokens. nullopt: no limit.
  std::optional<int> max_hit_tokens = std::nullopt;
  // Number of tokens of the encoder's input, for cross groups.
  int num_encoder_tokens = 0;
  // Identifies the encoder's input. Without a key, other sequences find no block of a sequence with
  // an encoder.
  absl::Span<const ExtraKey> encoder_keys = {};
};

// A RangeKey with a digest instead of the value.
struct KeptRange {
  ExtraKeyKind kind = ExtraKeyKind::kOther;
  std::array<char, sizeof(PrefixHash)> digest = {};
  int64_t first_token = 0;
  int64_t end_token = 0;
};

// The known content of a sequence, independent of its slot.
struct SavedContent {
  PrefixHash root;
  std::optional<PrefixHash> encoder_root = std::nullopt;
  std::vector<KeptRange> ranges = {};
  std::vector<int32_t> tokens = {};
  bool is_open = false;  // later commits extend the known tokens
};

class SequenceContent {
 public:
  struct Options {
    int num_slots = 0;   // 0: keeps no content, for caches without reuse
    int max_blocks = 0;  // maximum number of blocks per sequence
    int block_size = 0;
  };

  // Errors: InvalidArgument if rows of that size cannot be allocated.
  static absl::StatusOr<SequenceContent> Create(const Options& options, const PrefixHasher& hasher);

  // REQUIRES, for all functions: the slot is less than num_slots.

  // Starts a sequence without committed tokens.
  void Begin(SlotId slot, const SequencePrompt& prompt);

  // Hashes those of the first `num_blocks` full blocks that have no hash yet. Returns the hashes of
  // the first `num_blocks` blocks. `tokens` are the prompt's tokens.
  absl::Span<const PrefixHash> HashPrompt(SlotId slot, absl::Span<const int32_t> tokens,
                                          int num_blocks);

  // Returns the hash of the block before `column`, or the root for column 0. REQUIRES: the blocks
  // before `column` are hashed.
  PrefixHash Parent(SlotId slot, int column) const {
    return column == 0 ? sequences_[slot.value()].root : hash_row(slot)[column - 1];
  }

  // Returns the extra keys in the hash of the block at `column`. Valid until the next call.
  absl::Span<const ExtraKey> ExtraOf(SlotId slot, int column);

  // Adds the next committed tokens. Returns the number of full blocks that are now known.
  int Commit(SlotId slot, absl::Span<const int32_t> tokens);

  // Marks all later tokens as unknown.
  void ForgetRest(SlotId slot);

  // Forgets all content of the sequence, including its encoder input, and ignores later commits.
  // For sequences whose keys were computed with old weights.
  void Forget(SlotId slot);

  // Shortens the known content to at most `num_tokens`. REQUIRES: num_tokens >= 0.
  void Truncate(SlotId slot, int num_tokens);

  // Starts `to` with the first `num_tokens` of `from`. Allocates if there are range keys.
  void Copy(SlotId from, SlotId to, int num_tokens);

  // Save and restore the content of a sequence that moves to another slot. Allocate.
  SavedContent Save(SlotId slot) const;
  void Load(SlotId slot, const SavedContent& saved);

  // Returns the key of the block at `column`. REQUIRES: column < num_known_blocks(slot). Valid
  // until the next call.
  PrefixKey Key(SlotId slot, int column, int group);

  int num_known(SlotId slot) const { return sequences_[slot.value()].num_known; }
  // Number of full blocks of known tokens.
  int num_known_blocks(SlotId slot) const { return sequences_[slot.value()].num_known_blocks; }
  // The known committed tokens.
  absl::Span<const int32_t> tokens(SlotId slot) const;

  // The hash of the encoder's input; nullopt if the input has no key or was forgotten.
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
    bool is_open = false;  // false: commits add no known tokens
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
  // Hashes the blocks up to `num_blocks` from the token row.
  void HashTo(SlotId slot, int num_blocks);

  Options options_;
  PrefixHasher hasher_;
  std::vector<Sequence> sequences_;  // by slot
  LazyArray<int32_t> tokens_;        // [num_slots, max_blocks * block_size]
  LazyArray<PrefixHash> hashes_;     // [num_slots, max_blocks]
  std::vector<ExtraKey> extra_;      // result of ExtraOf()
};

}  // namespace reprise

#endif  // REPRISE_CACHE_BLOCKS_SEQUENCE_CONTENT_H_
