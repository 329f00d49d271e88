#include "reprise/runner/sampling/shard_sampling.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/sampling/kept_tokens.h"

namespace reprise {
namespace {

// Returns the largest of the keys k >= `low` for which `weight`, summed over the keys >= k, reaches
// `target`, or 0 if no key does.
template <typename Weight>
uint32_t LargestThreshold(const ShardKeys& keys, uint32_t low, uint64_t target, Weight weight) {
  std::vector<int> order;
  for (int i = 0; i < keys.size(); ++i) {
    if (keys.KeyOf(i) != 0 && keys.KeyOf(i) >= low) order.push_back(i);
  }
  std::sort(order.begin(), order.end(),
            [&](int a, int b) { return keys.KeyOf(a) > keys.KeyOf(b); });
  uint64_t sum = 0;
  for (const int i : order) {
    sum += weight(i);
    if (sum >= target) return keys.KeyOf(i);
  }
  return 0;
}

// Returns KeptThreshold() over the logits of all shards, for parameters that shards support.
uint32_t ThresholdOf(const ShardKeys& keys, float max_logit, const SamplingParams& params,
                     int vocab_size) {
  if (!HasTopK(params, vocab_size)) return 0;
  const uint32_t threshold = LargestThreshold(keys, 0, std::min(params.top_k, keys.num_top),
                                              [&](int i) { return uint64_t{keys.CountOf(i)}; });
  if (!HasTopP(params)) return threshold;
  const auto mass_of = [&](int i) {
    return keys.CountOf(i) *
           MassOf(ScaledDistance(FloatOfKey(keys.KeyOf(i)), max_logit, params.temperature));
  };
  uint64_t total = 0;
  for (int i = 0; i < keys.size(); ++i) {
    if (keys.KeyOf(i) != 0 && keys.KeyOf(i) >= threshold) total += mass_of(i);
  }
  return LargestThreshold(keys, threshold, TopPTarget(params.top_p, total), mass_of);
}

void WriteTop(const float* logits, int size, int num_top, uint32_t* top) {
  std::vector<uint32_t> keys;
  for (int i = 0; i < size; ++i) {
    if (const uint32_t key = OrderKey(logits[i]); key != 0) keys.push_back(key);
  }
  if (static_cast<int>(keys.size()) >= num_top) {
    std::nth_element(keys.begin(), keys.begin() + num_top - 1, keys.end(),
                     std::greater<uint32_t>());
    top[0] = keys[num_top - 1];
    top[1] = static_cast<uint32_t>(std::count(keys.begin(), keys.end(), top[0]));
  }
  uint32_t* next = top + 2;
  for (const uint32_t key : keys) {
    if (key > top[0]) *next++ = key;
  }
}

uint64_t LargestChoice(const float* logits, int size, int32_t first_token) {
  uint64_t best = kNoChoice;
  for (int i = 0; i < size; ++i) {
    const uint32_t key = OrderKey(logits[i]);
    if (key != 0) best = std::max(best, PackChoice(key, first_token + i));
  }
  return best;
}

}  // namespace

absl::Status CheckShardSampling(const ShardSamplingArgs& args) {
  if (args.dtype != DType::kFloat32 && args.dtype != DType::kFloat16 &&
      args.dtype != DType::kBFloat16) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dtype: expected float32, float16 or bfloat16, got ", std::string(DTypeName(args.dtype))));
  }
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.num_rows, 0));
  if (args.num_rows == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("shard_size", args.shard_size, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("vocab_size", args.vocab_size, args.shard_size));
  REPRISE_RETURN_IF_ERROR(
      CheckBetween("first_token", args.first_token, 0, args.vocab_size - args.shard_size));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("logits_stride", args.logits_stride, args.shard_size));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("world", args.world, 1));
  REPRISE_RETURN_IF_ERROR(CheckBetween("num_top", args.num_top, 0, kMaxShardTop));
  REPRISE_RETURN_IF_ERROR(CheckGiven("logits", args.logits));
  REPRISE_RETURN_IF_ERROR(CheckGiven("slots.last_token", args.slots.last_token));
  REPRISE_RETURN_IF_ERROR(CheckGiven("slots.sample_index", args.slots.sample_index));
  REPRISE_RETURN_IF_ERROR(CheckGiven("sample_slot", args.sample_slot));
  if (args.num_top > 0) {
    REPRISE_RETURN_IF_ERROR(CheckGiven("slots.params", args.slots.params));
    REPRISE_RETURN_IF_ERROR(CheckGiven("top", args.top));
    REPRISE_RETURN_IF_ERROR(CheckGiven("all_tops", args.all_tops));
  }
  REPRISE_RETURN_IF_ERROR(CheckGiven("choices", args.choices));
  REPRISE_RETURN_IF_ERROR(CheckGiven("all_choices", args.all_choices));
  return CheckGiven("out", args.out);
}

void ShardTopOnHost(const ShardSamplingArgs& args) {
  if (args.num_top == 0) return;
  std::vector<float> buffer;
  for (int row = 0; row < args.num_rows; ++row) {
    uint32_t* const top = args.top + int64_t{row} * ShardTopWords(args.num_top);
    std::fill(top, top + ShardTopWords(args.num_top), 0);
    const int32_t slot = SampledSlotOf(args, row);
    if (slot == -1) continue;
    const int num_top =
        std::min(ShardTopOf(args.slots.params[slot], args.vocab_size), args.num_top);
    if (num_top == 0) continue;
    WriteTop(FloatRow(args.dtype, args.logits, row * args.logits_stride, args.shard_size, buffer),
             args.shard_size, num_top, top);
  }
}

void ShardChoiceOnHost(const ShardSamplingArgs& args) {
  std::vector<float> buffer;
  for (int row = 0; row < args.num_rows; ++row) {
    args.choices[row] = kNoChoice;
    const int32_t slot = SampledSlotOf(args, row);
    if (slot == -1) continue;
    const float* logits =
        FloatRow(args.dtype, args.logits, row * args.logits_stride, args.shard_size, buffer);
    if (args.num_top == 0 || IsGreedy(args.slots.params[slot])) {
      args.choices[row] = LargestChoice(logits, args.shard_size, args.first_token);
      continue;
    }
    const SamplingParams& params = args.slots.params[slot];
    const ShardKeys keys = ShardKeysOf(args, row);
    uint32_t max_key = 0;
    for (int i = 0; i < keys.size(); ++i) max_key = std::max(max_key, keys.KeyOf(i));
    if (max_key <= kLowestKey) continue;
    const float max_logit = FloatOfKey(max_key);
    const uint32_t threshold = ThresholdOf(keys, max_logit, params, args.vocab_size);
    args.choices[row] = DrawKept(logits, args.shard_size, args.first_token,
                                 WithThreshold(threshold, max_logit, params), params,
                                 args.slots.sample_index[slot]);
  }
}

void ShardTokensOnHost(const ShardSamplingArgs& args) {
  for (int row = 0; row < args.num_rows; ++row) TakeBestChoice(args, row);
}

}  // namespace reprise
