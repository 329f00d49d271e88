// Checks the graph that serves a step, for random options and shapes.

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/test_seed.h"
#include "reprise/graphs/graph_set.h"
#include "reprise/graphs/recorded_backend.h"

namespace reprise {
namespace {

// For random options and shapes, a replayed graph holds the step, and no smaller graph of its form
// does.
TEST(GraphSetRandomTest, SmallestGraphThatHoldsARandomShapeServesTheShape) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const auto backend = MakeRecordedBackend();
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  const auto ascending = [&](int count, int step) {
    std::vector<int> values;
    for (int value = 0, i = 0; i < count; ++i) values.push_back(value += 1 + below(step));
    return values;
  };
  for (int round = 0; round < 200; ++round) {
    GraphSetOptions options{.mode = GraphSetOptions::Mode::kLazy,
                            .sizes = ascending(1 + below(8), 20),
                            .query_lens = ascending(1 + below(3), 4),
                            .max_seq_len = 64};
    options.max_num_seqs = options.sizes.back() + below(10);
    if (round % 2 == 1) {
      options.mixed_tokens = ascending(1 + below(3), 60);
      options.mixed_sizes = {1 + below(options.max_num_seqs)};
    }
    const auto set = GraphSet::Create(options, backend.get());
    ASSERT_TRUE(set.ok()) << set.status();
    for (int i = 0; i < 50; ++i) {
      const int num_seqs = below(options.max_num_seqs + 5);
      const int query_len = 1 + below(14);
      const StepShape shape{.num_seqs = num_seqs,
                            .num_tokens = num_seqs * query_len,
                            .max_query_len = query_len,
                            .max_seq_len = below(80)};
      const GraphDecision decision = (*set)->Decide(shape);
      // In the order of keys(): the last key is the smallest. Mixed keys count only if no other key
      // holds the shape.
      std::vector<GraphKey> holding;
      bool is_mixed = true;
      for (const GraphKey& key : (*set)->keys()) {
        const bool is_row_key =
            std::binary_search(options.query_lens.begin(), options.query_lens.end(),
                               key.max_query_len) &&
            key.padded_num_tokens == key.padded_num_seqs * key.max_query_len &&
            std::binary_search(options.sizes.begin(), options.sizes.end(), key.padded_num_seqs);
        if (!is_mixed && !is_row_key) break;
        if (key.padded_num_seqs >= num_seqs && key.max_query_len >= query_len && num_seqs > 0 &&
            key.padded_num_tokens >= shape.num_tokens && shape.max_seq_len <= 64) {
          holding.push_back(key);
          is_mixed &= !is_row_key;
        }
      }
      ASSERT_EQ(decision.kind == GraphDecision::Kind::kReplay, !holding.empty()) << decision;
      ASSERT_EQ(decision.kind == GraphDecision::Kind::kReplay,
                decision.reason == EagerReason::kNone);
      if (!holding.empty()) {
        ASSERT_EQ(decision.key, holding.back());
      }
    }
  }
}

}  // namespace
}  // namespace reprise
