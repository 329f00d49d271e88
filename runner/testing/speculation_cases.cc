#include "reprise/runner/testing/speculation_cases.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "reprise/runner/speculation/speculation_options.h"

namespace reprise {
namespace {

int Between(std::mt19937& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

bool Chance(std::mt19937& random, double p) { return std::bernoulli_distribution(p)(random); }

int64_t HistoryStride(const SpeculationShape& shape) {
  return int64_t{shape.max_positions} + shape.history_gap;
}

SlotState CarveSlots(const SpeculationShape& shape, ArrayCarver& carver) {
  SlotState slots;
  slots.num_slots = shape.num_slots;
  const int64_t stride = HistoryStride(shape);
  slots.history.stride = stride;
  slots.history.tokens =
      carver.Take<int32_t>("slots.history", shape.history_offset + shape.num_slots * stride) +
      shape.history_offset;
  return slots;
}

StepArrays CarveArrays(const SpeculationShape& shape, ArrayCarver& carver) {
  const int rows = shape.num_rows;
  StepArrays arrays;
  arrays.max_rows = rows;
  arrays.max_tokens = shape.max_tokens();
  arrays.token_ids = carver.Take<int32_t>("token_ids", shape.max_tokens());
  arrays.query_start_loc = carver.Take<int32_t>("query_start_loc", rows + 1);
  arrays.context_lens = carver.Take<int32_t>("context_lens", rows);
  arrays.table_row = carver.Take<int32_t>("table_row", rows);
  arrays.num_proposed = carver.Take<int32_t>("num_proposed", rows);
  return arrays;
}

// Draws a text of `size` tokens: random, or a repetition of its beginning.
void DrawText(std::mt19937& random, const SpeculationShape& shape, int size, int32_t* text) {
  const int period = Chance(random, 0.4) ? Between(random, 1, 9) : size + 1;
  for (int i = 0; i < size; ++i) {
    text[i] = i >= period ? text[i - period] : Between(random, 0, shape.vocab_size - 1);
    if (Chance(random, 0.02)) text[i] = -1;
  }
}

// Draws the rows of a step as refill writes them, and the slots before the step.
void DrawStep(std::mt19937& random, const SpeculationShape& shape, const SlotState& slots,
              const StepArrays& arrays) {
  std::vector<int32_t> order(shape.num_slots);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  for (int slot = 0; slot < shape.num_slots; ++slot) {
    DrawText(random, shape, shape.max_positions, slots.history.row(slot));
  }
  std::fill_n(arrays.token_ids, arrays.max_tokens, 0);
  const double num_padded = Chance(random, 0.3) ? 0.8 : 0.1;
  int token = 0;
  for (int r = 0; r < shape.num_rows; ++r) {
    arrays.query_start_loc[r] = token;
    arrays.context_lens[r] = 0;
    arrays.table_row[r] = 0;
    arrays.num_proposed[r] = 0;
    if (Chance(random, num_padded)) continue;
    const int32_t slot = order[r];
    const bool has_drafts = Chance(random, 0.7);
    const int query_len =
        std::min(Between(random, has_drafts ? 2 : 1, 1 + shape.max_drafts), shape.max_positions);
    const int32_t context_len = Chance(random, 0.2)
                                    ? shape.max_positions - query_len
                                    : Between(random, 0, shape.max_positions - query_len);
    arrays.context_lens[r] = context_len;
    arrays.table_row[r] = slot;
    for (int i = 0; i < query_len; ++i) {
      arrays.token_ids[token + i] = Between(random, 0, shape.vocab_size - 1);
    }
    slots.history.row(slot)[context_len] = arrays.token_ids[token];
    if (has_drafts && Chance(random, 0.8)) arrays.num_proposed[r] = query_len - 1;
    token += query_len;
  }
  arrays.query_start_loc[shape.num_rows] = token;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const SpeculationShape& shape) {
  return out << shape.num_rows << " rows, " << shape.num_slots << " slots of "
             << shape.max_positions << " positions, " << shape.max_drafts << " drafts, vocabulary "
             << shape.vocab_size << ", history offset " << shape.history_offset << " gap "
             << shape.history_gap << ", n-grams of " << shape.min_ngram << " to "
             << shape.max_ngram;
}

SpeculationShape DrawSpeculationShape(std::mt19937& random) {
  SpeculationShape shape;
  shape.num_rows = Chance(random, 0.2) ? Between(random, 30, 300) : Between(random, 1, 9);
  shape.num_slots = shape.num_rows + Between(random, 0, 4);
  shape.max_drafts = Chance(random, 0.2) ? 16 : Between(random, 1, 8);
  shape.vocab_size = Chance(random, 0.5) ? Between(random, 1, 5) : 30000;
  const int longest = Chance(random, 0.1) && shape.num_rows < 10 ? 9000 : 200;
  shape.max_positions = Between(random, 20, longest);
  shape.history_offset = Chance(random, 0.3) ? Between(random, 1, 3) : 0;
  // In most shapes all histories have the same alignment.
  shape.history_gap = Chance(random, 0.7) ? 3 - (shape.max_positions + 3) % 4 : 1;
  shape.max_ngram = Chance(random, 0.2) ? kMaxNgram : Between(random, 1, 5);
  shape.min_ngram = Between(random, 1, shape.max_ngram);
  return shape;
}

NgramDraftsArgs CarveNgramDrafts(const SpeculationShape& shape, ArrayCarver& carver) {
  NgramDraftsArgs args;
  args.slots = CarveSlots(shape, carver);
  args.arrays = CarveArrays(shape, carver);
  args.num_rows = shape.num_rows;
  args.min_ngram = shape.min_ngram;
  args.max_ngram = shape.max_ngram;
  return args;
}

void DrawNgramDrafts(std::mt19937& random, const SpeculationShape& shape, NgramDraftsArgs& args) {
  DrawStep(random, shape, args.slots, args.arrays);
  for (int r = 0; r < shape.num_rows; ++r) {
    const int first_token = args.arrays.query_start_loc[r];
    for (int i = 0; i < args.arrays.num_proposed[r]; ++i) {
      args.arrays.token_ids[first_token + 1 + i] = 0;
    }
    // In most rows with drafts, the newest token occurs earlier in the text.
    const int32_t context_len = args.arrays.context_lens[r];
    if (args.arrays.num_proposed[r] == 0 || context_len == 0 || Chance(random, 0.3)) continue;
    const int32_t* history = args.slots.history.row(args.arrays.table_row[r]);
    args.arrays.token_ids[first_token] = history[Between(random, 0, context_len - 1)];
  }
}

}  // namespace reprise
