// Embeddings and positions of a prompt. Maps them to the tokens of a step, and derives the hash
// keys that keep prompts with different embeddings or positions apart in the prefix cache.
//
// The prompt has the same placeholder ids for every image. Each range of embeddings therefore has a
// key, and the hash of a block depends on the keys of the ranges that overlap it
// (cache/blocks/sequence_content.h). Positions get a key if they are not the previous position + 1:
// for example the tokens of an image in M-RoPE, and the first token after it. If two prompts are
// equal up to some token, the keys of ranges that end before that token are equal.
//
// No LibTorch. Thread safety: plain values and pure functions.

#ifndef REPRISE_ENGINE_PROMPT_CONTENT_H_
#define REPRISE_ENGINE_PROMPT_CONTENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "reprise/cache/prefix/prefix_hash.h"
#include "reprise/engine/placeholder_map.h"
#include "reprise/engine/request.h"
#include "reprise/runner/slots/scheduled_batch.h"

namespace reprise {

struct PositionLimits {
  int num_position_dims = 1;
  int max_position = 0;  // exclusive bound of all positions; read only with several dimensions
};

// Identifies content of tokens [first_token, first_token + num_tokens) that their ids do not
// determine.
struct ContentKey {
  ExtraKeyKind kind = ExtraKeyKind::kOther;
  std::string value = {};
  int first_token = 0;
  int num_tokens = 0;

  friend bool operator==(const ContentKey&, const ContentKey&) = default;
};

struct PromptContent {
  // Maps tokens of the prompt to rows of its embeddings. Rows are numbered across all ranges.
  std::vector<PlaceholderRange> ranges = {};
  std::vector<ContentKey> keys = {};  // ascending by first_token
  // SlotJoin::position_delta: tokens after the prompt continue from its largest position + 1.
  int position_delta = 0;
};

// Errors: InvalidArgument if ranges of embeddings leave the prompt, do not ascend or overlap; if
// positions have the wrong count, are out of range, or are given for a model with one dimension.
// StepRunner::CheckEmbeddings() checks the rows of embeddings.
absl::Status CheckPromptContent(const Request& request, const PositionLimits& limits);

// `hasher`: makes the keys; null: no keys. `unique`: a value that no other request has, to identify
// embeddings on a GPU without a `content`. REQUIRES: CheckPromptContent() is OK.
// Cost: one pass over the positions, and over embeddings in host memory without a `content`.
PromptContent MakePromptContent(const Request& request, const PositionLimits& limits,
                                const PrefixHasher* hasher, int64_t unique);

// Returns a number of leading tokens, at most `num_tokens`, whose content is equal in two prompts:
// the tokens before the first range whose keys differ. REQUIRES: the ids of the first `num_tokens`
// tokens are equal.
int NumEqualTokens(absl::Span<const ContentKey> a, absl::Span<const ContentKey> b, int num_tokens);

// Appends the embeddings of the prompt tokens [first_token, first_token + num_tokens), for row
// `row` of the batch. `copies`: scratch memory that is reused. REQUIRES: `content` was made from
// `request`.
void AppendEmbeddings(const Request& request, const PromptContent& content, int first_token,
                      int num_tokens, int row, std::vector<PlaceholderCopy>& copies,
                      std::vector<ScheduledEmbeddings>& embeddings);

// Returns the request's positions for a row with the tokens [first_token, first_token + num_tokens)
// of the sequence. Empty if the request has no positions, or if the row begins after the prompt.
RowPositions PositionsOf(const Request& request, int first_token, int num_tokens);

}  // namespace reprise

#endif  // REPRISE_ENGINE_PROMPT_CONTENT_H_
