// A ScheduledBatch as bytes, so that other processes can run the same steps: the ranks of a model
// that is divided over several GPUs, or a recording.
//
//   // On the rank that schedules:
//   std::vector<std::byte> bytes;
//   WriteBatch(batch, bytes);
//   Broadcast(bytes);
//   // On the others:
//   BatchReader reader;
//   REPRISE_ASSIGN_OR_RETURN(const ScheduledBatch* same, reader.Read(received));
//   runner->Launch(*same);
//
// A batch holds nothing that a device owns, and sampling depends on seeds alone: runners that launch
// the same batches keep the same slots and choose the same tokens, so no token has to travel.
//
// Embeddings travel as they are if they are in memory of the host. Rows on a GPU have no bytes: they
// arrive without data, and Launch() refuses them.
//
// The bytes are meant for processes of one build: structs are stored as they are in memory. They
// begin with a mark that tells another build or another byte order.

#ifndef REPRISE_RUNNER_SLOTS_BATCH_BYTES_H_
#define REPRISE_RUNNER_SLOTS_BATCH_BYTES_H_

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/runner/sampling/logits_request.h"
#include "reprise/runner/slots/scheduled_batch.h"

namespace reprise {

// Replaces `bytes` by those of the batch; allocates only to grow it. The size is a multiple of 8.
void WriteBatch(const ScheduledBatch& batch, std::vector<std::byte>& bytes);

// Thread safety: none; one owner. Allocates only for batches with more rows, encoder inputs or
// requests than any before.
class BatchReader {
 public:
  // The batch, valid until the next call and as long as `bytes`, into which its spans point. Errors:
  // InvalidArgument for bytes that WriteBatch() has not written: any bytes are safe to read. Whether
  // the batch itself can be served is for ModelRunner::Launch() to say.
  // REQUIRES: bytes.data() is aligned to 8 bytes.
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
