// What a prompt holds beside its token ids: embeddings and positions. Which of a step's tokens they
// are for, and what tells the cached keys of two prompts apart.
//
// Embeddings of an image are placeholders in the prompt, which are alike for all images; so each
// range has a key of its own, and a block's hash depends on the keys of the ranges that it holds
// (cache/blocks/sequence_content.h). Positions are keyed where they do not follow from those before:
// the tokens of an image in M-RoPE, and the first token after it. Prompts that agree up to some
// token have the same keys up to there.
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
  int max_position = 0;  // beyond all positions; read only with several dimensions
};

// Content of tokens [first_token, first_token + num_tokens) that their ids do not tell.
struct ContentKey {
  ExtraKeyKind kind = ExtraKeyKind::kOther;
  std::string value = {};
  int first_token = 0;
  int num_tokens = 0;

  friend bool operator==(const ContentKey&, const ContentKey&) = default;
};

struct PromptContent {
  // Of the prompt's tokens to the rows of all its embeddings, counted from first to last.
  std::vector<PlaceholderRange> ranges = {};
  std::vector<ContentKey> keys = {};  // ascending by first_token
  // SlotJoin::position_delta: what follows the prompt continues one beyond its largest position.
  int position_delta = 0;
};

// Errors: InvalidArgument naming what does not fit: ranges of embeddings that leave the prompt, do
// not ascend or overlap; positions in another number, out of range, or of a model with one
// dimension. Whether a runner takes the rows, it says itself (StepRunner::CheckEmbeddings).
absl::Status CheckPromptContent(const Request& request, const PositionLimits& limits);

// `hasher`: makes the keys; null: they are not needed. `unique`: a value that no other request
// has, for embeddings whose content is not known. REQUIRES: CheckPromptContent() is OK.
// Cost: a pass over positions, and over embeddings in host memory without a `content`.
PromptContent MakePromptContent(const Request& request, const PositionLimits& limits,
                                const PrefixHasher* hasher, int64_t unique);

// How many of the first `num_tokens` tokens, whose ids are equal, have equal content too.
int NumEqualTokens(absl::Span<const ContentKey> a, absl::Span<const ContentKey> b, int num_tokens);

// Appends what a row of the prompt's tokens [first_token, first_token + num_tokens) brings, as row
// `row` of its batch. `copies`: memory that is reused. REQUIRES: `content` is the request's.
void AppendEmbeddings(const Request& request, const PromptContent& content, int first_token,
                      int num_tokens, int row, std::vector<PlaceholderCopy>& copies,
                      std::vector<ScheduledEmbeddings>& embeddings);

// The positions of a row of `num_tokens` tokens of the sequence from `first_token` on: those that
// the request brings.
RowPositions PositionsOf(const Request& request, int first_token, int num_tokens);

}  // namespace reprise

#endif  // REPRISE_ENGINE_PROMPT_CONTENT_H_
