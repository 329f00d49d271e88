#include "reprise/runner/testing/rejection_cases.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <numeric>

#include "reprise/base/element_access.h"
#include "reprise/runner/sampling/sampling_rules.h"

namespace reprise {
namespace {

int Between(std::mt19937& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

bool Chance(std::mt19937& random, double p) { return std::bernoulli_distribution(p)(random); }

int64_t LogitsStride(const RejectionShape& shape) { return shape.vocab_size + shape.logits_gap; }

int NumDraftRows(const RejectionShape& shape) { return shape.num_rows * shape.max_drafts; }

StepArrays CarveArrays(const RejectionShape& shape, ArrayCarver& carver) {
  StepArrays arrays;
  arrays.max_rows = shape.num_rows;
  arrays.max_tokens = shape.max_tokens();
  arrays.max_earlier_logits = shape.num_rows * shape.max_drafts;
  const int logits = arrays.max_tokens;
  arrays.token_ids = carver.Take<int32_t>("token_ids", arrays.max_tokens);
  arrays.query_start_loc = carver.Take<int32_t>("query_start_loc", shape.num_rows + 1);
  arrays.logits_indices = carver.Take<int32_t>("logits_indices", logits);
  arrays.sample_slot = carver.Take<int32_t>("sample_slot", logits);
  arrays.sample_offset = carver.Take<int32_t>("sample_offset", logits);
  arrays.num_proposed = carver.Take<int32_t>("num_proposed", shape.num_rows);
  if (shape.has_draft_logits) {
    arrays.draft_logits = carver.Take<int32_t>("draft_logits", arrays.max_tokens);
  }
  return arrays;
}

const void* TakeLogits(const char* name, const RejectionShape& shape, int64_t rows,
                       ArrayCarver& carver) {
  const int64_t count = rows * LogitsStride(shape);
  if (SizeOf(shape.dtype) == 4) return carver.Take<float>(name, count);
  return carver.Take<uint16_t>(name, count);
}

SamplingParams DrawSampling(std::mt19937& random, int vocab_size) {
  SamplingParams sampling;
  sampling.temperature = Chance(random, 0.1) ? 0.0f : Chance(random, 0.5) ? 1.0f : 0.6f;
  if (Chance(random, 0.3)) sampling.top_k = Between(random, 1, vocab_size);
  if (Chance(random, 0.3)) sampling.top_p = 0.9f;
  if (Chance(random, 0.2)) sampling.min_p = 0.05f;
  sampling.seed = random() * uint64_t{0x100000001};
  return sampling;
}

// Draws rows of logits. Some contain NaN and -infinity. If `near` is given, most rows are close to
// its rows.
void DrawLogits(std::mt19937& random, const RejectionShape& shape, int rows, void* logits,
                const void* near = nullptr) {
  std::normal_distribution<double> normal(0, 2);
  for (int64_t row = 0; row < rows; ++row) {
    const bool is_odd = Chance(random, 0.05);
    const bool is_near = near != nullptr && Chance(random, 0.7);
    for (int64_t i = 0; i < shape.vocab_size; ++i) {
      const int64_t at = row * LogitsStride(shape) + i;
      double value = normal(random);
      if (is_near) value = LoadElement<double>(near, shape.dtype, at) + value / 8;
      if (is_odd && Chance(random, 0.5)) value = Chance(random, 0.5) ? NAN : -INFINITY;
      StoreElement(logits, shape.dtype, at, value);
    }
  }
}

std::vector<float> RowOf(const MarkovModels& models, const std::vector<float>& logits, int last) {
  const auto first = logits.begin() + static_cast<ptrdiff_t>(last) * models.vocab_size;
  return std::vector<float>(first, first + models.vocab_size);
}

// Logits and distributions of the model or of the drafter, by last token.
struct Drawn {
  std::vector<std::vector<float>> rows;
  std::vector<std::vector<double>> kept;
};

Drawn DrawnOf(const MarkovModels& models, const std::vector<float>& logits) {
  Drawn drawn;
  for (int last = 0; last < models.vocab_size; ++last) {
    drawn.rows.push_back(RowOf(models, logits, last));
    drawn.kept.push_back(DistributionAfter(models, logits, last));
  }
  return drawn;
}

// Draws as Sample() does, from the tokens that the definition keeps.
int32_t DrawToken(const Drawn& drawn, int last, const SamplingParams& sampling,
                  int64_t sample_index) {
  const std::vector<float>& row = drawn.rows[last];
  const float largest = *std::max_element(row.begin(), row.end());
  uint64_t best = kNoChoice;
  for (int32_t token = 0; token < static_cast<int32_t>(row.size()); ++token) {
    if (drawn.kept[last][token] == 0) continue;
    const PhiloxBlock bits = RandomBitsOf(sampling, sample_index, token / 4);
    const float distance = ScaledDistance(row[token], largest, sampling.temperature);
    best = std::max(best, DrawChoice(distance, bits.word[token % 4], token));
  }
  return TokenOf(best);
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const RejectionShape& shape) {
  return out << shape.num_rows << " rows of " << shape.max_drafts << " drafts, "
             << DTypeName(shape.dtype) << ", vocabulary " << shape.vocab_size << ", gap "
             << shape.logits_gap << (shape.has_draft_logits ? ", drawn" : ", certain")
             << ", hidden states of " << shape.hidden_bytes << " bytes";
}

RejectionShape DrawRejectionShape(std::mt19937& random) {
  RejectionShape shape;
  const DType dtypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
  shape.dtype = dtypes[Between(random, 0, 2)];
  shape.num_rows = Between(random, 1, 6);
  shape.max_drafts = Between(random, 1, 4);
  shape.vocab_size = Chance(random, 0.3) ? Between(random, 1, 9) : Between(random, 10, 3000);
  if (Chance(random, 0.1)) shape.vocab_size = 20000;
  const int to_16_bytes = (8 - shape.vocab_size % 8) % 8;
  shape.logits_gap = Chance(random, 0.6) ? to_16_bytes : 1;
  shape.has_draft_logits = Chance(random, 0.7);
  shape.hidden_bytes =
      Chance(random, 0.5) ? 16 * Between(random, 1, 600) : 2 * Between(random, 1, 9);
  return shape;
}

RejectDraftsArgs CarveRejectDrafts(const RejectionShape& shape, ArrayCarver& carver) {
  RejectDraftsArgs args;
  args.dtype = shape.dtype;
  args.logits = TakeLogits("logits", shape, shape.max_tokens(), carver);
  args.logits_stride = LogitsStride(shape);
  args.vocab_size = shape.vocab_size;
  if (shape.has_draft_logits) {
    args.draft_logits = TakeLogits("draft logits", shape, NumDraftRows(shape), carver);
    args.draft_logits_stride = LogitsStride(shape);
    args.num_draft_rows = NumDraftRows(shape);
  }
  args.slots.params = carver.Take<SamplingParams>("params", shape.num_rows);
  args.slots.sample_index = carver.Take<int64_t>("sample_index", shape.num_rows);
  args.slots.num_slots = shape.num_rows;
  args.arrays = CarveArrays(shape, carver);
  args.first_row = shape.num_rows;
  args.num_rows = shape.num_rows * shape.max_drafts;
  args.chosen = carver.Take<int32_t>("chosen", shape.max_tokens());
  return args;
}

void DrawRejectDrafts(std::mt19937& random, const RejectionShape& shape, RejectDraftsArgs& args) {
  const StepArrays& arrays = args.arrays;
  DrawLogits(random, shape, shape.max_tokens(), const_cast<void*>(args.logits));
  if (shape.has_draft_logits) {
    DrawLogits(random, shape, NumDraftRows(shape), const_cast<void*>(args.draft_logits),
               args.logits);
  }
  for (int slot = 0; slot < shape.num_rows; ++slot) {
    const_cast<SamplingParams*>(args.slots.params)[slot] = DrawSampling(random, shape.vocab_size);
    args.slots.sample_index[slot] = Between(random, 0, 1000);
  }
  for (int token = 0; token < arrays.max_tokens; ++token) {
    arrays.token_ids[token] = Chance(random, 0.03) ? (Chance(random, 0.5) ? -1 : shape.vocab_size)
                                                   : Between(random, 0, shape.vocab_size - 1);
    if (shape.has_draft_logits) {
      arrays.draft_logits[token] = Between(random, -1, NumDraftRows(shape));
    }
  }
  for (int row = 0; row < shape.max_tokens(); ++row) {
    arrays.logits_indices[row] = Between(random, 0, arrays.max_tokens - 1);
    arrays.sample_slot[row] = Chance(random, 0.1) ? -1 : Between(random, 0, shape.num_rows);
    arrays.sample_offset[row] = Between(random, 0, shape.max_drafts);
    args.chosen[row] = Chance(random, 0.05) ? kNanRow : Between(random, 0, shape.vocab_size - 1);
  }
}

PlaceDraftsArgs CarvePlaceDrafts(const RejectionShape& shape, ArrayCarver& carver) {
  PlaceDraftsArgs args;
  args.arrays = CarveArrays(shape, carver);
  args.chosen_stride = shape.num_rows + shape.logits_gap;
  args.chosen = carver.Take<int32_t>("chosen", args.chosen_stride * shape.max_drafts);
  args.num_rows = shape.num_rows;
  args.max_drafts = shape.max_drafts;
  if (shape.has_draft_logits || shape.max_drafts < 2) return args;
  // A tree whose first level has all drafts except the last one.
  args.ranks = carver.Take<int32_t>("ranks", shape.max_drafts);
  args.num_levels = 2;
  args.end_of_level[0] = shape.max_drafts - 1;
  args.end_of_level[1] = shape.max_drafts;
  args.first_of_level[1] = shape.max_drafts - 1;
  return args;
}

void DrawPlaceDrafts(std::mt19937& random, const RejectionShape& shape, PlaceDraftsArgs& args) {
  int32_t token = 0;
  for (int row = 0; row < shape.num_rows; ++row) {
    const int query_len = Between(random, 1, 1 + shape.max_drafts);
    args.arrays.query_start_loc[row] = token;
    args.arrays.num_proposed[row] = Chance(random, 0.3) ? 0 : query_len - 1;
    token += query_len;
  }
  args.arrays.query_start_loc[shape.num_rows] = token;
  for (int i = 0; args.ranks != nullptr && i < shape.max_drafts; ++i) {
    const_cast<int32_t*>(args.ranks)[i] = i + 1 < shape.max_drafts ? i : 0;
  }
  for (int64_t i = 0; i < args.chosen_stride * shape.max_drafts; ++i) {
    const_cast<int32_t*>(args.chosen)[i] =
        Chance(random, 0.1) ? kNanRow : Between(random, 0, shape.vocab_size - 1);
  }
}

KeepStatesArgs CarveKeepStates(const RejectionShape& shape, ArrayCarver& carver) {
  KeepStatesArgs args;
  const bool is_one = shape.has_draft_logits;  // one state per row
  const bool has_places = is_one && shape.num_rows % 2 == 0;
  args.num_rows = shape.num_rows;
  args.num_tokens = shape.max_tokens();
  args.num_hidden = is_one && !has_places ? args.num_rows : args.num_tokens;
  args.row_bytes = shape.hidden_bytes;
  const int offset = shape.logits_gap == 1 ? 2 : 0;
  args.hidden =
      carver.Take<std::byte>("hidden", args.num_hidden * args.row_bytes + offset) + offset;
  args.positions = carver.Take<int32_t>("positions", args.num_tokens);
  args.table_row = carver.Take<int32_t>("table_row", args.num_rows);
  args.query_start_loc = carver.Take<int32_t>("query_start_loc", args.num_rows + 1);
  args.num_slots = shape.num_rows;
  args.num_kept = has_places ? 1 : 1 + shape.max_drafts / 2;
  const int64_t num_states = int64_t{args.num_slots} * args.num_kept;
  args.states = carver.Take<std::byte>("states", num_states * args.row_bytes);
  args.state_positions = carver.Take<int32_t>("state_positions", num_states);
  if (!is_one) return args;
  args.last_token = carver.Take<int32_t>("last_token", args.num_rows);
  args.sample_slot = carver.Take<int32_t>("sample_slot", args.num_rows);
  if (has_places) args.place = carver.Take<int32_t>("place", args.num_rows);
  return args;
}

void DrawKeepStates(std::mt19937& random, const RejectionShape& shape, KeepStatesArgs& args) {
  auto* hidden = const_cast<std::byte*>(args.hidden);
  for (int64_t i = 0; i < args.num_hidden * args.row_bytes; ++i) {
    hidden[i] = static_cast<std::byte>(random());
  }
  std::vector<int32_t> slots(shape.num_rows);
  std::iota(slots.begin(), slots.end(), 0);
  std::shuffle(slots.begin(), slots.end(), random);
  auto* positions = const_cast<int32_t*>(args.positions);
  auto* query_start_loc = const_cast<int32_t*>(args.query_start_loc);
  std::fill_n(positions, args.num_tokens, 0);
  int token = 0;
  for (int row = 0; row < shape.num_rows; ++row) {
    const_cast<int32_t*>(args.table_row)[row] =
        Chance(random, 0.2) ? (Chance(random, 0.5) ? -1 : shape.num_rows) : slots[row];
    query_start_loc[row] = token;
    const int first = Between(random, 0, 1000);
    const int query_len = Between(random, 0, 1 + shape.max_drafts);
    for (int i = 0; i < query_len; ++i) positions[token++] = first + i;
    if (args.last_token == nullptr) continue;
    const_cast<int32_t*>(args.last_token)[row] =
        query_len > 0 ? token - 1 : Between(random, -1, args.num_tokens);
    const_cast<int32_t*>(args.sample_slot)[row] = Chance(random, 0.8) ? slots[row] : -1;
    if (args.place == nullptr) continue;
    const_cast<int32_t*>(args.place)[row] = Between(random, -1, args.num_hidden);
  }
  query_start_loc[shape.num_rows] = token;
}

MarkovModels SomeMarkovModels(const SamplingParams& sampling, bool drafts_drawn) {
  MarkovModels models = {.vocab_size = 6,
                         .model = {},
                         .drafter = {},
                         .sampling = sampling,
                         .drafts_drawn = drafts_drawn};
  std::mt19937 random(17);
  std::normal_distribution<float> normal(0, 1);
  for (int i = 0; i < models.vocab_size * models.vocab_size; ++i) {
    models.model.push_back(normal(random));
    models.drafter.push_back(models.model.back() + 0.8f * normal(random));
  }
  return models;
}

std::vector<double> DistributionAfter(const MarkovModels& models, const std::vector<float>& logits,
                                      int last) {
  const std::vector<float> row = RowOf(models, logits, last);
  const SamplingParams& sampling = models.sampling;
  std::vector<int> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) { return row[a] > row[b]; });
  if (sampling.top_k > 0 && sampling.top_k < models.vocab_size) order.resize(sampling.top_k);
  std::vector<double> weights;
  for (const int token : order) {
    weights.push_back(std::exp((row[token] - row[order[0]]) / sampling.temperature));
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> kept(row.size(), 0.0);
  double mass = 0;
  double kept_mass = 0;
  for (size_t i = 0; i < order.size() && mass < sampling.top_p * total; ++i) {
    mass += weights[i];
    if (weights[i] < sampling.min_p) continue;
    kept[order[i]] = weights[i];
    kept_mass += weights[i];
  }
  for (double& p : kept) p /= kept_mass;
  return kept;
}

MarkovTexts GenerateTexts(const MarkovModels& models, int num_texts, int length,
                          uint64_t first_seed,
                          const std::function<void(const RejectDraftsArgs&)>& reject) {
  const int vocab = models.vocab_size;
  const int k = models.num_drafts;
  MarkovTexts all;
  all.texts.resize(num_texts);
  std::vector<SamplingParams> params(num_texts, models.sampling);
  for (int i = 0; i < num_texts; ++i) params[i].seed = first_seed + i;
  const Drawn model = DrawnOf(models, models.model);
  const Drawn drafter = DrawnOf(models, models.drafter);
  std::vector<int> unfinished(num_texts);
  std::iota(unfinished.begin(), unfinished.end(), 0);
  while (!unfinished.empty()) {
    // Each sequence has a row of 1 + k tokens. Token j < k of row r uses row n + r k + j of the
    // logits. Rows 0 .. n - 1 of the logits do not sample.
    const int n = static_cast<int>(unfinished.size());
    std::vector<int32_t> token_ids, logits_indices(n), sample_slot(n, -1), sample_offset(n);
    std::vector<int32_t> draft_logits, chosen(n);
    std::vector<int64_t> sample_index(num_texts);
    std::vector<float> logits(int64_t{n} * vocab), drafter_logits;
    for (const int text : unfinished) {
      int last = all.texts[text].empty() ? 0 : all.texts[text].back();
      const auto index = static_cast<int64_t>(all.texts[text].size());
      sample_index[text] = index;
      token_ids.push_back(last);
      draft_logits.push_back(-1);
      for (int j = 0; j < k; ++j) {
        const std::vector<float>& row = model.rows[last];
        const std::vector<float>& drafter_row = drafter.rows[last];
        logits.insert(logits.end(), row.begin(), row.end());
        drafter_logits.insert(drafter_logits.end(), drafter_row.begin(), drafter_row.end());
        logits_indices.push_back(static_cast<int32_t>(token_ids.size()) - 1);
        sample_slot.push_back(text);
        sample_offset.push_back(j);
        chosen.push_back(DrawToken(model, last, params[text], index + j));
        const auto likeliest = std::max_element(drafter_row.begin(), drafter_row.end());
        last = models.drafts_drawn
                   ? DrawToken(drafter, last, params[text], index + j)
                   : static_cast<int>(std::distance(drafter_row.begin(), likeliest));
        token_ids.push_back(last);
        draft_logits.push_back(static_cast<int32_t>(drafter_logits.size()) / vocab - 1);
      }
    }
    RejectDraftsArgs args;
    args.logits = logits.data();
    args.logits_stride = vocab;
    if (models.drafts_drawn) {
      args.draft_logits = drafter_logits.data();
      args.draft_logits_stride = vocab;
      args.num_draft_rows = static_cast<int>(drafter_logits.size()) / vocab;
    }
    args.vocab_size = vocab;
    args.slots.params = params.data();
    args.slots.sample_index = sample_index.data();
    args.slots.num_slots = num_texts;
    args.arrays.token_ids = token_ids.data();
    args.arrays.logits_indices = logits_indices.data();
    args.arrays.sample_slot = sample_slot.data();
    args.arrays.sample_offset = sample_offset.data();
    args.arrays.draft_logits = draft_logits.data();
    args.arrays.max_rows = n;
    args.arrays.max_tokens = static_cast<int>(token_ids.size());
    args.arrays.max_earlier_logits = n * k;
    args.first_row = n;
    args.num_rows = n * k;
    args.chosen = chosen.data();
    reject(args);
    std::vector<int> left;
    for (int r = 0; r < n; ++r) {
      std::vector<int32_t>& text = all.texts[unfinished[r]];
      int num_right = 0;
      while (num_right < k) {
        const int32_t token = chosen[n + r * k + num_right];
        text.push_back(token);
        if (token != token_ids[r * (1 + k) + 1 + num_right]) break;
        ++num_right;
      }
      ++all.num_first_drafts;
      all.num_accepted += num_right > 0;
      if (num_right == k) {
        text.push_back(DrawToken(model, text.back(), params[unfinished[r]],
                                 static_cast<int64_t>(text.size())));
      }
      if (static_cast<int>(text.size()) < length) left.push_back(unfinished[r]);
    }
    unfinished = std::move(left);
  }
  for (std::vector<int32_t>& text : all.texts) text.resize(length);
  return all;
}

double ChiSquareDeviation(const MarkovModels& models, const MarkovTexts& texts) {
  const int vocab = models.vocab_size;
  std::vector<int64_t> counts(static_cast<size_t>(vocab) * vocab * vocab);
  for (const std::vector<int32_t>& text : texts.texts) {
    int before = 0;
    int last = 0;
    for (const int32_t token : text) {
      ++counts[(before * vocab + last) * vocab + token];
      before = last;
      last = token;
    }
  }
  double chi_square = 0;
  int freedom = 0;
  for (int before = 0; before < vocab; ++before) {
    for (int last = 0; last < vocab; ++last) {
      const int64_t* of_last = &counts[(before * vocab + last) * vocab];
      const auto total = static_cast<double>(std::accumulate(of_last, of_last + vocab, int64_t{0}));
      if (total < 1000) continue;
      const std::vector<double> p = DistributionAfter(models, models.model, last);
      --freedom;
      for (int token = 0; token < vocab; ++token) {
        const auto count = static_cast<double>(of_last[token]);
        if (p[token] == 0) {
          if (count > 0) return INFINITY;
          continue;
        }
        const double expected = total * p[token];
        chi_square += (count - expected) * (count - expected) / expected;
        ++freedom;
      }
    }
  }
  return (chi_square - freedom) / std::sqrt(2.0 * freedom);
}

}  // namespace reprise
