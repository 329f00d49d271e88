// Test cases for sampled drafts (runner/speculation/reject_drafts.h, place_drafts.h,
// keep_states.h): random steps in memory that is compared byte by byte, and runs of speculative
// decoding whose tokens are counted. Does not depend on LibTorch.

#ifndef REPRISE_RUNNER_TESTING_REJECTION_CASES_H_
#define REPRISE_RUNNER_TESTING_REJECTION_CASES_H_

#include <cstdint>
#include <functional>
#include <ostream>
#include <random>
#include <vector>

#include "reprise/base/dtype.h"
#include "reprise/base/testing/builder_memory.h"
#include "reprise/runner/sampling/sampling_params.h"
#include "reprise/runner/speculation/keep_states_args.h"
#include "reprise/runner/speculation/place_drafts_args.h"
#include "reprise/runner/speculation/reject_drafts_args.h"

namespace reprise {

struct RejectionShape {
  DType dtype = DType::kFloat32;
  int num_rows = 4;  // also the number of slots
  int max_drafts = 3;
  int vocab_size = 20;
  int logits_gap = 0;  // elements between rows; 1 misaligns them
  bool has_draft_logits = true;
  int hidden_bytes = 64;  // for KeepStatesArgs

  int max_tokens() const { return num_rows * (1 + max_drafts); }
};

std::ostream& operator<<(std::ostream& out, const RejectionShape& shape);

// Draws a shape with a vocabulary of 1 to 20000 tokens, of any dtype.
RejectionShape DrawRejectionShape(std::mt19937& random);

RejectDraftsArgs CarveRejectDrafts(const RejectionShape& shape, ArrayCarver& carver);
PlaceDraftsArgs CarvePlaceDrafts(const RejectionShape& shape, ArrayCarver& carver);
KeepStatesArgs CarveKeepStates(const RejectionShape& shape, ArrayCarver& carver);

// Draw positions with and without drafts, slots with all kinds of parameters, and ids and rows out
// of range.
void DrawRejectDrafts(std::mt19937& random, const RejectionShape& shape, RejectDraftsArgs& args);
void DrawPlaceDrafts(std::mt19937& random, const RejectionShape& shape, PlaceDraftsArgs& args);
void DrawKeepStates(std::mt19937& random, const RejectionShape& shape, KeepStatesArgs& args);

// A model and a drafter that depend only on the last token: next-token logits [vocab, vocab], by
// last token.
struct MarkovModels {
  int vocab_size = 0;
  std::vector<float> model;
  std::vector<float> drafter;
  SamplingParams sampling;  // parameters of all sequences, except the seed
  // false: a draft is the drafter's most probable token, with probability 1
  bool drafts_drawn = true;
  int num_drafts = 2;  // per step
};

MarkovModels SomeMarkovModels(const SamplingParams& sampling, bool drafts_drawn);

// Returns the probabilities with which each token follows `last`, by the definition of
// SamplingParams for distinct logits, with sums in float64.
std::vector<double> DistributionAfter(const MarkovModels& models, const std::vector<float>& logits,
                                      int last);

// The results of GenerateTexts().
struct MarkovTexts {
  std::vector<std::vector<int32_t>> texts;  // all of the same length
  int64_t num_first_drafts = 0;  // first drafts of all steps; num_accepted of them were accepted
  int64_t num_accepted = 0;
};

// Generates `num_texts` texts of `length` tokens with drafts. `reject` runs on arguments in host
// memory. Texts follow a token 0, which they do not include, and use the seeds first_seed,
// first_seed + 1, ...
MarkovTexts GenerateTexts(const MarkovModels& models, int num_texts, int length,
                          uint64_t first_seed,
                          const std::function<void(const RejectDraftsArgs&)>& reject);

// Returns by how many standard deviations the chi-square of the texts' tokens exceeds its mean, or
// infinity if a counted token has probability 0. Tokens are counted per pair of preceding tokens;
// pairs that occur fewer than 1000 times are skipped. Below -3 or above 4, the texts are very
// unlikely to have the model's distribution.
double ChiSquareDeviation(const MarkovModels& models, const MarkovTexts& texts);

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_REJECTION_CASES_H_
