#include "reprise/runner/ranks/rank_options.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/distributed/testing/thread_ranks.h"

namespace reprise {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

ModelSpec SpecWithHeads(int num_q_heads, int num_kv_heads) {
  ModelSpec spec = {.layers = std::vector<LayerSpec>(2), .vocab_size = 64, .max_position = 128};
  for (LayerSpec& layer : spec.layers) {
    layer.params = {.num_q_heads = num_q_heads,
                    .num_kv_heads = num_kv_heads,
                    .head_dim_qk = 16,
                    .head_dim_v = 16,
                    .scale = 0.25f};
  }
  return spec;
}

std::string TextOf(const ModelRunnerOptions& options, const ModelSpec& spec) {
  const absl::StatusOr<ModelRunnerOptions> resolved = ResolveRunnerOptions(options, spec);
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return resolved.ok() ? RankOptionsText(*resolved, spec) : "";
}

TEST(RankOptionsTest, ValuesAreWords) {
  ModelSpec spec = SpecWithHeads(8, 2);
  spec.layers[1].params.window_left = 31;
  const std::string text =
      TextOf({.graphs = {.mode = GraphSetOptions::Mode::kEager, .sizes = {1, 8}}}, spec);
  for (const char* const line :
       {"dtype=float32\n", "graphs.mode=eager\n", "graphs.sizes=1,8\n", "graphs.mixed=off\n",
        "graphs.mixed_tokens=none\n", "graphs.memory_budget_bytes=none\n", "layers=f,w32\n",
        "debug.attention=in_graphs\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, Not(HasSubstr("cascade_costs")));  // the cascade is off
}

TEST(RankOptionsTest, ExcludesOptionsThatMayDifferBetweenRanks) {
  const std::string text = TextOf({}, SpecWithHeads(8, 2));
  EXPECT_EQ(TextOf({.cache = {.size = NumBytes{1 << 20}},
                    .device = {.linear_choices_file = "/of/this/rank"}},
                   SpecWithHeads(6, 1)),
            text);
  EXPECT_EQ(TextOf({.cache = {.size = NumBlocks{7}}}, SpecWithHeads(8, 2)), text);
}

// Checks the CascadeMode if rank i has heads[i] q heads.
std::vector<absl::Status> ExpectCascade(const std::vector<int>& heads, CascadeMode given,
                                        CascadeMode expected) {
  return RunThreadRanks(static_cast<int>(heads.size()), [&](Collectives& collectives) {
    const ModelSpec spec = SpecWithHeads(heads[collectives.ranks().rank], 1);
    const absl::StatusOr<CascadeMode> got = CascadeOverRanks(&collectives, given, spec.layers);
    if (got.ok()) {
      EXPECT_EQ(*got, expected);
    }
    return got.status();
  });
}

TEST(RankOptionsTest, CascadeIsOffOnAllRanksIfHeadCountsDiffer) {
  constexpr CascadeMode kAuto = CascadeMode::kAuto;
  constexpr CascadeMode kOff = CascadeMode::kOff;
  EXPECT_THAT(ExpectCascade({3, 3, 3}, kAuto, kAuto), Each(absl::OkStatus()));
  EXPECT_THAT(ExpectCascade({3, 3, 2}, kAuto, kOff), Each(absl::OkStatus()));
  EXPECT_THAT(ExpectCascade({3, 2}, kOff, kOff), Each(absl::OkStatus()));
  EXPECT_EQ(*CascadeOverRanks(nullptr, kAuto, SpecWithHeads(3, 1).layers), kAuto);
}

}  // namespace
}  // namespace reprise
