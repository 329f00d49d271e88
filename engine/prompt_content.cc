#include "reprise/engine/prompt_content.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "reprise/attention/metadata/batch_sequence.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

template <typename T>
std::string BytesOf(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

absl::Status CheckEmbeddings(const Request& request) {
  const int64_t num_prompt = static_cast<int64_t>(request.prompt.size());
  int64_t end_before = 0;
  for (size_t i = 0; i < request.embeddings.size(); ++i) {
    const RequestEmbeddings& range = request.embeddings[i];
    const int64_t end = int64_t{range.first_token} + range.rows.num_rows;
    if (range.first_token < 0 || range.rows.num_rows < 1 || end > num_prompt) {
      return absl::InvalidArgumentError(absl::StrCat(
          "embeddings[", i, "] must lie within the prompt: expected a non-empty range in [0, ",
          num_prompt, "), got [", range.first_token, ", ", end, ")"));
    }
    if (range.first_token < end_before) {
      return absl::InvalidArgumentError(absl::StrCat(
          "embeddings[", i, "] must follow the previous range: expected first_token of at least ",
          end_before, ", got ", range.first_token));
    }
    end_before = end;
  }
  return absl::OkStatus();
}

// Returns a digest of the bytes of embeddings in host memory.
std::string DigestOf(const EmbeddingRows& rows, const PrefixHasher& hasher) {
  PrefixHash digest = hasher.Root();
  for (int i = 0; i < rows.num_rows; ++i) {
    const ExtraKey row = {.value = {static_cast<const char*>(rows.row(i)),
                                    size_t{1} * rows.dim * SizeOf(rows.dtype)}};
    digest = hasher.Salted(digest, absl::MakeConstSpan(&row, 1));
  }
  return BytesOf(digest);
}

ContentKey KeyOf(const RequestEmbeddings& range, const PrefixHasher& hasher, int64_t unique) {
  ContentKey key = {.first_token = range.first_token, .num_tokens = range.rows.num_rows};
  if (!range.content.empty()) {
    key.kind = ExtraKeyKind::kEmbeddings;
    key.value = range.content;
  } else if (range.rows.gpu == kHostMemory) {
    key.value = DigestOf(range.rows, hasher);
  } else {
    key.value = BytesOf(unique);
  }
  return key;
}

// The positions of a prompt and of the tokens after it.
class PromptPositions {
 public:
  PromptPositions(const Request& request, int num_dims, int delta)
      : positions_(request.positions),
        num_tokens_(static_cast<int>(request.prompt.size())),
        num_dims_(num_dims),
        delta_(delta) {}

  int64_t At(int dim, int token) const {
    return token < num_tokens_ ? positions_[int64_t{dim} * num_tokens_ + token]
                               : int64_t{token} + delta_;
  }

  // Whether the position of `token` differs from the expected position in any dimension. Expected
  // is the previous token's position + 1, and 0 for token 0.
  bool IsNew(int token) const {
    for (int dim = 0; dim < num_dims_; ++dim) {
      const int64_t expected = token == 0 ? 0 : At(dim, token - 1) + 1;
      if (At(dim, token) != expected) return true;
    }
    return false;
  }

  // Appends a key for each run of tokens with new positions. The last run may include the first
  // token after the prompt.
  void AppendKeys(const PrefixHasher& hasher, std::vector<ContentKey>& keys) const {
    std::vector<int32_t> stretch;
    for (int token = 0; token <= num_tokens_ + 1; ++token) {
      if (token <= num_tokens_ && IsNew(token)) {
        for (int dim = 0; dim < num_dims_; ++dim) {
          stretch.push_back(static_cast<int32_t>(At(dim, token)));
        }
        continue;
      }
      if (stretch.empty()) continue;
      const int length = static_cast<int>(stretch.size()) / num_dims_;
      const ExtraKey value = {.value = {reinterpret_cast<const char*>(stretch.data()),
                                        stretch.size() * sizeof(int32_t)}};
      keys.push_back({.value = BytesOf(hasher.Root(absl::MakeConstSpan(&value, 1))),
                      .first_token = token - length,
                      .num_tokens = length});
      stretch.clear();
    }
  }

 private:
  const std::vector<int32_t>& positions_;
  int num_tokens_;
  int num_dims_;
  int delta_;
};

}  // namespace

absl::Status CheckPromptContent(const Request& request, const PositionLimits& limits) {
  REPRISE_RETURN_IF_ERROR(CheckEmbeddings(request));
  if (request.positions.empty()) return absl::OkStatus();
  const size_t num_dims = static_cast<size_t>(limits.num_position_dims);
  if (num_dims == 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("positions require a model whose positions have several dimensions: expected ",
                     "none, got ", request.positions.size()));
  }
  if (request.positions.size() != num_dims * request.prompt.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "positions must have ", num_dims, " dimensions for every token of the prompt: expected ",
        num_dims * request.prompt.size(), ", got ", request.positions.size()));
  }
  for (size_t i = 0; i < request.positions.size(); ++i) {
    if (request.positions[i] >= 0 && request.positions[i] < limits.max_position) continue;
    return absl::InvalidArgumentError(absl::StrCat("positions must be in [0, ", limits.max_position,
                                                   "): got ", request.positions[i], " at index ",
                                                   i));
  }
  return absl::OkStatus();
}

PromptContent MakePromptContent(const Request& request, const PositionLimits& limits,
                                const PrefixHasher* hasher, int64_t unique) {
  PromptContent content;
  int num_rows = 0;
  for (const RequestEmbeddings& range : request.embeddings) {
    content.ranges.push_back({.first_position = range.first_token,
                              .length = range.rows.num_rows,
                              .first_source = num_rows});
    num_rows += range.rows.num_rows;
    if (hasher != nullptr) content.keys.push_back(KeyOf(range, *hasher, unique));
  }
  if (request.positions.empty()) return content;
  content.position_delta =
      *absl::c_max_element(request.positions) + 1 - static_cast<int>(request.prompt.size());
  if (hasher == nullptr) return content;
  PromptPositions(request, limits.num_position_dims, content.position_delta)
      .AppendKeys(*hasher, content.keys);
  absl::c_stable_sort(content.keys, [](const ContentKey& a, const ContentKey& b) {
    return a.first_token < b.first_token;
  });
  return content;
}

int NumEqualTokens(absl::Span<const ContentKey> a, absl::Span<const ContentKey> b, int num_tokens) {
  const auto [x, y] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  if (x != a.end()) num_tokens = std::min(num_tokens, x->first_token);
  if (y != b.end()) num_tokens = std::min(num_tokens, y->first_token);
  return num_tokens;
}

void AppendEmbeddings(const Request& request, const PromptContent& content, int first_token,
                      int num_tokens, int row, std::vector<PlaceholderCopy>& copies,
                      std::vector<ScheduledEmbeddings>& embeddings) {
  copies.resize(content.ranges.size());
  const BatchSequence fed = {.num_computed = first_token, .query_len = num_tokens};
  const absl::StatusOr<int> num_copies =
      MapPlaceholders(absl::MakeConstSpan(&fed, 1), {}, content.ranges, absl::MakeSpan(copies));
  CHECK(num_copies.ok()) << num_copies.status();
  size_t r = 0;
  for (const PlaceholderCopy& copy : absl::MakeConstSpan(copies).first(*num_copies)) {
    while (content.ranges[r].first_source + content.ranges[r].length <= copy.first_source) ++r;
    embeddings.push_back({.row = row,
                          .first_token = copy.first_token,
                          .rows = request.embeddings[r].rows.Part(
                              copy.first_source - content.ranges[r].first_source, copy.length)});
  }
}

RowPositions PositionsOf(const Request& request, int first_token, int num_tokens) {
  const int num_prompt = static_cast<int>(request.prompt.size());
  if (request.positions.empty() || first_token >= num_prompt) return {};
  return {.data = request.positions.data() + first_token,
          .dim_stride = num_prompt,
          .num_dims = static_cast<int>(request.positions.size() / request.prompt.size()),
          .count = std::min(num_tokens, num_prompt - first_token)};
}

}  // namespace reprise
