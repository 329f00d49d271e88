#include "reprise/runner/testing/logits_cases.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <vector>

#include "reprise/base/element_access.h"

namespace reprise {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <typename T>
T Pick(std::mt19937& random, std::initializer_list<T> values) {
  return *(values.begin() + random() % values.size());
}

int Int(std::mt19937& random, int least, int most) {
  return std::uniform_int_distribution<int>(least, most)(random);
}

bool Happens(std::mt19937& random, double probability) {
  return std::uniform_real_distribution<double>(0, 1)(random) < probability;
}

// Draws an id from [0, size), or, with probability `hostility`, one that may be out of range.
int32_t DrawId(std::mt19937& random, int size, double hostility) {
  if (size == 0 || Happens(random, hostility)) {
    return Pick<int32_t>(random, {-1, -2, size, size + 1, 1 << 30, std::numeric_limits<int>::min(),
                                  std::numeric_limits<int>::max()});
  }
  return Int(random, 0, size - 1);
}

// Arguments of operations are pointers to const if the operation only reads them.
template <typename T>
T* Writable(const T* array) {
  return const_cast<T*>(array);
}

int64_t Stride(const LogitsShape& shape) { return int64_t{shape.vocab_size} + shape.gap; }

void* CarveLogits(const LogitsShape& shape, const char* name, ArrayCarver& carver) {
  const int64_t size = SizeOf(shape.dtype);
  return carver.Take<std::byte>(name, (shape.num_rows * Stride(shape) + shape.offset) * size) +
         shape.offset * size;
}

LogitsSlots CarveSlots(const LogitsShape& shape, ArrayCarver& carver) {
  LogitsSlots slots;
  slots.num_slots = shape.num_slots;
  slots.max_biases = shape.max_biases;
  slots.vocab_size = shape.vocab_size;
  slots.params = carver.Take<LogitsParams>("params", shape.num_slots);
  if (shape.max_biases > 0) {
    slots.biases = carver.Take<LogitBias>("biases", int64_t{shape.num_slots} * shape.max_biases);
  }
  if (shape.has_counts) {
    slots.counts =
        carver.Take<TokenCount>("counts", shape.num_slots * TokenCountStride(shape.vocab_size));
  }
  return slots;
}

LogitsParams DrawParams(std::mt19937& random, int max_biases, double hostility) {
  LogitsParams params;
  if (Happens(random, 0.5)) params.repetition_penalty = Pick(random, {0.5f, 1.1f, 1.7f, 3.0f});
  if (Happens(random, 0.3)) params.presence_penalty = Pick(random, {-2.0f, 0.3f, 1.9f});
  if (Happens(random, 0.3)) params.frequency_penalty = Pick(random, {-0.7f, 0.1f, 2.0f});
  if (Happens(random, 0.5)) params.num_biases = Int(random, 0, max_biases);
  if (Happens(random, 0.6)) params.num_log_probs = Int(random, 0, kMaxTopLogProbs);
  if (Happens(random, 0.6)) params.num_known_log_probs = Int(random, 0, kMaxTopLogProbs);
  if (Happens(random, hostility)) {
    params.repetition_penalty = Pick(random, {0.0f, -1.0f, kNan, kInfinity, 3e38f});
  }
  if (Happens(random, hostility)) params.frequency_penalty = Pick(random, {kNan, -3e38f});
  if (Happens(random, hostility)) params.num_biases = DrawId(random, max_biases, 1);
  if (Happens(random, hostility)) params.num_log_probs = DrawId(random, 3, 1);
  return params;
}

LogitBias DrawBias(std::mt19937& random, int vocab_size, double hostility) {
  LogitBias bias = {DrawId(random, vocab_size, hostility),
                    std::uniform_real_distribution<float>(-10, 10)(random)};
  if (Happens(random, 0.1)) bias.bias = -kInfinity;
  if (Happens(random, hostility)) bias.bias = Pick(random, {kInfinity, kNan, 3e38f});
  return bias;
}

void DrawSlots(std::mt19937& random, double hostility, const LogitsSlots& slots) {
  for (int slot = 0; slot < slots.num_slots; ++slot) {
    // A large share of the slots has the default.
    slots.params[slot] =
        Happens(random, 0.3) ? LogitsParams() : DrawParams(random, slots.max_biases, hostility);
    for (int i = 0; i < slots.max_biases; ++i) {
      slots.biases_of(slot)[i] = DrawBias(random, slots.vocab_size, hostility);
    }
    if (slots.counts == nullptr) continue;
    for (int64_t v = 0; v < TokenCountStride(slots.vocab_size); ++v) {
      // Uses one random number per token, because there are many tokens.
      const uint32_t bits = static_cast<uint32_t>(random());
      TokenCount count = 0;
      if (bits % 20 == 0) count = WithPromptToken(count);
      if (bits / 20 % 20 == 0) count |= static_cast<TokenCount>(1 + bits / 400 % 40);
      if (bits / 400 % 1000 == 0) count |= kMaxOutputCount;
      slots.counts_of(slot)[v] = count;
    }
  }
}

// Draws distinct slots, or -1; with probability `hostility`, slots out of range.
void DrawSampleSlots(std::mt19937& random, const LogitsShape& shape, double hostility,
                     const int32_t* sample_slot) {
  std::vector<int32_t> slots(shape.num_slots);
  std::iota(slots.begin(), slots.end(), 0);
  std::shuffle(slots.begin(), slots.end(), random);
  for (int row = 0; row < shape.num_rows; ++row) {
    int32_t slot = row < shape.num_slots ? slots[row] : -1;
    if (Happens(random, 0.1)) slot = -1;
    if (Happens(random, hostility)) slot = DrawId(random, shape.num_slots, 1);
    Writable(sample_slot)[row] = slot;
  }
}

void DrawLogits(std::mt19937& random, const LogitsShape& shape, double hostility,
                const void* logits) {
  std::normal_distribution<float> normal(0, 4);
  for (int row = 0; row < shape.num_rows; ++row) {
    const bool has_ties = Happens(random, 0.3);
    // In these rows all logits are equal; if they are NaN or -inf, no token can be chosen.
    const bool is_uniform = Happens(random, hostility);
    const float value = Pick(random, {kNan, -kInfinity, kInfinity, 0.0f, 3e38f});
    for (int v = 0; v < shape.vocab_size; ++v) {
      float x = normal(random);
      if (has_ties) x = std::round(x);
      if (Happens(random, hostility / 4)) {
        x = Pick(random, {kNan, -kInfinity, kInfinity, -0.0f, 1e-40f, 6e4f, -3e38f});
      }
      StoreElement(const_cast<void*>(logits), shape.dtype, row * Stride(shape) + v,
                   is_uniform ? value : x);
    }
  }
}

// Draws masks that allow no token, all tokens, or a random subset that may have few or most tokens.
void DrawMasks(std::mt19937& random, const LogitsProcessorsArgs& args) {
  const int64_t num_words = MaskWords(args.slots.vocab_size);
  for (int mask = 0; mask < args.num_masks; ++mask) {
    const double allowed = Pick(random, {0.0, 0.001, 0.5, 0.999, 1.0});
    for (int64_t w = 0; w < num_words; ++w) {
      uint32_t word = 0;
      for (int bit = 0; bit < 32; ++bit) {
        word |= static_cast<uint32_t>(Happens(random, allowed)) << bit;
      }
      Writable(args.allowed_tokens)[mask * args.mask_stride + w] = static_cast<int32_t>(word);
    }
  }
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const LogitsShape& shape) {
  return out << shape.dtype << " " << shape.num_rows << " x " << shape.vocab_size << ", "
             << shape.num_slots << " slots, gap " << shape.gap << ", offset " << shape.offset
             << ", max_biases " << shape.max_biases << (shape.has_counts ? "" : ", no counts")
             << ", " << shape.num_masks << " masks" << (shape.has_mask_map ? "" : " by row")
             << ", max_top " << shape.max_top;
}

LogitsShape DrawLogitsShape(std::mt19937& random) {
  LogitsShape shape;
  shape.dtype = Pick(random, {DType::kFloat32, DType::kFloat16, DType::kBFloat16});
  shape.num_rows = Int(random, 1, 12);
  shape.num_slots = Int(random, 1, 14);
  shape.vocab_size = Pick(random, {1, 2, 7, 31, 32, 33, 64, 1000, 4095, 4096, 4097,
                                   Int(random, 1, 300), Int(random, 4000, 10000)});
  // At least half of the shapes have strides that are multiples of 8 elements.
  shape.gap = Happens(random, 0.5) ? (8 - shape.vocab_size % 8) % 8 + 8 * Int(random, 0, 1)
                                   : Int(random, 0, 9);
  shape.offset = Happens(random, 0.7) ? 0 : Int(random, 1, 3);
  shape.max_biases = Pick(random, {0, 1, 5, 40});
  shape.has_counts = Happens(random, 0.8);
  shape.num_masks = Int(random, 0, 4);
  shape.has_mask_map = Happens(random, 0.7);
  shape.max_top = Pick(random, {0, 1, 5, kMaxTopLogProbs});
  shape.num_joins = Int(random, 1, shape.num_slots);
  shape.num_listed_biases = Int(random, 0, 60);
  shape.num_listed_tokens = Int(random, 0, 3000);
  shape.has_row_tokens = Happens(random, 0.5);
  return shape;
}

JoinLogitsArgs CarveJoinLogits(const LogitsShape& shape, ArrayCarver& carver) {
  JoinLogitsArgs args;
  args.num_joins = shape.num_joins;
  args.num_biases = shape.num_listed_biases;
  args.num_tokens = shape.num_listed_tokens;
  args.joins = carver.Take<LogitsJoin>("joins", shape.num_joins);
  args.biases = carver.Take<LogitBias>("listed biases", shape.num_listed_biases);
  args.tokens = carver.Take<int32_t>("listed tokens", shape.num_listed_tokens);
  args.slots = CarveSlots(shape, carver);
  return args;
}

CountTokensArgs CarveCountTokens(const LogitsShape& shape, ArrayCarver& carver) {
  CountTokensArgs args;
  args.num_rows = shape.num_rows;
  args.sample_slot = carver.Take<int32_t>("sample_slot", shape.num_rows);
  args.last_token = carver.Take<int32_t>("last_token", shape.num_slots);
  args.slots = CarveSlots(shape, carver);
  return args;
}

LogitsProcessorsArgs CarveLogitsProcessors(const LogitsShape& shape, ArrayCarver& carver) {
  LogitsProcessorsArgs args;
  args.dtype = shape.dtype;
  args.logits = CarveLogits(shape, "logits", carver);
  args.logits_stride = Stride(shape);
  args.num_rows = shape.num_rows;
  args.sample_slot = carver.Take<int32_t>("sample_slot", shape.num_rows);
  args.slots = CarveSlots(shape, carver);
  args.num_masks = shape.num_masks;
  args.mask_stride = MaskWords(shape.vocab_size) + shape.gap % 3;
  if (shape.num_masks > 0) {
    args.allowed_tokens =
        carver.Take<int32_t>("allowed_tokens", shape.num_masks * args.mask_stride);
    if (shape.has_mask_map) {
      args.mask_of_row = carver.Take<int32_t>("mask_of_row", shape.num_rows);
    }
  }
  return args;
}

RawLogitsArgs CarveRawLogits(const LogitsShape& shape, ArrayCarver& carver) {
  RawLogitsArgs args;
  args.dtype = shape.dtype;
  args.logits = CarveLogits(shape, "logits", carver);
  args.logits_stride = Stride(shape);
  args.raw = CarveLogits(shape, "raw", carver);
  args.raw_stride = Stride(shape);
  args.num_rows = shape.num_rows;
  args.vocab_size = shape.vocab_size;
  args.sample_slot = carver.Take<int32_t>("sample_slot", shape.num_rows);
  args.params = carver.Take<LogitsParams>("params", shape.num_slots);
  args.num_slots = shape.num_slots;
  return args;
}

LogProbsArgs CarveLogProbs(const LogitsShape& shape, ArrayCarver& carver) {
  LogProbsArgs args;
  args.dtype = shape.dtype;
  args.logits = CarveLogits(shape, "logits", carver);
  args.logits_stride = Stride(shape);
  args.num_rows = shape.num_rows;
  args.vocab_size = shape.vocab_size;
  args.sample_slot = carver.Take<int32_t>("sample_slot", shape.num_rows);
  args.params = carver.Take<LogitsParams>("params", shape.num_slots);
  args.tokens = carver.Take<int32_t>("tokens", shape.num_slots);
  if (shape.has_row_tokens) args.row_tokens = carver.Take<int32_t>("row_tokens", shape.num_rows);
  args.num_slots = shape.num_slots;
  args.max_top = shape.max_top;
  args.out.token_log_probs = carver.Take<float>("token_log_probs", shape.num_rows);
  args.out.token_ranks = carver.Take<int32_t>("token_ranks", shape.num_rows);
  if (shape.max_top > 0) {
    const int64_t num_top = int64_t{shape.num_rows} * shape.max_top;
    args.out.top_tokens = carver.Take<int32_t>("top_tokens", num_top);
    args.out.top_log_probs = carver.Take<float>("top_log_probs", num_top);
  }
  return args;
}

void DrawJoinLogits(std::mt19937& random, const LogitsShape& shape, double hostility,
                    JoinLogitsArgs& args) {
  DrawSlots(random, 0, args.slots);
  std::vector<int32_t> slots(shape.num_slots);
  std::iota(slots.begin(), slots.end(), 0);
  std::shuffle(slots.begin(), slots.end(), random);
  for (int j = 0; j < shape.num_joins; ++j) {
    LogitsJoin join;
    join.slot = Happens(random, hostility) ? DrawId(random, shape.num_slots, 1) : slots[j];
    // A hostile slot must not equal the slot of another join.
    if (args.slots.has(join.slot)) join.slot = slots[j];
    join.params = DrawParams(random, shape.max_biases, hostility);
    join.first_bias = DrawId(random, shape.num_listed_biases + 1, hostility);
    join.first_token = DrawId(random, shape.num_listed_tokens + 1, hostility);
    const int room = std::max(0, shape.num_listed_tokens - std::max(0, join.first_token));
    join.num_prompt_tokens = DrawId(random, room + 1, hostility);
    join.num_output_tokens =
        DrawId(random, std::max(0, room - std::max(0, join.num_prompt_tokens)) + 1, hostility);
    Writable(args.joins)[j] = join;
  }
  for (int i = 0; i < shape.num_listed_biases; ++i) {
    Writable(args.biases)[i] = DrawBias(random, shape.vocab_size, hostility);
  }
  // Few distinct tokens, so that they repeat.
  const int few = std::min(shape.vocab_size, 20);
  for (int i = 0; i < shape.num_listed_tokens; ++i) {
    Writable(args.tokens)[i] =
        DrawId(random, Happens(random, 0.5) ? few : shape.vocab_size, hostility);
  }
}

void DrawCountTokens(std::mt19937& random, const LogitsShape& shape, double hostility,
                     CountTokensArgs& args) {
  DrawSlots(random, hostility, args.slots);
  DrawSampleSlots(random, shape, hostility, args.sample_slot);
  for (int slot = 0; slot < shape.num_slots; ++slot) {
    Writable(args.last_token)[slot] = DrawId(random, shape.vocab_size, hostility);
  }
}

void DrawLogitsProcessors(std::mt19937& random, const LogitsShape& shape, double hostility,
                          LogitsProcessorsArgs& args) {
  DrawLogits(random, shape, hostility, args.logits);
  DrawSlots(random, hostility, args.slots);
  DrawSampleSlots(random, shape, hostility, args.sample_slot);
  DrawMasks(random, args);
  if (args.mask_of_row == nullptr) return;
  for (int row = 0; row < shape.num_rows; ++row) {
    Writable(args.mask_of_row)[row] =
        Happens(random, 0.4) ? -1 : DrawId(random, shape.num_masks, hostility);
  }
}

void DrawRawLogits(std::mt19937& random, const LogitsShape& shape, double hostility,
                   RawLogitsArgs& args) {
  DrawLogits(random, shape, hostility, args.logits);
  DrawSampleSlots(random, shape, hostility, args.sample_slot);
  for (int slot = 0; slot < shape.num_slots; ++slot) {
    Writable(args.params)[slot] = DrawParams(random, shape.max_biases, hostility);
  }
}

void DrawLogProbs(std::mt19937& random, const LogitsShape& shape, double hostility,
                  LogProbsArgs& args) {
  DrawLogits(random, shape, hostility, args.logits);
  DrawSampleSlots(random, shape, hostility, args.sample_slot);
  for (int slot = 0; slot < shape.num_slots; ++slot) {
    Writable(args.params)[slot] = DrawParams(random, shape.max_biases, hostility);
    Writable(args.tokens)[slot] = DrawId(random, shape.vocab_size, hostility);
  }
  for (int row = 0; shape.has_row_tokens && row < shape.num_rows; ++row) {
    Writable(args.row_tokens)[row] = DrawId(random, shape.vocab_size, hostility);
  }
}

}  // namespace reprise
