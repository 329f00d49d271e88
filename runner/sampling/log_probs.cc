#include "reprise/runner/sampling/log_probs.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/base/check.h"
#include "reprise/base/element_access.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

// Sorts the packed choices of a row, which contain no NaN: the first num_top are in descending
// order.
void SortTop(std::vector<uint64_t>& choices, int num_top) {
  const auto end = choices.begin() + std::min<int64_t>(num_top, choices.size());
  std::partial_sort(choices.begin(), end, choices.end(), std::greater<uint64_t>());
}

void WriteRow(const LogProbsArgs& args, int row, int num_top) {
  // Kept between rows, so that the memory is reused.
  static thread_local std::vector<uint64_t> choices;
  choices.clear();
  choices.reserve(args.vocab_size);
  const auto logit_of = [&](int32_t token) {
    return LoadElement<float>(args.logits, args.dtype, row * args.logits_stride + token);
  };
  const int32_t token = LogProbTokenOf(args, row);
  const uint32_t token_key =
      token >= 0 && token < args.vocab_size ? OrderKey(logit_of(token)) : 0;  // 0: key of NaN
  int32_t num_larger = 0;
  for (int32_t v = 0; v < args.vocab_size; ++v) {
    const uint32_t key = OrderKey(logit_of(v));
    if (key == 0) continue;
    choices.push_back(PackChoice(key, v));
    num_larger += key > token_key;
  }
  SortTop(choices, std::max(num_top, 1));
  const bool is_valid = !choices.empty() && CanBeChosen(choices[0]);
  RowLogProbs log_probs;
  if (is_valid) {
    const float max_logit = logit_of(TokenOf(choices[0]));
    uint64_t total = 0;
    for (const uint64_t choice : choices) {
      total += MassOf(ScaledDistance(logit_of(TokenOf(choice)), max_logit, 1.0f));
    }
    log_probs = RowLogProbsOf(max_logit, total);
  }
  const bool has_token = is_valid && token_key != 0;
  args.out.token_log_probs[row] = has_token ? log_probs.Of(logit_of(token)) : kNoLogProb;
  if (args.out.token_ranks != nullptr) args.out.token_ranks[row] = has_token ? num_larger + 1 : 0;
  for (int i = 0; i < num_top; ++i) {
    const bool has_top = is_valid && i < static_cast<int>(choices.size());
    const int64_t at = static_cast<int64_t>(row) * args.max_top + i;
    args.out.top_tokens[at] = has_top ? TokenOf(choices[i]) : -1;
    args.out.top_log_probs[at] = has_top ? log_probs.Of(logit_of(TokenOf(choices[i]))) : kNoLogProb;
  }
}

}  // namespace

absl::Status CheckLogProbs(const LogProbsArgs& args) {
  if (args.dtype != DType::kFloat32 && args.dtype != DType::kFloat16 &&
      args.dtype != DType::kBFloat16) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dtype: expected float32, float16 or bfloat16, got ", std::string(DTypeName(args.dtype))));
  }
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("vocab_size", args.vocab_size, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_slots", args.num_slots, 0));
  REPRISE_RETURN_IF_ERROR(CheckBetween("max_top", args.max_top, 0, kMaxTopLogProbs));
  if (args.num_rows == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckGiven("logits", args.logits));
  REPRISE_RETURN_IF_ERROR(CheckGiven("sample_slot", args.sample_slot));
  REPRISE_RETURN_IF_ERROR(CheckGiven("params", args.params));
  if (args.row_tokens == nullptr) REPRISE_RETURN_IF_ERROR(CheckGiven("tokens", args.tokens));
  REPRISE_RETURN_IF_ERROR(CheckGiven("out.token_log_probs", args.out.token_log_probs));
  if (args.max_top > 0) {
    REPRISE_RETURN_IF_ERROR(CheckGiven("out.top_tokens", args.out.top_tokens));
    REPRISE_RETURN_IF_ERROR(CheckGiven("out.top_log_probs", args.out.top_log_probs));
  }
  return args.num_rows > 1 ? CheckAtLeast("logits_stride", args.logits_stride, args.vocab_size)
                           : absl::OkStatus();
}

void LogProbsOnHost(const LogProbsArgs& args) {
  for (int row = 0; row < args.num_rows; ++row) {
    const int num_top = NumTopOf(args, row);
    if (num_top >= 0) WriteRow(args, row, num_top);
  }
}

}  // namespace reprise
