#include "reprise/cache/prefix/prefix_index.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace reprise {
namespace {

constexpr int kMaxChildren = 64;  // maximum number of children that FindPartial() considers
constexpr int kMaxGroups = std::numeric_limits<uint16_t>::max();

// Derives 64 bits from a hash and a group. The upper bits are as well mixed as the lower bits.
uint64_t TagOf(int group, PrefixHash hash) {
  constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;
  return (hash.low ^ hash.high >> 1 ^ static_cast<uint64_t>(group) << 48) * kGoldenRatio;
}

int CountCommon(absl::Span<const int32_t> a, absl::Span<const int32_t> b) {
  const size_t num_at_most = std::min(a.size(), b.size());
  size_t i = 0;
  while (i < num_at_most && a[i] == b[i]) ++i;
  return static_cast<int>(i);
}

}  // namespace

absl::StatusOr<PrefixIndex> PrefixIndex::Create(const PrefixIndexOptions& options) {
  const auto expected = [](const char* what, int64_t got) {
    return absl::InvalidArgumentError(absl::StrCat(what, ", got ", got));
  };
  if (options.num_blocks < 2) {
    return expected("num_blocks must hold the null block and one more: expected at least 2",
                    options.num_blocks);
  }
  if (options.block_size < 1) {
    return expected("block_size must be at least 1", options.block_size);
  }
  if (options.num_groups < 1 || options.num_groups > kMaxGroups) {
    return expected("num_groups must be 1 to 65535", options.num_groups);
  }
  if (options.num_events < 0) return expected("num_events must be at least 0", options.num_events);
  return PrefixIndex(options);
}

PrefixIndex::PrefixIndex(const PrefixIndexOptions& options)
    : options_(options),
      hasher_(options.seed.has_value() ? *options.seed : PrefixSeed::Random()),
      entries_(options.num_blocks),
      buckets_(options.num_blocks, 0),
      tokens_(has_tokens() ? static_cast<size_t>(options.num_blocks) * options.block_size : 0),
      children_(has_tokens() ? options.num_blocks : 0),
      events_(options.num_events) {}

size_t PrefixIndex::BucketOf(int group, PrefixHash hash) const {
  return ((TagOf(group, hash) >> 32) * buckets_.size()) >> 32;
}

int32_t PrefixIndex::Lookup(int group, PrefixHash hash) const {
  int32_t block = buckets_[BucketOf(group, hash)];
  while (block != 0 && (entries_[block].hash != hash || entries_[block].group != group)) {
    block = entries_[block].next_in_bucket;
  }
  return block;
}

absl::Span<const int32_t> PrefixIndex::TokensOf(int32_t block) const {
  return absl::MakeConstSpan(tokens_).subspan(static_cast<size_t>(block) * options_.block_size,
                                              options_.block_size);
}

int32_t PrefixIndex::LookupBlock(const PrefixQuery& query, int64_t i) const {
  const int32_t block = Lookup(query.group, query.hashes[i]);
  if (block == 0 || !has_tokens() || query.tokens.empty()) return block;
  if (TokensOf(block) == query.tokens.subspan(i * options_.block_size, options_.block_size)) {
    return block;
  }
  ++num_collisions_;
  return 0;
}

void PrefixIndex::CheckQuery(const PrefixQuery& query, absl::Span<const BlockId> blocks) const {
  CHECK_GE(blocks.size(), query.hashes.size());
  CHECK(query.tokens.empty() || query.tokens.size() / options_.block_size >= query.hashes.size())
      << query.tokens.size() << " tokens for " << query.hashes.size() << " blocks";
}

int PrefixIndex::FindPrefix(const PrefixQuery& query, absl::Span<BlockId> blocks) const {
  CheckQuery(query, blocks);
  const int num_asked = static_cast<int>(query.hashes.size());
  for (int i = 0; i < num_asked; ++i) {
    const int32_t block = LookupBlock(query, i);
    if (block == 0) return i;
    blocks[i] = BlockId(block);
  }
  return num_asked;
}

std::optional<BlockId> PrefixIndex::Find(int group, PrefixHash hash) const {
  const int32_t block = Lookup(group, hash);
  return block == 0 ? std::nullopt : std::optional(BlockId(block));
}

std::optional<PartialHit> PrefixIndex::FindPartial(int group, PrefixHash parent,
                                                   absl::Span<const int32_t> tokens,
                                                   absl::Span<const ExtraKey> extra) const {
  const PrefixHash salted = hasher_.Salted(parent, extra);
  std::array<BlockId, kMaxChildren> children;
  const int num_children = children_.FindNewest(TagOf(group, salted), absl::MakeSpan(children));
  PartialHit best;
  for (const BlockId child : absl::MakeConstSpan(children).first(num_children)) {
    const absl::Span<const int32_t> its_tokens = TokensOf(child.value());
    const int num_common = CountCommon(tokens, its_tokens);
    if (num_common <= best.num_tokens) continue;
    // The list is only a hint: the child's hash must follow from the parent and the child's tokens.
    const Entry& entry = entries_[child.value()];
    if (entry.group != group || entry.hash != hasher_.Extend(salted, its_tokens)) continue;
    best = {.block = child, .num_tokens = num_common};
  }
  if (best.num_tokens == 0) return std::nullopt;
  return best;
}

PrefixInsertion PrefixIndex::Insert(BlockId block, const PrefixKey& key) {
  CheckOfThePool(block);
  CHECK(block != kNullBlock) << "Insert of the null block";
  CHECK(!contains(block)) << "Insert of block " << block << ", which is already indexed";
  CHECK(key.group >= 0 && key.group < options_.num_groups)
      << "group " << key.group << " of " << options_.num_groups;
  if (has_tokens()) {
    CHECK_EQ(key.tokens.size(), static_cast<size_t>(options_.block_size)) << "tokens of a block";
  }

  const int32_t first = Lookup(key.group, key.hash);
  if (first != 0 && has_tokens() && TokensOf(first) != key.tokens) {
    ++num_collisions_;
    return PrefixInsertion::kCollision;
  }
  if (has_tokens()) {
    std::copy(key.tokens.begin(), key.tokens.end(),
              tokens_.begin() + int64_t{block.value()} * options_.block_size);
  }
  Entry& entry = entries_[block.value()];
  entry.hash = key.hash;
  entry.group = static_cast<uint16_t>(key.group);
  ++num_indexed_;
  if (first != 0) {
    // Appends the block to the ring, so that the oldest remaining block succeeds the first.
    const int32_t last = entries_[first].previous_same;
    entry.is_first = false;
    entry.next_same = first;
    entry.previous_same = last;
    entries_[last].next_same = block.value();
    entries_[first].previous_same = block.value();
    ++statistics_.num_duplicates;
    return PrefixInsertion::kDuplicate;
  }
  int32_t& bucket = buckets_[BucketOf(key.group, key.hash)];
  entry.is_first = true;
  entry.next_same = entry.previous_same = block.value();
  entry.next_in_bucket = bucket;
  bucket = block.value();
  if (has_tokens()) {
    children_.Add(block, TagOf(key.group, hasher_.Salted(key.parent, key.extra)));
  }
  ++num_keys_;
  ++statistics_.num_stored;
  events_.Push({.kind = PrefixEvent::Kind::kStored,
                .block = block,
                .group = key.group,
                .num_tokens = options_.block_size,
                .hash = key.hash,
                .parent = key.parent});
  return PrefixInsertion::kFirst;
}

void PrefixIndex::Remove(BlockId block) {
  if (!contains(block)) return;
  Entry& entry = entries_[block.value()];
  const int32_t next = entry.next_same;
  if (entry.is_first) {
    // The bucket's link to the removed first block must now point to the next block of the key, or
    // past it.
    int32_t* link = &buckets_[BucketOf(entry.group, entry.hash)];
    while (*link != block.value()) link = &entries_[*link].next_in_bucket;
    if (next != block.value()) {
      *link = next;
      entries_[next].is_first = true;
      entries_[next].next_in_bucket = entry.next_in_bucket;
      if (has_tokens()) children_.Replace(block, BlockId(next));
    } else {
      *link = entry.next_in_bucket;
      if (has_tokens()) children_.Remove(block);
      --num_keys_;
      ++statistics_.num_removed;
      events_.Push({.kind = PrefixEvent::Kind::kRemoved,
                    .block = block,
                    .group = entry.group,
                    .num_tokens = options_.block_size,
                    .hash = entry.hash});
    }
  }
  entries_[next].previous_same = entry.previous_same;
  entries_[entry.previous_same].next_same = next;
  entry = {};
  --num_indexed_;
}

void PrefixIndex::Clear() {
  statistics_.num_removed += num_keys_;
  std::fill(entries_.begin(), entries_.end(), Entry());
  std::fill(buckets_.begin(), buckets_.end(), 0);
  children_.Clear();
  num_indexed_ = 0;
  num_keys_ = 0;
  events_.Push({.kind = PrefixEvent::Kind::kCleared});
}

bool PrefixIndex::contains(BlockId block) const {
  CheckOfThePool(block);
  return entries_[block.value()].next_same != 0;
}

const PrefixIndex::Entry& PrefixIndex::IndexedEntry(BlockId block) const {
  CHECK(contains(block)) << "block " << block << " is not indexed";
  return entries_[block.value()];
}

PrefixHash PrefixIndex::hash(BlockId block) const { return IndexedEntry(block).hash; }

int PrefixIndex::group(BlockId block) const { return IndexedEntry(block).group; }

bool PrefixIndex::has_duplicates(BlockId block) const {
  return IndexedEntry(block).next_same != block.value();
}

BlockId PrefixIndex::first_of_key(BlockId block) const {
  const Entry& entry = IndexedEntry(block);
  return entry.is_first ? block : BlockId(Lookup(entry.group, entry.hash));
}

void PrefixIndex::CountLookup(int64_t num_tokens_asked, int64_t num_tokens_hit) {
  ++statistics_.num_lookups;
  statistics_.num_tokens_asked += num_tokens_asked;
  statistics_.num_tokens_hit += num_tokens_hit;
}

PrefixStatistics PrefixIndex::statistics() const {
  PrefixStatistics statistics = statistics_;
  statistics.num_collisions = num_collisions_;
  return statistics;
}

std::vector<PrefixEvent> PrefixIndex::Snapshot() const {
  std::vector<PrefixEvent> events;
  events.reserve(num_keys_);
  for (int32_t block = 1; block < options_.num_blocks; ++block) {
    const Entry& entry = entries_[block];
    if (!entry.is_first) continue;
    events.push_back({.kind = PrefixEvent::Kind::kStored,
                      .block = BlockId(block),
                      .group = entry.group,
                      .num_tokens = options_.block_size,
                      .hash = entry.hash});
  }
  return events;
}

int64_t PrefixIndex::num_bytes() const {
  return static_cast<int64_t>(entries_.capacity() * sizeof(Entry) +
                              (buckets_.capacity() + tokens_.capacity()) * sizeof(int32_t)) +
         children_.num_bytes() + events_.num_bytes();
}

void PrefixIndex::CheckOfThePool(BlockId block) const {
  CHECK(block.value() >= 0 && block.value() < options_.num_blocks)
      << "block " << block << " is not of the pool of " << options_.num_blocks;
}

}  // namespace reprise
