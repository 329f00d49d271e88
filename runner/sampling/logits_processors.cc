#include "reprise/runner/sampling/logits_processors.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/base/check.h"
#include "reprise/base/element_access.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

// Returns an array with each token's entry in the row's list of biases, or -1. The memory is kept
// between rows; all entries are -1 between rows.
std::vector<int32_t>& EntryOfToken(int vocab_size) {
  static thread_local std::vector<int32_t> entry_of_token;
  if (static_cast<int>(entry_of_token.size()) < vocab_size) entry_of_token.resize(vocab_size, -1);
  return entry_of_token;
}

void ProcessRow(const LogitsProcessorsArgs& args, int row, const RowProcessors& processors) {
  const int vocab_size = args.slots.vocab_size;
  std::vector<int32_t>& entry_of_token = EntryOfToken(vocab_size);
  const auto set_entries = [&](bool is_set) {
    for (int i = 0; i < processors.num_biases; ++i) {
      const int32_t token = processors.biases[i].token;
      if (token >= 0 && token < vocab_size) entry_of_token[token] = is_set ? i : -1;
    }
  };
  set_entries(true);
  for (int token = 0; token < vocab_size; ++token) {
    const int64_t at = row * args.logits_stride + token;
    if (!IsAllowed(processors.mask, token)) {
      StoreElement(args.logits, args.dtype, at, kBannedLogit);
      continue;
    }
    const TokenCount count =
        processors.counts != nullptr ? processors.counts[token] : TokenCount{0};
    const int32_t entry = entry_of_token[token];
    if (count == 0 && entry < 0) continue;
    const float logit = LoadElement<float>(args.logits, args.dtype, at);
    if (logit != logit) continue;
    const float bias = entry >= 0 ? processors.biases[entry].bias : 0.0f;
    StoreElement(args.logits, args.dtype, at,
                 ProcessedLogit(logit, processors.params, count, bias));
  }
  set_entries(false);
}

}  // namespace

absl::Status CheckLogitsProcessors(const LogitsProcessorsArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckLogitsSlots(args.slots));
  if (args.dtype != DType::kFloat32 && args.dtype != DType::kFloat16 &&
      args.dtype != DType::kBFloat16) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dtype: expected float32, float16 or bfloat16, got ", std::string(DTypeName(args.dtype))));
  }
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_masks", args.num_masks, 0));
  const int vocab_size = args.slots.vocab_size;
  if (args.num_masks > 0) {
    REPRISE_RETURN_IF_ERROR(CheckGiven("allowed_tokens", args.allowed_tokens));
    if (args.num_masks > 1)
      REPRISE_RETURN_IF_ERROR(CheckAtLeast("mask_stride", args.mask_stride, MaskWords(vocab_size)));
  }
  if (args.num_rows == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckGiven("logits", args.logits));
  REPRISE_RETURN_IF_ERROR(CheckGiven("sample_slot", args.sample_slot));
  return args.num_rows > 1 ? CheckAtLeast("logits_stride", args.logits_stride, vocab_size)
                           : absl::OkStatus();
}

void LogitsProcessorsOnHost(const LogitsProcessorsArgs& args) {
  for (int row = 0; row < args.num_rows; ++row) {
    const RowProcessors processors = RowProcessorsOf(args, row, MaskOfRow(args, row));
    if (processors.has_any()) ProcessRow(args, row, processors);
  }
}

}  // namespace reprise
