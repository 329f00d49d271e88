#include "reprise/cache/testing/model_setups.h"

#include <glog/logging.h>

namespace reprise {
namespace {

constexpr KvGroupSpec kFull = {};
constexpr KvGroupSpec kCross = {.retention = KvRetention::kCross};

constexpr KvGroupSpec WindowOf(int span) {
  return {.retention = KvRetention::kSlidingWindow, .span = span};
}

constexpr KvGroupSpec ChunksOf(int span) {
  return {.retention = KvRetention::kChunkedLocal, .span = span};
}

std::vector<ModelSetup> AllSetups() {
  const std::vector<std::string> always = {"content checked",
                                           "forks",
                                           "swaps out",
                                           "swaps in",
                                           "refusals for lack of blocks",
                                           "truncations of content",
                                           "swaps abandoned"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), always.begin(), always.end());
    return more;
  };
  return {
      {.name = "OneGroupWithoutReuse",
       .options = {.manager = {.num_blocks = 30,
                               .block_size = 4,
                               .num_slots = 5,
                               .max_blocks = 9,
                               .num_reserved_blocks = 3}},
       .events = with({"copies on write"})},
      {.name = "OneGroup",
       .options = {.manager = {.num_blocks = 30,
                               .block_size = 3,
                               .num_slots = 6,
                               .max_blocks = 9,
                               .prefix_reuse = PrefixReuse::kOn}},
       .events = with({"copies on write", "hits", "prefixes forgotten"})},
      {.name = "BlocksOfOneToken",
       .options = {.manager = {.num_blocks = 40,
                               .block_size = 1,
                               .num_slots = 5,
                               .max_blocks = 16,
                               .num_reserved_blocks = 2,
                               .prefix_reuse = PrefixReuse::kOn,
                               .prefix_tokens = PrefixTokens::kStored}},
       .events = with({"hits"})},
      {.name = "PartialHits",
       .options = {.manager = {.num_blocks = 26,
                               .block_size = 5,
                               .num_slots = 6,
                               .max_blocks = 5,
                               .prefix_reuse = PrefixReuse::kOn,
                               .prefix_tokens = PrefixTokens::kStored,
                               .partial_hits = PartialHits::kCopied}},
       .events = with({"copies on write", "hits", "partial hits"})},
      {.name = "LookAhead",
       .options = {.manager = {.num_blocks = 44,
                               .block_size = 4,
                               .num_slots = 6,
                               .max_blocks = 6,
                               .num_reserved_blocks = 1,
                               .num_lookahead_tokens = 7,
                               .prefix_reuse = PrefixReuse::kOn}},
       .events = with({"hits", "copies"})},
      {.name = "FullAndWindow",
       .options = {.manager = {.num_blocks = 60,
                               .block_size = 2,
                               .num_slots = 6,
                               .max_blocks = 12,
                               .groups = {kFull, WindowOf(5)},
                               .prefix_reuse = PrefixReuse::kOn}},
       .events = with({"copies on write", "hits", "blocks that left a window",
                       "truncations refused by a window"})},
      {.name = "WindowsOnly",
       .options = {.manager = {.num_blocks = 40,
                               .block_size = 3,
                               .num_slots = 5,
                               .max_blocks = 10,
                               .groups = {WindowOf(1), WindowOf(8)},
                               .prefix_reuse = PrefixReuse::kOn,
                               .prefix_tokens = PrefixTokens::kStored,
                               .partial_hits = PartialHits::kCopied}},
       .events = with({"hits", "partial hits", "blocks that left a window"})},
      {.name = "EveryKind",
       .options = {.manager = {.num_blocks = 90,
                               .block_size = 3,
                               .num_slots = 6,
                               .max_blocks = 8,
                               .num_reserved_blocks = 4,
                               .groups = {ChunksOf(7), kFull, kCross, WindowOf(6)},
                               .prefix_reuse = PrefixReuse::kOn},
                   .num_host_blocks = 60},
       .events = with({"copies on write", "hits", "encoder hits", "blocks that left a window"})},
      {.name = "EveryKindWithLookAhead",
       .options = {.manager = {.num_blocks = 110,
                               .block_size = 4,
                               .num_slots = 5,
                               .max_blocks = 7,
                               .num_lookahead_tokens = 5,
                               .groups = {kFull, WindowOf(4), ChunksOf(4), kCross},
                               .prefix_reuse = PrefixReuse::kOn,
                               .prefix_tokens = PrefixTokens::kStored,
                               .partial_hits = PartialHits::kCopied},
                   .num_host_blocks = 60},
       .events = with({"hits", "partial hits", "encoder hits", "blocks that left a window"})},
  };
}

}  // namespace

int NumModelSetups() {
  static const int num_setups = static_cast<int>(AllSetups().size());
  return num_setups;
}

ModelSetup ModelSetupOf(int i) {
  const std::vector<ModelSetup> setups = AllSetups();
  CHECK(i >= 0 && i < static_cast<int>(setups.size())) << i;
  return setups[i];
}

}  // namespace reprise
