#include "reprise/runner/speculation/reject_drafts.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/attention/metadata/builder_sizes.h"
#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

// The drafter's distribution at a position.
struct DraftTokens {
  const float* logits = nullptr;  // null: the draft has probability 1
  KeptTokens kept = {};
  int32_t draft = 0;

  double ProbabilityOf(int32_t token) const {
    if (logits == nullptr) return token == draft ? 1.0 : 0.0;
    return kept.ProbabilityOf(logits[token]);
  }
};

// Samples from max(0, p - q). Returns kNoChoice if all weights are 0 or too small (ResidualOf()).
uint64_t DrawResidual(const float* logits, const KeptTokens& kept, const DraftTokens& draft,
                      int vocab_size, uint64_t seed, int64_t sample_index) {
  uint64_t best = kNoChoice;
  PhiloxBlock bits;
  int bits_group = -1;
  for (int32_t token = 0; token < vocab_size; ++token) {
    if (kept.MassOfLogit(logits[token]) == 0) continue;
    float log_weight = 0.0f;
    const double p = kept.ProbabilityOf(logits[token]);
    if (!ResidualOf(p, draft.ProbabilityOf(token), log_weight)) continue;
    if (token / 4 != bits_group) {
      bits_group = token / 4;
      bits = RejectionBits(seed, sample_index, kTokenNumbers, bits_group);
    }
    const uint64_t choice = DrawChoice(log_weight, bits.word[token % 4], token);
    if (choice > best) best = choice;
  }
  return best;
}

}  // namespace

absl::Status CheckRejectDrafts(const RejectDraftsArgs& args) {
  if (args.dtype != DType::kFloat32 && args.dtype != DType::kFloat16 &&
      args.dtype != DType::kBFloat16) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dtype must be float32, float16 or bfloat16: got ", std::string(DTypeName(args.dtype))));
  }
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("first_row", args.first_row, 0));
  REPRISE_RETURN_IF_ERROR(
      CheckAtMost("first_row + num_rows", int64_t{args.first_row} + args.num_rows,
                  int64_t{args.arrays.max_rows} + args.arrays.max_earlier_logits));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("vocab_size", args.vocab_size, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("logits_stride", args.logits_stride, args.vocab_size));
  if (args.num_rows == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckGiven({{"logits", args.logits},
                                      {"chosen", args.chosen},
                                      {"slots.params", args.slots.params},
                                      {"slots.sample_index", args.slots.sample_index},
                                      {"arrays.sample_slot", args.arrays.sample_slot},
                                      {"arrays.sample_offset", args.arrays.sample_offset},
                                      {"arrays.logits_indices", args.arrays.logits_indices},
                                      {"arrays.token_ids", args.arrays.token_ids}}));
  if (args.draft_logits == nullptr) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_draft_rows", args.num_draft_rows, 0));
  REPRISE_RETURN_IF_ERROR(
      CheckAtLeast("draft_logits_stride", args.draft_logits_stride, args.vocab_size));
  return CheckGiven("arrays.draft_logits", args.arrays.draft_logits);
}

void RejectDraftsOnHost(const RejectDraftsArgs& args) {
  std::vector<float> target_buffer;
  std::vector<float> draft_buffer;
  for (int row = args.first_row; row < args.first_row + args.num_rows; ++row) {
    const DraftPlace place = DraftPlaceOf(args, row);
    if (place.slot < 0) continue;
    const SamplingParams& params = args.slots.params[place.slot];
    const auto kept_of = [&](const float* logits) {
      const int32_t largest = LargestToken(logits, args.vocab_size);
      return largest < 0 ? KeptTokens()
                         : KeptTokensOf(logits, args.vocab_size, logits[largest], params);
    };
    const float* logits =
        FloatRow(args.dtype, args.logits, row * args.logits_stride, args.vocab_size, target_buffer);
    const KeptTokens kept = kept_of(logits);
    if (kept.total == 0) continue;
    DraftTokens draft = {.draft = place.draft};
    if (place.draft_row >= 0) {
      draft.logits =
          FloatRow(args.dtype, args.draft_logits, place.draft_row * args.draft_logits_stride,
                   args.vocab_size, draft_buffer);
      draft.kept = kept_of(draft.logits);
      if (draft.kept.total == 0) draft.logits = nullptr;
    }
    if (AcceptsDraft(params.seed, place.sample_index, kept.ProbabilityOf(logits[place.draft]),
                     draft.ProbabilityOf(place.draft))) {
      args.chosen[row] = place.draft;
      continue;
    }
    const uint64_t choice =
        DrawResidual(logits, kept, draft, args.vocab_size, params.seed, place.sample_index);
    if (KeyOf(choice) != 0) args.chosen[row] = TokenOf(choice);
  }
}

}  // namespace reprise
