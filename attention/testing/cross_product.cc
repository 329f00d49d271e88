#include "reprise/attention/testing/cross_product.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "reprise/attention/testing/kv_memory.h"
#include "reprise/attention/testing/pairwise.h"
#include "reprise/attention/testing/random.h"

namespace reprise {
namespace {

constexpr int kNumSwitches = static_cast<int>(Feature::kNumFeatures);

// The fields that follow the feature switches.
enum Field {
  kQType,
  kKvType,
  kLayout,
  kBlockSize,
  kKvHeads,
  kGroup,
  kDims,
  kLatentDims,
  kQueryLen,
  kSeqLen,
  kOut,
  kOutGap,
  kSchedule,
  kSms,
  kKeys,
  kTier,
  kNumFields,
};

struct Dims {
  int qk;
  int v;
};

constexpr DType kQTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFp8E4M3,
                             DType::kFp8E5M2};
// The dtype of q, an fp8 dtype, or another dtype that the MMA dtype can represent.
enum class KvType { kSame, kE4M3, kE5M2, kOther };
constexpr KvType kKvTypes[] = {KvType::kSame, KvType::kE4M3, KvType::kE5M2, KvType::kOther};
constexpr KvMemoryLayout kLayouts[] = {
    KvMemoryLayout::kNhd,       KvMemoryLayout::kHnd,    KvMemoryLayout::kPackedNhd,
    KvMemoryLayout::kPackedHnd, KvMemoryLayout::kDiffKv, KvMemoryLayout::kDiffKvHnd,
    KvMemoryLayout::kKPacked,   KvMemoryLayout::kMla,    KvMemoryLayout::kMlaParts};
constexpr int kBlockSizes[] = {1, 3, 8, 16, 32, 64};
constexpr int kKvHeadCounts[] = {1, 2, 3};
constexpr int kGroups[] = {1, 4, 5, 7, 16, 70};
// The head dims of vLLM's PagedAttention, head dims that are no multiple of 8, large head dims, and
// K and V of different sizes.
constexpr Dims kDimChoices[] = {{32, 32},   {64, 64},   {80, 80},   {96, 96},   {112, 112},
                                {120, 120}, {128, 128}, {192, 192}, {256, 256}, {192, 128},
                                {64, 128},  {34, 34},   {20, 5},    {512, 512}, {320, 320},
                                {384, 512}, {500, 260}};
constexpr Dims kLatentDimChoices[] = {{576, 512}, {288, 256}, {320, 256}, {64, 32}, {546, 496}};
constexpr int kQueryLens[] = {1, 4, 12, 40, 150};
constexpr int kSeqLens[] = {20, 90, 300, 700};
// The last two have a scale in memory.
enum class Out {
  kProducts,
  kFloat32,
  kE4M3,
  kE5M2Scaled,
  kE4M3Blocks,
  kE5M2Blocks,
  kE4M3InMemory,
  kE5M2InMemory
};
constexpr Out kOuts[] = {Out::kProducts,     Out::kFloat32,     Out::kE4M3,
                         Out::kE5M2Scaled,   Out::kE4M3Blocks,  Out::kE5M2Blocks,
                         Out::kE4M3InMemory, Out::kE5M2InMemory};
constexpr int kOutGaps[] = {0, 4, 3};
enum class Schedule { kBalanced, kDeterministic, kShared, kSharedInSmallTiles };
constexpr Schedule kSchedules[] = {Schedule::kBalanced, Schedule::kDeterministic, Schedule::kShared,
                                   Schedule::kSharedInSmallTiles};
constexpr int kSmCounts[] = {1, 3, 132};
constexpr KeySource kKeySources[] = {KeySource::kPaged, KeySource::kPaged, KeySource::kRagged};

constexpr int kTiers[] = {1, 2};

// Head dims with tuned kernels that are rare among the choices above.
constexpr Dims kTunedDims[] = {{96, 96}, {192, 128}, {256, 256}};

// The choices of each field in a space, as indices into the arrays above.
class FieldChoices {
 public:
  explicit FieldChoices(CrossProductSpace space) {
    choices_.assign(kNumSwitches, {0, 1});
    // The sizes are separate fields.
    Fix(Feature::kDifferentV);
    Fix(Feature::kOddHeadDim);
    choices_.resize(kNumSwitches + kNumFields);
    const auto any = [](const auto&) { return true; };
    Take(kQType, kQTypes, any);
    Take(kKvType, kKvTypes, any);
    Take(kLayout, kLayouts, any);
    Take(kBlockSize, kBlockSizes, any);
    Take(kKvHeads, kKvHeadCounts, any);
    Take(kGroup, kGroups, any);
    Take(kDims, kDimChoices, any);
    Take(kLatentDims, kLatentDimChoices, any);
    Take(kQueryLen, kQueryLens, [](int len) { return len < 100; });
    Take(kSeqLen, kSeqLens, [](int len) { return len < 500; });
    Take(kOut, kOuts, any);
    Take(kOutGap, kOutGaps, any);
    Take(kSchedule, kSchedules, any);
    Take(kSms, kSmCounts, any);
    Take(kKeys, kKeySources, any);
    Take(kTier, kTiers, [](int tier) { return tier == 2; });
    if (space == CrossProductSpace::kDirect) KeepDirect();
    if (space == CrossProductSpace::kFp8) KeepFp8();
    if (space == CrossProductSpace::kCudaCores) KeepCudaCores();
  }

  std::vector<int> NumChoices() const {
    std::vector<int> counts;
    for (const std::vector<int>& of_field : choices_) counts.push_back(std::ssize(of_field));
    return counts;
  }

  // Maps indices into the space's choices to indices into the arrays.
  std::vector<int> Places(const std::vector<int>& row) const {
    std::vector<int> places;
    for (size_t i = 0; i < row.size(); ++i) places.push_back(choices_[i][row[i]]);
    return places;
  }

 private:
  void Fix(Feature feature) { choices_[static_cast<int>(feature)] = {0}; }

  template <typename T, size_t kSize, typename Keep>
  void Take(Field field, const T (&all)[kSize], const Keep& keep) {
    std::vector<int>& taken = choices_[kNumSwitches + field];
    taken.clear();
    for (size_t i = 0; i < kSize; ++i) {
      if (keep(all[i])) taken.push_back(static_cast<int>(i));
    }
  }

  // Restricts the space to keys and values that can be copied in chunks of `size` elements. Adds
  // tier 1 and longer rows.
  void KeepChunks(int size) {
    Fix(Feature::kNewKeys);
    Fix(Feature::kRotary);
    const auto has_chunks = [size](const Dims& dims) {
      return dims.qk % size == 0 && dims.v % size == 0;
    };
    Take(kLayout, kLayouts, [](KvMemoryLayout layout) {
      return layout != KvMemoryLayout::kKPacked && layout != KvMemoryLayout::kMlaParts;
    });
    Take(kDims, kDimChoices, has_chunks);
    Take(kLatentDims, kLatentDimChoices, has_chunks);
    const auto any = [](int) { return true; };
    Take(kTier, kTiers, any);
    Take(kQueryLen, kQueryLens, any);
    Take(kSeqLen, kSeqLens, any);
  }

  void KeepDirect() {
    KeepChunks(8);
    Take(kQType, kQTypes,
         [](DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; });
    Take(kKvType, kKvTypes, [](KvType type) { return type == KvType::kSame; });
  }

  void KeepFp8() {
    KeepChunks(16);
    Take(kQType, kQTypes, [](DType dtype) { return dtype != DType::kFloat32; });
    Take(kKvType, kKvTypes,
         [](KvType type) { return type == KvType::kE4M3 || type == KvType::kE5M2; });
  }

  void KeepCudaCores() {
    Fix(Feature::kNewKeys);  // new keys have the MMA dtype, which is never float32 for such q
    Take(kQType, kQTypes, [](DType dtype) { return dtype != DType::kFloat32; });
  }

  std::vector<std::vector<int>> choices_;
};

DType KvTypeOf(DType q_dtype, KvType kind, Random& random) {
  switch (kind) {
    case KvType::kE4M3:
      return DType::kFp8E4M3;
    case KvType::kE5M2:
      return DType::kFp8E5M2;
    case KvType::kOther:
      if (q_dtype == DType::kFloat32 || IsFp8(q_dtype)) {
        return random.Pick({DType::kFloat16, DType::kBFloat16});
      }
      return q_dtype;
    case KvType::kSame:
      break;
  }
  return q_dtype;
}

DType ProductsOf(DType q_dtype, DType kv_dtype) {
  if (!IsFp8(q_dtype)) return q_dtype;
  return kv_dtype == DType::kFloat16 ? kv_dtype : DType::kBFloat16;
}

// Gives access to the choices of one row.
class Row {
 public:
  explicit Row(const std::vector<int>& choices) : choices_(choices) {}

  bool Has(Feature feature) const { return choices_[static_cast<int>(feature)] == 1; }
  template <typename T, size_t kSize>
  const T& Of(Field field, const T (&choices)[kSize]) const {
    return choices[choices_[kNumSwitches + field]];
  }

 private:
  const std::vector<int>& choices_;
};

// `favours_tuned` is the result of FavoursTunedKernels().
void TakeShape(const Row& row, bool favours_tuned, Random& random, FixtureOptions& options) {
  options.q_dtype = row.Of(kQType, kQTypes);
  options.kv_dtype = KvTypeOf(*options.q_dtype, row.Of(kKvType, kKvTypes), random);
  options.layout = row.Of(kLayout, kLayouts);
  options.block_size = row.Of(kBlockSize, kBlockSizes);
  options.num_kv_heads = row.Of(kKvHeads, kKvHeadCounts);
  options.group_size = row.Of(kGroup, kGroups);
  const bool is_latent = IsLatent(*options.layout);
  Dims dims = is_latent ? row.Of(kLatentDims, kLatentDimChoices) : row.Of(kDims, kDimChoices);
  const bool is_tuned = favours_tuned && !is_latent && random.OneIn(3);
  if (is_tuned) dims = kTunedDims[random.Int(0, static_cast<int>(std::size(kTunedDims)) - 1)];
  options.head_dim_qk = dims.qk;
  options.head_dim_v = dims.v;
  if (options.layout == KvMemoryLayout::kKPacked) {
    options.k_chunk = random.Pick({0, 4, 8});
    if (dims.qk % 16 != 0) options.layout = KvMemoryLayout::kHnd;  // K-packed chunks must be whole
  }
  const bool is_packed =
      options.layout == KvMemoryLayout::kPackedNhd || options.layout == KvMemoryLayout::kPackedHnd;
  if (is_packed) options.head_dim_v = dims.qk;
  options.max_rows = 5;
  options.max_query_len = is_tuned ? 40 : row.Of(kQueryLen, kQueryLens);
  options.max_seq_len = row.Of(kSeqLen, kSeqLens);
  // The reference is too slow for cases that are large in every field.
  const bool is_large = dims.qk > 128 || *options.group_size > 8;
  if (is_large) {
    options.num_kv_heads = 1;
    // Up to 256 dims, allows more queries than a decode tile has.
    const bool is_small = dims.qk <= 256 && dims.v <= 256 && *options.group_size <= 8;
    options.max_query_len = std::min(options.max_query_len, is_small ? 40 : 8);
    options.max_rows = 3;
  }
  if (options.max_query_len > 100 || options.max_seq_len > 500) {
    options.num_kv_heads = 1;
    options.max_rows = 2;
  }
  // Long enough for a shared prefix.
  if (row.Has(Feature::kCommonPrefix) && options.max_seq_len >= 300) options.min_seq_len = 130;
}

OutputRounding OutOf(Out kind, DType products, int head_dim_v, Random& random) {
  switch (kind) {
    case Out::kProducts:
      return {.dtype = products};
    case Out::kFloat32:
      return {.dtype = DType::kFloat32};
    case Out::kE4M3:
    case Out::kE4M3InMemory:
      return {.dtype = DType::kFp8E4M3, .scale = 0.0078125f};
    case Out::kE5M2Scaled:
    case Out::kE5M2InMemory:
      return {.dtype = DType::kFp8E5M2, .scale = random.Pick({0.02f, 1.0f})};
    case Out::kE4M3Blocks:
    case Out::kE5M2Blocks:
      break;
  }
  const DType dtype = kind == Out::kE4M3Blocks ? DType::kFp8E4M3 : DType::kFp8E5M2;
  int block = 4 * random.Pick({1, 4, 8, 32});
  while (block > 4 && head_dim_v % block != 0) block -= 4;
  if (head_dim_v % block != 0) return {.dtype = dtype, .scale = 0.0078125f};
  return {.dtype = dtype, .block = block};
}

// Whether to omit features that only the general kernels support. True for most cases that tuned
// kernels could serve: otherwise each tuned kernel would have few cases.
bool FavoursTunedKernels(const Row& row, CrossProductSpace space, Random& random) {
  const bool is_direct = space == CrossProductSpace::kDirect || space == CrossProductSpace::kFp8;
  return is_direct && row.Of(kTier, kTiers) == 2 && !random.OneIn(4);
}

CrossProductCase CaseOf(const Row& row, CrossProductSpace space, Random& random) {
  CrossProductCase made;
  made.max_tier = row.Of(kTier, kTiers);
  made.keys = row.Of(kKeys, kKeySources);
  FixtureOptions& options = made.fixture;
  options.seed = random.Bits();
  options.allowed = {};
  for (int i = 0; i < kNumSwitches; ++i) {
    const auto feature = static_cast<Feature>(i);
    if (row.Has(feature)) options.required.Add(feature);
  }
  // These features exclude each other. Keeps one of them at random.
  constexpr Feature kExclusive[] = {Feature::kTail, Feature::kContextParallel,
                                    Feature::kCustomMask};
  int num_kept = 0;
  Feature kept = Feature::kTail;
  for (const Feature feature : kExclusive) {
    if (!row.Has(feature)) continue;
    const bool keeps = random.OneIn(++num_kept);
    if (num_kept > 1) options.required.Remove(keeps ? kept : feature);
    if (keeps) kept = feature;
  }
  const bool favours_tuned = FavoursTunedKernels(row, space, random);
  if (favours_tuned) {
    for (const Feature rare : {Feature::kCustomMask, Feature::kQHeadScales, Feature::kAlibiRows}) {
      options.required.Remove(rare);
    }
  }
  TakeShape(row, favours_tuned, random, options);
  const bool is_ragged = made.keys == KeySource::kRagged;
  const bool is_latent = IsLatent(*options.layout) && *options.head_dim_qk > 256;
  if (is_ragged && is_latent) made.keys = KeySource::kPaged;
  if (made.keys == KeySource::kRagged) {
    options.quantised_ragged = true;
    if (!IsFp8(*options.kv_dtype)) options.kv_dtype = options.q_dtype;
  }

  made.products = ProductsOf(*options.q_dtype, *options.kv_dtype);
  const Out out = row.Of(kOut, kOuts);
  made.out = OutOf(out, made.products, *options.head_dim_v, random);
  if (out == Out::kE4M3InMemory || out == Out::kE5M2InMemory) {
    made.second_out_scale = random.Pick({0.0625f, 0.1875f});
  }
  if (space == CrossProductSpace::kCudaCores) {
    made.products = DType::kFloat32;
    made.asked_products = DType::kFloat32;
  }
  made.num_extra_tokens = random.Pick({0, 0, 3});
  made.out_gap = row.Of(kOutGap, kOutGaps);
  made.num_sms = row.Of(kSms, kSmCounts);
  const Schedule schedule =
      favours_tuned && random.OneIn(2) ? Schedule::kBalanced : row.Of(kSchedule, kSchedules);
  if (schedule == Schedule::kDeterministic) {
    made.mode = TileScheduleMode::kDeterministic;
    made.max_splits = random.Pick({1, 2, 5, kMaxDeterministicSplits});
  }
  if (schedule == Schedule::kShared || schedule == Schedule::kSharedInSmallTiles) {
    made.shared_prefix = SharedPrefix::kTaken;
  }
  if (schedule == Schedule::kSharedInSmallTiles) made.shared_tiles = SharedTiles::kSmall;
  return made;
}

}  // namespace

OutputRounding CrossProductCase::second_out() const {
  OutputRounding second = out;
  if (second_out_scale) second.scale = *second_out_scale;
  return second;
}

std::vector<CrossProductCase> CrossProductCases(uint64_t seed, CrossProductSpace space) {
  Random random(seed);
  const FieldChoices fields(space);
  std::vector<CrossProductCase> cases;
  for (const std::vector<int>& choices : PairwiseRows(fields.NumChoices(), random)) {
    const std::vector<int> places = fields.Places(choices);
    cases.push_back(CaseOf(Row(places), space, random));
  }
  return cases;
}

}  // namespace reprise
