// The pairwise cross-product of all attention features: one generator for the kernels and the CPU
// path.
//
//   for (const CrossProductCase& c : CrossProductCases(seed, CrossProductSpace::kAll)) {
//     FixturePair<PagedFixture> pair = MakePagedFixturePair(c.fixture);  // or ragged, by c.keys
//     SCOPED_TRACE(pair.second.description);
//     ...
//   }
//
// Each call draws a covering array of a space: every pair of choices of any two fields occurs in
// some case. Fields are features, types, layout, sizes, form of the output, kind of tile schedule,
// and tier. Choices that the contract excludes, or that would take too long, are then replaced.
// Values are drawn from seeds, which the fixtures' descriptions contain.
//
// Less than 1 % of all cases need no conversion. Cases without conversion, and cases with float32
// MMAs, therefore have separate spaces.
//
// Thread safety: const data.

#ifndef REPRISE_ATTENTION_TESTING_CROSS_PRODUCT_H_
#define REPRISE_ATTENTION_TESTING_CROSS_PRODUCT_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "reprise/attention/testing/attention_error.h"
#include "reprise/attention/testing/fixture_options.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/attention/tile_schedule/tile_schedule_plan.h"
#include "reprise/base/dtype.h"

namespace reprise {

enum class KeySource { kPaged, kRagged };

enum class CrossProductSpace {
  kAll,
  kDirect,  // 16-bit q and KV of one type, in whole chunks, no conversion: both tiers
  // fp8 KV, 16- or 8-bit q, no other conversion; KV in whole chunks, except in ragged cases with
  // strided k and v.
  kFp8,
  kCudaCores,  // 16-bit and fp8 q with float32 multiplication on request
};

struct CrossProductCase {
  FixtureOptions fixture;
  KeySource keys = KeySource::kPaged;
  DType products = DType::kFloat32;  // dtype of the kernels' MMAs for these q and KV
  // Requested MMA dtype, as in KernelChoice.
  std::optional<DType> asked_products = {};
  int max_tier = 2;
  OutputRounding out;
  // Scale of out for the second contents of a pair, if the scale is in memory. Otherwise the scale
  // is a number in the call.
  std::optional<float> second_out_scale = {};
  int num_extra_tokens = 0;  // rows of out after the batch's tokens
  int out_gap = 0;           // elements between heads and between tokens of out
  // Parameters of the tile schedule.
  int num_sms = 132;
  int max_shared_bytes = 0;
  TileScheduleMode mode = TileScheduleMode::kBalanced;
  int max_splits = kMaxDeterministicSplits;
  SharedPrefix shared_prefix = SharedPrefix::kIgnored;
  SharedTiles shared_tiles = SharedTiles::kLarge;

  // The form in which out is stored for the second contents.
  OutputRounding second_out() const;
};

// Returns more than 100 cases. Equal seeds give equal cases.
std::vector<CrossProductCase> CrossProductCases(uint64_t seed, CrossProductSpace space);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_CROSS_PRODUCT_H_
