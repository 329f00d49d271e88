// What a generated fixture may contain: see attention/testing/batch_generator.h.

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

// What a fixture may contain beyond rows of queries over causal keys. Each is drawn independently,
// in some fixtures; combinations that the contract excludes are never made.
enum class Feature {
  kTableRow,         // permuted, shared and virtual rows
  kKeyStart,         // any value
  kQueryPositions,   // the default ones, shifted, or arbitrary
  kTail,             // tree masks, with garbage in bits past tail_len
  kContextParallel,  // 2..4 ranks
  kNotCausal,
  kLongQueries,  // rows with more queries than keys
  kCommonPrefix,
  kPaddedRows,  // padded rows at the end and empty ones between
  kInertTokens,
  kWindow,  // left, right or both
  kSoftcap,
  kAlibi,
  kSinks,
  kScale,        // a scale of its own
  kQuantScales,  // q, k, v scales: value, per tensor, head, row, both
  kRotary,
  kSparse,
  kStridedQ,    // q as a slice of a fused projection
  kUnalignedQ,  // with odd strides too
  kDifferentV,  // head_dim_v != head_dim_qk
  kOddHeadDim,  // head dims that are not multiples of 8
  // Blocks, and in half of the caches heads and tokens, with gaps between them; half hold other
  // layers in each block.
  kBlockGap,
  kLargeLogits,  // softmax close to a maximum
  kNewKeys,      // the rows' own keys from tensors, while the cache's are NaN
  kAlibiRows,    // ALiBi slopes of each table row's own
  kQHeadScales,  // a scale for each q head
  kCustomMask,   // packed masks of any pattern, in some rows
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

// "tail window ...".
std::string ToString(const FeatureSet& features);

// Absent values are drawn.
struct FixtureOptions {
  uint64_t seed = 0;
  // kNewKeys must be requested: a caller that does not read the new keys finds NaN.
  FeatureSet allowed = FeatureSet::All().Without({Feature::kNewKeys});
  FeatureSet required = {};  // drawn regardless of `allowed`, unless another one excludes it
  int max_rows = 6;
  int max_query_len = 12;
  int min_seq_len = 1;  // minimum number of keys of a row with keys
  int max_seq_len = 80;
  std::optional<DType> q_dtype = {};   // any but float64; drawn: float32, float16, bfloat16
  std::optional<DType> kv_dtype = {};  // any but float64; of ragged fixtures q's, or fp8 if:
  // Ragged fixtures may have k and v in fp8, and scales of them, which the caller passes on.
  bool quantised_ragged = false;
  std::optional<KvMemoryLayout> layout = {};
  std::optional<int> k_chunk = {};  // of kKPacked: 0 (16 bytes), 4 or 8 dims; divides head_dim_qk
  std::optional<int> block_size = {};
  std::optional<int> num_kv_heads = {};
  std::optional<int> group_size = {};
  std::optional<int> head_dim_qk = {};
  std::optional<int> head_dim_v = {};
};

// Draws the features of one fixture: some of the allowed ones and every required one, without those
// that others exclude.
FeatureSet DrawFeatures(const FixtureOptions& options, Random& random);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_FIXTURE_OPTIONS_H_
