#include "graphs/graph_set_options.h"

#include <glog/logging.h>

#include <algorithm>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace reprise {
namespace {

// Beyond 512 sequences a step computes so long that launching it eagerly costs little.
constexpr int kLargestDefaultSize = 512;

// Names `field`, for example "sizes", in its errors.
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

absl::Status CheckAtMost(const char* field, int value, const char* bound_field, int bound) {
  if (value <= bound) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " must not pass ", bound_field,
                                                 ": expected at most ", bound, ", got ", value));
}

absl::Status CheckPositive(const char* field, int value) {
  if (value >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " must be positive: expected at least 1, got ", value));
}

absl::Status CheckInputs(const std::vector<StepInput>& inputs) {
  if (inputs.empty()) {
    return absl::InvalidArgumentError("inputs must name one: expected at least 1, got 0");
  }
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

// REQUIRES: sizes are filled in.
absl::Status CheckOptions(const GraphSetOptions& options) {
  REPRISE_RETURN_IF_ERROR(CheckAscending("sizes", options.sizes));
  REPRISE_RETURN_IF_ERROR(
      CheckAtMost("sizes", options.sizes.back(), "max_num_seqs", options.max_num_seqs));
  if (options.query_lens.empty()) {
    return absl::InvalidArgumentError("query_lens must name one: expected at least 1, got 0");
  }
  REPRISE_RETURN_IF_ERROR(CheckAscending("query_lens", options.query_lens));
  REPRISE_RETURN_IF_ERROR(CheckPositive("max_seq_len", options.max_seq_len));
  REPRISE_RETURN_IF_ERROR(CheckPositive("least_cascade_seqs", options.least_cascade_seqs));
  REPRISE_RETURN_IF_ERROR(
      CheckAtMost("query_lens", options.query_lens.back(), "max_seq_len", options.max_seq_len));
  const int64_t max_tokens = int64_t{options.sizes.back()} * options.query_lens.back();
  if (max_tokens > std::numeric_limits<int>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("sizes x query_lens must be an int: expected at most ",
                     std::numeric_limits<int>::max(), " tokens, got ", max_tokens));
  }
  REPRISE_RETURN_IF_ERROR(CheckInputs(options.inputs));
  if (options.memory_budget_bytes.value_or(0) < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory_budget_bytes must not be negative: expected at least 0, got ",
                     *options.memory_budget_bytes));
  }
  return absl::OkStatus();
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

absl::StatusOr<GraphSetOptions> CheckedOptions(const GraphSetOptions& options) {
  GraphSetOptions filled = options;
  REPRISE_RETURN_IF_ERROR(CheckPositive("max_num_seqs", filled.max_num_seqs));
  if (filled.sizes.empty()) filled.sizes = DefaultGraphSizes(filled.max_num_seqs);
  REPRISE_RETURN_IF_ERROR(CheckOptions(filled));
  return filled;
}

}  // namespace reprise
