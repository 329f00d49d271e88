// The possible contents of a generated fixture (attention/testing/batch_generator.h).

#ifndef REPRISE_ATTENTION_TESTING_FIXTURE_OPTIONS_H_
#define REPRISE_ATTENTION_TESTING_FIXTURE_OPTIONS_H_

#include <bitset>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "reprise/attention/testing/kv_memory.h"
#include "reprise/attention/testing/random.h"
#include "reprise/base/dtype.h"

namespace reprise {

// Optional contents of a fixture, besides rows of queries over causal keys. Each feature is drawn
// independently, in some fixtures. Combinations that the contract excludes do not occur.
enum class Feature {
  kTableRow,         // permuted, shared and virtual rows
  kKeyStart,         // 0 to 60; with kCommonPrefix the same in all rows
  kQueryPositions,   // the default ones, shifted, or arbitrary
  kTail,             // tree masks, with garbage in bits beyond tail_len
  kContextParallel,  // 2..4 ranks
  kNotCausal,
  kLongQueries,  // rows with more queries than keys
  kCommonPrefix,
  kPaddedRows,  // padded rows at the end, and empty rows between
  kInertTokens,
  kWindow,  // left, right or both
  kSoftcap,
  kAlibi,
  kSinks,
  kScale,        // a non-default scale
  kQuantScales,  // q, k, v scales: value, per tensor, head, row, or both
  kRotary,
  kSparse,
  kStridedQ,    // q is a slice of a fused projection
  kUnalignedQ,  // also with odd strides
  kDifferentV,  // head_dim_v != head_dim_qk
  kOddHeadDim,  // head dims that are not multiples of 8
  // Gaps between blocks; half of the caches also have gaps between heads and tokens. Half have
  // other layers within each block.
  kBlockGap,
  kLargeLogits,  // softmax dominated by one key
  kNewKeys,      // new keys come from tensors, and are NaN in the cache
  kAlibiRows,    // separate ALiBi slopes for each table row
  kQHeadScales,  // a scale for each q head
  kCustomMask,   // packed masks with any pattern, in some rows
  kNumFeatures,  // not a feature
};

// A set of features. A value.
class FeatureSet {
 public:
  FeatureSet() = default;
  FeatureSet(std::initializer_list<Feature> features) {
    for (Feature feature : features) Add(feature);
  }
  static FeatureSet All() {
    FeatureSet set;
    set.bits_.set();
    return set;
  }

  bool Has(Feature feature) const { return bits_.test(static_cast<int>(feature)); }
  void Add(Feature feature) { bits_.set(static_cast<int>(feature)); }
  void Remove(Feature feature) { bits_.reset(static_cast<int>(feature)); }
  FeatureSet Without(std::initializer_list<Feature> features) const {
    FeatureSet rest = *this;
    for (Feature feature : features) rest.Remove(feature);
    return rest;
  }

 private:
  std::bitset<static_cast<int>(Feature::kNumFeatures)> bits_;
};

// Returns the names of the features: "tail window ...".
std::string ToString(const FeatureSet& features);

// The options of a fixture. Absent values are drawn.
struct FixtureOptions {
  uint64_t seed = 0;
  // kNewKeys must be requested: callers that do not read the new keys would read NaN.
  FeatureSet allowed = FeatureSet::All().Without({Feature::kNewKeys});
  // Always drawn, unless another required feature or the shape excludes it.
  FeatureSet required = {};
  int max_rows = 6;
  int max_query_len = 12;
  int min_seq_len = 1;  // minimum number of keys of a row with keys
  int max_seq_len = 80;
  std::optional<DType> q_dtype = {};   // any but float64; drawn: float32, float16, bfloat16
  std::optional<DType> kv_dtype = {};  // any but float64; ragged fixtures: as q_dtype
  // Allows fp8 as kv_dtype of ragged fixtures. The caller must then pass the scales of k and v on.
  bool quantised_ragged = false;
  std::optional<KvMemoryLayout> layout = {};
  std::optional<int> k_chunk = {};  // for kKPacked: 0 (16 bytes), 4 or 8 dims; divides head_dim_qk
  std::optional<int> block_size = {};
  std::optional<int> num_kv_heads = {};
  std::optional<int> group_size = {};
  std::optional<int> head_dim_qk = {};
  std::optional<int> head_dim_v = {};
};

// Draws the features of a fixture: some of the allowed features, and all required features. Drops
// features that other features exclude.
FeatureSet DrawFeatures(const FixtureOptions& options, Random& random);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_FIXTURE_OPTIONS_H_
