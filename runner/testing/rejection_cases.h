// Cases for the units of drafts that are drawn (runner/speculation/reject_drafts.h, place_drafts.h,
// keep_states.h): random steps in memory that is compared byte by byte, and trials of speculative decoding
// whose tokens are counted. No LibTorch.

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
  int num_rows = 4;  // and slots
  int max_drafts = 3;
  int vocab_size = 20;
  int logits_gap = 0;  // elements between rows: 1 misaligns them
  bool has_draft_logits = true;
  int hidden_bytes = 64;  // of KeepStatesArgs

  int max_tokens() const { return num_rows * (1 + max_drafts); }
};

std::ostream& operator<<(std::ostream& out, const RejectionShape& shape);

// Few tokens or many thousands, of each type.
RejectionShape DrawRejectionShape(std::mt19937& random);

RejectDraftsArgs CarveRejectDrafts(const RejectionShape& shape, ArrayCarver& carver);
PlaceDraftsArgs CarvePlaceDrafts(const RejectionShape& shape, ArrayCarver& carver);
KeepStatesArgs CarveKeepStates(const RejectionShape& shape, ArrayCarver& carver);

// Places with and without drafts, slots of all kinds of parameters, ids and rows out of range.
void DrawRejectDrafts(std::mt19937& random, const RejectionShape& shape, RejectDraftsArgs& args);
void DrawPlaceDrafts(std::mt19937& random, const RejectionShape& shape, PlaceDraftsArgs& args);
void DrawKeepStates(std::mt19937& random, const RejectionShape& shape, KeepStatesArgs& args);

// Sequences of a model that knows the last token alone: next-token logits [vocab, vocab] of it and of
// a drafter, by last token.
struct MarkovModels {
  int vocab_size = 0;
  std::vector<float> model;
  std::vector<float> drafter;
  SamplingParams sampling;   // of all sequences, but for the seed
  bool drafts_drawn = true;  // false: a draft is the drafter's likeliest token, and certain
  int num_drafts = 2;        // of a step
};

MarkovModels SomeMarkovModels(const SamplingParams& sampling, bool drafts_drawn);

// With which the model's token `next` follows `last`: by the definition of SamplingParams, in float64.
std::vector<double> DistributionAfter(const MarkovModels& models, const std::vector<float>& logits,
                                      int last);

// What many sequences come to.
struct MarkovTexts {
  std::vector<std::vector<int32_t>> texts;  // of one length
  int64_t num_first_drafts = 0;             // the first drafts of all steps, and those accepted
  int64_t num_accepted = 0;
};

// Generates `num_texts` texts of `length` tokens with drafts, by `reject` over arguments in host
// memory. Texts begin with token 0, and have seeds from `first_seed` on.
MarkovTexts GenerateTexts(const MarkovModels& models, int num_texts, int length,
                          uint64_t first_seed,
                          const std::function<void(const RejectDraftsArgs&)>& reject);

// By how many standard deviations the chi-square of the texts' tokens, each counted by the two before
// it, is above its mean. Below -3 or above 4: the tokens are not the model's.
double ChiSquareDeviation(const MarkovModels& models, const MarkovTexts& texts);

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_REJECTION_CASES_H_
