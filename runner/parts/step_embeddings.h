// The embeddings that callers pass for a step's tokens, in persistent memory. Captured graphs read
// them instead of the embeddings of token ids (Step::Embed()).
//
//   REPRISE_ASSIGN_OR_RETURN(auto embeddings, StepEmbeddings::Allocate(512, format, device));
//   REPRISE_RETURN_IF_ERROR(embeddings->Write(batch));  // then replay
//   REPRISE_RETURN_IF_ERROR(embeddings->Clear());       // before a replay without embeddings
//
// Memory: max_tokens * (dim elements + 1 byte).
//
// Thread safety: none; one owner.

#ifndef REPRISE_RUNNER_PARTS_STEP_EMBEDDINGS_H_
#define REPRISE_RUNNER_PARTS_STEP_EMBEDDINGS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/graphs/fingerprint.h"
#include "reprise/runner/slots/embedding_rows.h"
#include "reprise/runner/slots/scheduled_batch.h"

namespace reprise {

class StepEmbeddings {
 public:
  // Errors: ResourceExhausted if the device has too little memory. REQUIRES: format.dim > 0.
  static absl::StatusOr<std::unique_ptr<StepEmbeddings>> Allocate(int max_tokens,
                                                                  const EmbeddingFormat& format,
                                                                  c10::Device device);

  // Copies the batch's ranges to the rows of their tokens, and marks only these tokens. Enqueues
  // one copy and one fill per range on LibTorch's current stream. REQUIRES: SlotMirror has accepted
  // the batch.
  absl::Status Write(const ScheduledBatch& batch);

  // Unmarks all tokens. Enqueues nothing if no token is marked.
  absl::Status Clear();

  // Step::Parts::embeddings and is_embedded for the first `num_tokens` tokens.
  at::Tensor rows(int64_t num_tokens) const { return rows_.narrow(0, 0, num_tokens); }
  at::Tensor is_embedded(int64_t num_tokens) const { return is_embedded_.narrow(0, 0, num_tokens); }

  int64_t bytes() const;
  void AddTo(Fingerprint& fingerprint) const;

 private:
  StepEmbeddings(at::Tensor rows, at::Tensor is_embedded)
      : rows_(std::move(rows)), is_embedded_(std::move(is_embedded)) {}

  at::Tensor rows_;         // [max_tokens, dim]
  at::Tensor is_embedded_;  // [max_tokens, 1] bool
  int64_t num_marked_ = 0;  // all marked tokens are before this index
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_PARTS_STEP_EMBEDDINGS_H_
