// Checks that every pair of choices occurs in the generated cases, and that the error measure finds
// faults planted in a layer or batch.

#include "reprise/attention/testing/cross_product.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/attention/attention_params.h"
#include "reprise/attention/reference/reference.h"
#include "reprise/attention/testing/attention_error.h"
#include "reprise/attention/testing/batch_generator.h"
#include "reprise/attention/testing/ragged_generator.h"
#include "reprise/base/dtype.h"

namespace reprise {
namespace {

constexpr CrossProductSpace kSpaces[] = {CrossProductSpace::kAll, CrossProductSpace::kDirect,
                                         CrossProductSpace::kFp8, CrossProductSpace::kCudaCores};

FeatureSet FeaturesOf(const CrossProductCase& c) {
  return c.keys == KeySource::kPaged ? MakePagedFixture(c.fixture).features
                                     : MakeRaggedFixture(c.fixture).features;
}

// Returns choices of a case as strings, without its features and most sizes.
std::vector<std::string> TraitsOf(const CrossProductCase& c) {
  std::vector<std::string> traits;
  const auto add = [&](const char* name, auto value) {
    traits.push_back(std::string(name) + " " + std::to_string(static_cast<int>(value)));
  };
  add("q", *c.fixture.q_dtype);
  add("kv", *c.fixture.kv_dtype);
  add("layout", *c.fixture.layout);
  add("block size", *c.fixture.block_size);
  add("group", *c.fixture.group_size);
  add("keys", c.keys);
  add("out", c.out.dtype);
  add("block scales", c.out.block > 0);
  add("out scale in memory", c.second_out_scale.has_value());
  add("mode", c.mode);
  add("shared prefix", c.shared_prefix);
  add("shared tiles", c.shared_tiles);
  add("multiprocessors", c.num_sms);
  add("tier", c.max_tier);
  return traits;
}

TEST(CrossProductTest, EqualSeedsGiveEqualCasesAndDifferentSeedsDifferentCases) {
  for (CrossProductSpace space : kSpaces) {
    const auto a = CrossProductCases(5, space);
    const auto b = CrossProductCases(5, space);
    const auto other = CrossProductCases(6, space);
    ASSERT_EQ(a.size(), b.size());
    int num_alike = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].fixture.seed, b[i].fixture.seed);
      EXPECT_EQ(TraitsOf(a[i]), TraitsOf(b[i]));
      num_alike += i < other.size() && TraitsOf(a[i]) == TraitsOf(other[i]);
    }
    EXPECT_LE(num_alike, 3);
  }
}

// Counts in the fixtures themselves, which omit dropped choices.
TEST(CrossProductTest, CoversPairsOfFeaturesAndFeaturesWithTraits) {
  constexpr int kNum = static_cast<int>(Feature::kNumFeatures);
  std::set<std::pair<int, int>> pairs;
  std::map<int, std::set<std::string>> traits_of;
  std::set<std::string> all_traits;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    for (const CrossProductCase& c : CrossProductCases(seed, CrossProductSpace::kAll)) {
      const FeatureSet features = FeaturesOf(c);
      const std::vector<std::string> traits = TraitsOf(c);
      if (c.keys == KeySource::kPaged) all_traits.insert(traits.begin(), traits.end());
      for (int a = 0; a < kNum; ++a) {
        if (!features.Has(static_cast<Feature>(a))) continue;
        traits_of[a].insert(traits.begin(), traits.end());
        for (int b = 0; b < a; ++b) {
          if (features.Has(static_cast<Feature>(b))) pairs.insert({b, a});
        }
      }
    }
  }
  EXPECT_GE(all_traits.size(), 40u);
  // Sizes are separate fields.
  const auto is_size = [](int f) {
    return f == static_cast<int>(Feature::kDifferentV) ||
           f == static_cast<int>(Feature::kOddHeadDim);
  };
  const auto is_exclusive = [](int f) {
    return f == static_cast<int>(Feature::kTail) ||
           f == static_cast<int>(Feature::kContextParallel) ||
           f == static_cast<int>(Feature::kCustomMask);
  };
  const std::string parts = "layout " + std::to_string(static_cast<int>(KvMemoryLayout::kMlaParts));
  for (int a = 0; a < kNum; ++a) {
    if (is_size(a)) continue;
    for (int b = 0; b < a; ++b) {
      if (is_size(b) || (is_exclusive(a) && is_exclusive(b))) continue;
      EXPECT_TRUE(pairs.contains({b, a}))
          << ToString({static_cast<Feature>(b)}) << " with " << ToString({static_cast<Feature>(a)});
    }
    for (const std::string& trait : all_traits) {
      // New keys are not supported if keys are in two parts.
      if (static_cast<Feature>(a) == Feature::kNewKeys && trait == parts) continue;
      EXPECT_TRUE(traits_of[a].contains(trait))
          << ToString({static_cast<Feature>(a)}) << " with " << trait;
    }
  }
}

TEST(CrossProductTest, CoversPairsOfTraits) {
  for (CrossProductSpace space : kSpaces) {
    std::set<std::pair<std::string, std::string>> pairs;
    std::map<std::string, std::set<std::string>> values;  // by field: "q", "kv", ...
    for (uint64_t seed = 0; seed < 3; ++seed) {
      for (const CrossProductCase& c : CrossProductCases(seed, space)) {
        const std::vector<std::string> traits = TraitsOf(c);
        for (const std::string& a : traits) {
          values[a.substr(0, a.rfind(' '))].insert(a);
          for (const std::string& b : traits) pairs.insert({a, b});
        }
      }
    }
    int num_missing = 0, num_pairs = 0;
    for (const auto& [name, as] : values) {
      for (const auto& [other, bs] : values) {
        if (name >= other) continue;
        for (const std::string& a : as) {
          for (const std::string& b : bs) {
            ++num_pairs;
            num_missing += !pairs.contains({a, b});
          }
        }
      }
    }
    // The contract excludes some pairs: a 16-bit cache or 16-bit ragged keys whose type differs
    // from q's type, shared prefixes in deterministic mode, and scales of out for wide types or
    // together with block scales.
    EXPECT_LT(num_missing, num_pairs / 10) << "space " << static_cast<int>(space);
    EXPECT_GT(num_pairs, 300);
  }
}

TEST(CrossProductTest, CoversSplitBoundsAndChunksOfKPackedKeys) {
  std::set<int> max_splits;
  std::set<std::pair<int, int>> chunks;  // with the element size
  for (uint64_t seed = 0; seed < 10; ++seed) {
    for (const CrossProductCase& c : CrossProductCases(seed, CrossProductSpace::kAll)) {
      if (c.mode == TileScheduleMode::kDeterministic) max_splits.insert(c.max_splits);
      if (c.fixture.layout != KvMemoryLayout::kKPacked) continue;
      chunks.insert({*c.fixture.k_chunk, SizeOf(*c.fixture.kv_dtype)});
    }
  }
  EXPECT_EQ(max_splits, std::set<int>({1, 2, 5, 16}));
  for (const int chunk : {0, 4, 8}) {
    for (const int size : {1, 2, 4}) {
      EXPECT_TRUE(chunks.contains({chunk, size})) << chunk << " of " << size << " bytes";
    }
  }
}

// A simulated kernel fault: the float32 reference over a modified batch or layer.
struct PlantedFault {
  std::string name;
  // Returns false if the fault does not apply to the case.
  std::function<bool(PagedFixture& fixture)> plant;
};

std::vector<PlantedFault> PlantedFaults() {
  return {
      {"a window that is one key narrower",
       [](PagedFixture& f) {
         std::optional<int>& left = f.layer.params.window_left;
         return left > 0 && --*left >= 0;
       }},
      {"no softcap",
       [](PagedFixture& f) {
         return std::exchange(f.layer.params.softcap, std::nullopt).has_value();
       }},
      {"no sinks", [](PagedFixture& f) { return !std::exchange(f.layer.sinks, {}).empty(); }},
      {"no slopes",
       [](PagedFixture& f) { return !std::exchange(f.layer.alibi_slopes, {}).empty(); }},
      {"no rotary embedding",
       [](PagedFixture& f) {
         return std::exchange(f.layer.params.rotary, std::nullopt).has_value();
       }},
      {"a scale that is off by a tenth",
       [](PagedFixture& f) {
         f.layer.params.scale = 1.1f * f.layer.params.resolved_scale();
         return true;
       }},
      {"slopes of the first sequence in all",
       [](PagedFixture& f) {
         return std::exchange(f.layer.params.alibi_row_stride, 0) > 0 && f.seq_lens.size() > 1;
       }},
      {"no scales per q head",
       [](PagedFixture& f) { return !std::exchange(f.layer.q_head_scales, {}).empty(); }},
      {"no custom masks",
       [](PagedFixture& f) {
         if (f.custom_mask.empty()) return false;
         std::ranges::fill(f.custom_mask_offset, -1);
         return true;
       }},
      {"custom masks that are off by a key",
       [](PagedFixture& f) {
         for (size_t i = 0; i + 1 < f.custom_mask.size(); ++i) {
           f.custom_mask[i] =
               static_cast<uint8_t>(f.custom_mask[i] >> 1 | f.custom_mask[i + 1] << 7);
         }
         return !f.custom_mask.empty();
       }},
      {"no tail masks", [](PagedFixture& f) { return !std::exchange(f.tail_len, {}).empty(); }},
      {"each row's first key left out",
       [](PagedFixture& f) {
         if (f.key_start.empty() || !f.tail_len.empty()) return false;
         for (size_t r = 0; r < f.seq_lens.size(); ++r) {
           if (f.seq_lens[r] < 2) continue;
           ++f.key_start[r];
           --f.seq_lens[r];
         }
         return true;
       }},
  };
}

ReferenceResult<float> InFloat(const PagedFixture& fixture) {
  return ReferencePagedAttention<float>(fixture.Layer(OnHost), fixture.Batch(OnHost),
                                        fixture.Q(OnHost), fixture.Kv(OnHost), DType::kFloat64,
                                        fixture.New(OnHost));
}

TEST(CrossProductTest, PlantedFaultsAreFound) {
  std::map<std::string, int> planted, found;
  std::vector<CrossProductCase> cases = CrossProductCases(1, CrossProductSpace::kAll);
  std::ranges::copy(CrossProductCases(2, CrossProductSpace::kAll), std::back_inserter(cases));
  for (const CrossProductCase& c : cases) {
    if (c.keys != KeySource::kPaged || *c.fixture.head_dim_qk > 128) continue;
    const PagedFixture fixture = MakePagedFixture(c.fixture);
    SCOPED_TRACE(fixture.description);
    const auto exact = ReferencePagedAttention<double>(fixture.Layer(OnHost), fixture.Batch(OnHost),
                                                       fixture.Q(OnHost), fixture.Kv(OnHost),
                                                       DType::kFloat64, fixture.New(OnHost));
    const ReferenceResult<float> own = InFloat(fixture);
    for (const PlantedFault& fault : PlantedFaults()) {
      PagedFixture other = MakePagedFixture(c.fixture);
      if (!fault.plant(other)) continue;
      const ReferenceResult<float> faulty = InFloat(other);
      const AttentionValues got = {.out = {faulty.out.begin(), faulty.out.end()},
                                   .lse = {faulty.lse.begin(), faulty.lse.end()}};
      // In some cases the fault has no effect: no query is at the window's edge, or all tails are
      // empty.
      if (got.lse == std::vector<double>(own.lse.begin(), own.lse.end())) continue;
      ++planted[fault.name];
      const AttentionError error =
          ErrorOf(got, exact, own, fixture.layer.params.head_dim_v, {}, {.dtype = DType::kFloat32});
      found[fault.name] +=
          !error.wrong.empty() || error.out > error.out_limit || error.lse > error.lse_limit;
    }
  }
  for (const PlantedFault& fault : PlantedFaults()) {
    EXPECT_GE(planted[fault.name], 5) << fault.name;
    // In some cases rotation has almost no effect: a single key is rotated as far as its query.
    EXPECT_GE(10 * found[fault.name], 9 * planted[fault.name]) << fault.name;
  }
}

}  // namespace
}  // namespace reprise
