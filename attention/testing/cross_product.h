// The cross-product of all attention features, pair by pair: one generator for the kernels and for
// the CPU path.
//
//   for (const CrossProductCase& c : CrossProductCases(seed, CrossProductSpace::kAll)) {
//     FixturePair<PagedFixture> pair = MakePagedFixturePair(c.fixture);  // or ragged, by c.keys
//     SCOPED_TRACE(pair.second.description);
//     ...
//   }
//
// Each call gives a covering array of a space: for every two of its fields (features, types,
// layout, sizes, form of the output, kind of work map, tier) and every choice of each, a case has
// both. Choices that the contract excludes are dropped. The values are drawn from seeds, which the
// fixtures' descriptions name.
//
// Fewer than one in a hundred of all cases need no conversion, so cases without conversions, and
// cases that multiply in float32, have their own spaces.
//
// Thread safety: const data.

#ifndef REPRISE_ATTENTION_TESTING_CROSS_PRODUCT_H_
#define REPRISE_ATTENTION_TESTING_CROSS_PRODUCT_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "reprise/attention/testing/attention_error.h"
#include "reprise/attention/testing/fixture_options.h"
#include "reprise/attention/work_map/work_map.h"
#include "reprise/attention/work_map/work_map_plan.h"
#include "reprise/base/dtype.h"

namespace reprise {

enum class KeySource { kPaged, kRagged };

enum class CrossProductSpace {
  kAll,
  kDirect,     // 16-bit q and KV of one type, in whole chunks, nothing converted: both tiers
  kFp8,        // KV in fp8, in whole chunks, with q of 16 or 8 bits, no other conversion
  kCudaCores,  // 16-bit and fp8 q, multiplied in float32 on request
};

struct CrossProductCase {
  FixtureOptions fixture;
  KeySource keys = KeySource::kPaged;
  DType products = DType::kFloat32;  // the type of the kernels' products for these q and KV
  // As AttentionExtras has them.
  std::optional<DType> asked_products = {};
  int max_tier = 2;
  OutputRounding out;
  // The scale of out in the second contents of a pair, where it is held in memory; else it is a
  // number of the call.
  std::optional<float> second_out_scale = {};
  int num_extra_tokens = 0;  // rows of out beyond the batch's
  int out_gap = 0;           // elements between heads and between tokens of out
  // Of the work map.
  int num_sms = 132;
  int max_shared_bytes = 0;
  WorkMapMode mode = WorkMapMode::kBalanced;
  int max_splits = kMaxDeterministicSplits;
  SharedPrefix shared_prefix = SharedPrefix::kIgnored;
  SharedTiles shared_tiles = SharedTiles::kLarge;

  // How out is stored with the second contents.
  OutputRounding second_out() const;
};

// Some 100 to 150 cases; equal seeds give equal ones.
std::vector<CrossProductCase> CrossProductCases(uint64_t seed, CrossProductSpace space);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_CROSS_PRODUCT_H_
