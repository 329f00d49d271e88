#include "reprise/cache/prefix/prefix_match.h"

#include <algorithm>

#include "reprise/cache/group_retention.h"

namespace reprise {
namespace {

// Number of blocks that are hashed and looked up together. Large enough to keep the hash function
// busy.
constexpr int kStride = 64;

class Matcher {
 public:
  Matcher(const PrefixSearch& search, absl::Span<BlockId> hits) : search_(search), hits_(hits) {}

  int Run() {
    int num_blocks = MatchFullGroups();
    // Windows only shorten the prefix, and full groups have every shorter prefix.
    for (bool is_agreed = false; !is_agreed;) {
      is_agreed = true;
      for (size_t group = 0; group < search_.groups.size() && num_blocks > 0; ++group) {
        if (!LosesBlocks(search_.groups[group])) continue;
        const int num_here = MatchFromTheRight(group, num_blocks);
        is_agreed &= num_here == num_blocks;
        num_blocks = num_here;
      }
    }
    return num_blocks;
  }

 private:
  absl::Span<BlockId> HitsOf(size_t group) const {
    return hits_.subspan(group * search_.max_blocks, search_.max_blocks);
  }

  PrefixQuery QueryOf(size_t group, int first, int num_blocks) const {
    const int num_hashed = first + num_blocks;
    return {.group = static_cast<int>(group),
            .hashes = search_.hashes(num_hashed).subspan(first, num_blocks),
            .tokens = search_.tokens.subspan(int64_t{first} * search_.block_size,
                                             int64_t{num_blocks} * search_.block_size)};
  }

  // Returns the number of leading blocks that all full groups have; without a full group,
  // num_full_blocks.
  int MatchFullGroups() const {
    bool is_short = false;
    int num_blocks = 0;
    while (num_blocks < search_.num_full_blocks && !is_short) {
      const int num_asked = std::min(kStride, search_.num_full_blocks - num_blocks);
      int num_here = num_asked;
      for (size_t group = 0; group < search_.groups.size(); ++group) {
        if (search_.groups[group].retention != KvRetention::kFull) continue;
        const PrefixQuery query = QueryOf(group, num_blocks, num_here);
        num_here = search_.index.FindPrefix(query, HitsOf(group).subspan(num_blocks, num_here));
      }
      num_blocks += num_here;
      is_short = num_here < num_asked;
    }
    return num_blocks;
  }

  // Returns the longest prefix of at most `num_blocks` blocks that this group has. Searches the
  // blocks that the longest prefix needs, from right to left. A missing block rules out all
  // prefixes that need it. Looks up each block once.
  int MatchFromTheRight(size_t group, int num_blocks) const {
    const absl::Span<BlockId> hits = HitsOf(group);
    int column = num_blocks - 1;
    while (column >= FirstNeeded(group, num_blocks)) {
      const bool is_here =
          search_.index.FindPrefix(QueryOf(group, column, 1), hits.subspan(column, 1)) == 1;
      if (!is_here) num_blocks = column;
      --column;
    }
    return num_blocks;
  }

  int FirstNeeded(size_t group, int num_blocks) const {
    return FirstNeededBlock(search_.groups[group], num_blocks * search_.block_size,
                            search_.block_size);
  }

  const PrefixSearch& search_;
  const absl::Span<BlockId> hits_;
};

}  // namespace

int MatchPrefix(const PrefixSearch& search, absl::Span<BlockId> hits) {
  return Matcher(search, hits).Run();
}

}  // namespace reprise
