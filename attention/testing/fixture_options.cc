#include "reprise/attention/testing/fixture_options.h"

#include <string_view>

namespace reprise {
namespace {

constexpr std::string_view kFeatureNames[] = {
    "table_row",    "key_start",     "query_positions", "tail",         "context_parallel",
    "not_causal",   "long_queries",  "common_prefix",   "padded_rows",  "inert_tokens",
    "window",       "softcap",       "alibi",           "sinks",        "scale",
    "quant_scales", "rotary",        "sparse",          "strided_q",    "unaligned_q",
    "different_v",  "odd_head_dim",  "block_gap",       "large_logits", "new_keys",
    "alibi_rows",   "q_head_scales", "custom_mask"};
static_assert(std::size(kFeatureNames) == static_cast<size_t>(Feature::kNumFeatures));

// If both features are present, drops one: the first if only the second is required, otherwise the
// second.
void Exclude(FeatureSet& features, const FeatureSet& required, Feature first, Feature second) {
  if (!features.Has(first) || !features.Has(second)) return;
  const bool keep_second = required.Has(second) && !required.Has(first);
  features.Remove(keep_second ? first : second);
}

}  // namespace

FeatureSet DrawFeatures(const FixtureOptions& options, Random& random) {
  FeatureSet features;
  // Draws batches with few and with many features: batches with few features reveal faults of
  // single pairs.
  const int one_in = random.Pick({2, 4, 8});
  for (int i = 0; i < static_cast<int>(Feature::kNumFeatures); ++i) {
    const auto feature = static_cast<Feature>(i);
    const bool drawn = random.OneIn(one_in);
    if (options.required.Has(feature) || (options.allowed.Has(feature) && drawn)) {
      features.Add(feature);
    }
  }
  Exclude(features, options.required, Feature::kTail, Feature::kContextParallel);
  Exclude(features, options.required, Feature::kTail, Feature::kCustomMask);
  Exclude(features, options.required, Feature::kContextParallel, Feature::kCustomMask);
  if (options.required.Has(Feature::kAlibiRows)) features.Add(Feature::kAlibi);
  if (!features.Has(Feature::kAlibi)) features.Remove(Feature::kAlibiRows);
  if (features.Has(Feature::kUnalignedQ)) features.Add(Feature::kStridedQ);
  return features;
}

std::string ToString(const FeatureSet& features) {
  std::string text;
  for (int i = 0; i < static_cast<int>(Feature::kNumFeatures); ++i) {
    if (!features.Has(static_cast<Feature>(i))) continue;
    text.append(text.empty() ? "" : " ").append(kFeatureNames[i]);
  }
  return text.empty() ? "no features" : text;
}

}  // namespace reprise
