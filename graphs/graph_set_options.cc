#include "reprise/graphs/graph_set_options.h"

#include <glog/logging.h>

#include <algorithm>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

// Larger steps take so long that the launch cost of an eager step is small in comparison.
constexpr int kLargestDefaultSize = 512;

// Larger mixed steps are limited by their GEMMs. Captured numbers are only 64 tokens apart, because
// the cost of padding is proportional to the number of padded tokens.
constexpr int kLargestDefaultTokens = 512;
constexpr int kDefaultTokenStep = 64;

// Checks that the values are positive and strictly ascending. Errors name `field`, such as "sizes".
absl::Status CheckAscending(const char* field, const std::vector<int>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    const int at_least = i == 0 ? 1 : values[i - 1] + 1;
    if (values[i] < at_least) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, " must be positive and strictly ascending: expected ", field, "[", i,
                       "] >= ", at_least, ", got ", values[i]));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBounded(const char* field, int value, const char* bound_field, int bound) {
  if (value <= bound) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " must not pass ", bound_field,
                                                 ": expected at most ", bound, ", got ", value));
}

absl::Status CheckInputs(const std::vector<StepInput>& inputs) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("inputs", static_cast<int64_t>(inputs.size()), 1));
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i] != StepInput::kTokens && inputs[i] != StepInput::kEmbeddings) {
      return absl::InvalidArgumentError(
          absl::StrCat("inputs must be tokens or embeddings: got ", static_cast<int>(inputs[i])));
    }
    if (std::count(inputs.begin(), inputs.end(), inputs[i]) != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("inputs must be distinct: inputs[", i, "] occurs more than once"));
    }
  }
  return absl::OkStatus();
}

// REQUIRES: defaults of mixed_sizes are filled in.
absl::Status CheckMixed(const GraphSetOptions& options) {
  REPRISE_RETURN_IF_ERROR(CheckAscending("mixed_tokens", options.mixed_tokens));
  REPRISE_RETURN_IF_ERROR(CheckAscending("mixed_sizes", options.mixed_sizes));
  if (options.mixed_tokens.empty() != options.mixed_sizes.empty()) {
    return absl::InvalidArgumentError(
        "mixed_sizes requires mixed_tokens: expected none without mixed_tokens");
  }
  if (options.mixed_sizes.empty()) return absl::OkStatus();
  return CheckBounded("mixed_sizes", options.mixed_sizes.back(), "max_num_seqs",
                      options.max_num_seqs);
}

absl::Status CheckDrafts(const GraphSetOptions& options) {
  REPRISE_RETURN_IF_ERROR(CheckAscending("num_drafts", options.num_drafts));
  if (options.num_drafts.empty()) return absl::OkStatus();
  const int most = options.num_drafts.back();
  REPRISE_RETURN_IF_ERROR(
      CheckBounded("num_drafts", most, "max_seq_len - 1", options.max_seq_len - 1));
  const int64_t max_tokens = int64_t{options.sizes.back()} * (int64_t{most} + 1);
  if (max_tokens <= std::numeric_limits<int>::max()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("sizes x (1 + num_drafts) must be an int: expected at most ",
                   std::numeric_limits<int>::max(), " tokens, got ", max_tokens));
}

// REQUIRES: defaults of sizes and mixed_sizes are filled in.
absl::Status CheckOptions(const GraphSetOptions& options) {
  REPRISE_RETURN_IF_ERROR(CheckAscending("sizes", options.sizes));
  REPRISE_RETURN_IF_ERROR(
      CheckBounded("sizes", options.sizes.back(), "max_num_seqs", options.max_num_seqs));
  REPRISE_RETURN_IF_ERROR(
      CheckAtLeast("query_lens", static_cast<int64_t>(options.query_lens.size()), 1));
  REPRISE_RETURN_IF_ERROR(CheckAscending("query_lens", options.query_lens));
  REPRISE_RETURN_IF_ERROR(CheckMixed(options));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_seq_len", options.max_seq_len, 1));
  REPRISE_RETURN_IF_ERROR(
      CheckAtLeast("min_embedding_query_len", options.min_embedding_query_len, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("min_cascade_seqs", options.min_cascade_seqs, 1));
  REPRISE_RETURN_IF_ERROR(
      CheckBounded("query_lens", options.query_lens.back(), "max_seq_len", options.max_seq_len));
  const int64_t max_tokens = int64_t{options.sizes.back()} * options.query_lens.back();
  if (max_tokens > std::numeric_limits<int>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("sizes x query_lens must be an int: expected at most ",
                     std::numeric_limits<int>::max(), " tokens, got ", max_tokens));
  }
  REPRISE_RETURN_IF_ERROR(CheckDrafts(options));
  REPRISE_RETURN_IF_ERROR(CheckInputs(options.inputs));
  return CheckAtLeast("memory_budget_bytes", options.memory_budget_bytes.value_or(0), 0);
}

}  // namespace

std::vector<int> DefaultGraphSizes(int max_num_seqs) {
  CHECK_GE(max_num_seqs, 1);
  const int last = std::min(max_num_seqs, kLargestDefaultSize);
  std::vector<int> sizes;
  for (int size = 1; size < last; size = size < 8 ? 2 * size : size + (size < 256 ? 8 : 16)) {
    sizes.push_back(size);
  }
  sizes.push_back(last);
  return sizes;
}

std::vector<int> DefaultMixedTokens(int max_num_tokens) {
  CHECK_GE(max_num_tokens, 1);
  const int last = std::min(max_num_tokens, kLargestDefaultTokens);
  std::vector<int> tokens;
  for (int count = kDefaultTokenStep; count < last; count += kDefaultTokenStep) {
    tokens.push_back(count);
  }
  tokens.push_back(last);
  return tokens;
}

std::vector<int> DefaultMixedSizes(int max_num_seqs) {
  CHECK_GE(max_num_seqs, 1);
  const int last = std::min(max_num_seqs, kLargestDefaultSize);
  std::vector<int> sizes;
  for (const int size : {16, 128}) {
    if (size < last) sizes.push_back(size);
  }
  sizes.push_back(last);
  return sizes;
}

absl::StatusOr<GraphSetOptions> CheckedOptions(const GraphSetOptions& options) {
  GraphSetOptions filled = options;
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_num_seqs", filled.max_num_seqs, 1));
  if (filled.sizes.empty()) filled.sizes = DefaultGraphSizes(filled.max_num_seqs);
  if (!filled.mixed_tokens.empty() && filled.mixed_sizes.empty()) {
    filled.mixed_sizes = DefaultMixedSizes(filled.max_num_seqs);
  }
  REPRISE_RETURN_IF_ERROR(CheckOptions(filled));
  return filled;
}

}  // namespace reprise
