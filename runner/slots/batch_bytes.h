// Serialises a ScheduledBatch, so that other processes can run the same steps: the ranks of a model
// that is sharded over several GPUs, or a recording.
//
//   // On the rank that schedules:
//   std::vector<std::byte> bytes;
//   WriteBatch(batch, bytes);
//   Broadcast(bytes);
//   // On the other ranks:
//   BatchReader reader;
//   REPRISE_ASSIGN_OR_RETURN(const ScheduledBatch* same, reader.Read(received));
//   runner->Launch(*same);
//
// Sampled tokens are not transferred. Except for embeddings, a batch does not refer to device
// memory, and sampling depends only on logits, parameters and seeds. Runners of the same model that
// launch the same batches therefore have the same slots and choose the same tokens.
//
// Embeddings in host memory are copied. Embeddings on a GPU are not: they arrive without data, and
// Launch() rejects them.
//
// Only processes of the same build can exchange these bytes, because structs are copied from
// memory. The bytes begin with a mark that differs between byte orders, and between builds in which
// some of these structs have different sizes.

#ifndef REPRISE_RUNNER_SLOTS_BATCH_BYTES_H_
#define REPRISE_RUNNER_SLOTS_BATCH_BYTES_H_

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/runner/sampling/logits_request.h"
#include "reprise/runner/slots/scheduled_batch.h"

namespace reprise {

// Replaces `bytes` by the serialised batch. The size is a multiple of 8. Allocates only to grow
// `bytes`.
void WriteBatch(const ScheduledBatch& batch, std::vector<std::byte>& bytes);

// Deserialises batches. Thread safety: none; one owner. Allocates only if a batch has more rows,
// encoder inputs, requests or embeddings than every earlier batch.
class BatchReader {
 public:
  // Returns the batch that `bytes` holds. Its spans point into `bytes` and into this reader: valid
  // until the next call, and while `bytes` lives. Does not check whether a runner can serve the
  // batch: ModelRunner::Launch() does.
  // REQUIRES: bytes.data() is aligned to 8 bytes.
  // Errors: InvalidArgument if `bytes` do not have the format of WriteBatch(). Arbitrary bytes are
  // safe to read.
  absl::StatusOr<const ScheduledBatch*> Read(absl::Span<const std::byte> bytes);

 private:
  std::vector<ScheduledRow> rows_;
  std::vector<ScheduledEncode> encodes_;
  std::vector<LogitsRequest> logits_requests_;
  std::vector<ScheduledEmbeddings> embeddings_;
  ScheduledBatch batch_;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_SLOTS_BATCH_BYTES_H_
