// Runs a model's encoder over the inputs of new sequences, and writes their keys into the cross
// groups: at most once per sequence, before its first row, outside of graphs.
//
//   REPRISE_ASSIGN_OR_RETURN(auto pass, EncoderPass::Create(options, &driver));
//   pass->Follow(batch.updates);                                   // for each step
//   REPRISE_RETURN_IF_ERROR(pass->Run(batch.encodes, model, kv));  // after the step's refill
//
// The inputs are written to a ring of mapped memory, and copied to the device with one copy. No
// call waits as long as at most num_passes_in_flight passes are in flight. The host computes the
// slot mapping of the keys from its own copy of the cross groups' tables.
//
// Thread safety: none; one owner. The driver must outlive it.

#ifndef REPRISE_RUNNER_PARTS_ENCODER_PASS_H_
#define REPRISE_RUNNER_PARTS_ENCODER_PASS_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/base/mapped_buffer.h"
#include "reprise/base/staging_ring.h"
#include "reprise/cache/storage/kv_layer.h"
#include "reprise/cache/tables/block_table_update.h"
#include "reprise/runner/device/device_driver.h"
#include "reprise/runner/model.h"
#include "reprise/runner/slots/scheduled_batch.h"
#include "reprise/runner/step_metadata.h"

namespace reprise {

struct EncoderPassOptions {
  StepMetadataOptions metadata = {};  // layers, classes and sizes of a step
  int max_step_tokens = 0;            // maximum number of tokens of all inputs per pass
  int max_blocks = 0;                 // columns per table
  int block_size = 0;
  int num_passes_in_flight = 1;
};

class EncoderPass {
 public:
  static absl::StatusOr<std::unique_ptr<EncoderPass>> Create(const EncoderPassOptions& options,
                                                             DeviceDriver* driver);

  // Records new blocks of the cross groups. REQUIRES: the updates have been checked
  // (runner/slots/slot_mirror.h).
  void Follow(absl::Span<const BlockTableUpdate> updates);

  // Enqueues one Model::Encode() for all inputs. `kv`: one entry per layer of the model. REQUIRES:
  // the encodes have been checked; at least one. Errors: as Model::Encode().
  absl::Status Run(absl::Span<const ScheduledEncode> encodes, Model& model,
                   absl::Span<const KvLayer> kv);

 private:
  // The inputs of one pass, in staging memory or on the device.
  struct Arrays {
    int64_t* slot_mapping;     // [num_groups, max_step_tokens]
    int32_t* query_start_loc;  // [max_rows + 1]
    int32_t* token_ids;        // [max_step_tokens]
    int32_t* positions;        // [max_step_tokens]
  };

  EncoderPass(const EncoderPassOptions& options, DeviceDriver* driver);
  absl::Status Allocate();
  absl::Status AllocateTileSchedules();
  int64_t PassBytes() const;
  Arrays ArraysAt(std::byte* base) const;
  // Writes the inputs. Returns their batch, which points to the device's arrays.
  RaggedBatch Write(absl::Span<const ScheduledEncode> encodes, const Arrays& arrays);
  bool IsCross(int group) const;
  int num_groups() const { return options_.metadata.classes.num_groups(); }
  int32_t* table_row(int group, int slot);

  EncoderPassOptions options_;
  DeviceDriver* driver_;
  std::vector<int32_t> tables_;  // [num_groups, max_rows, max_blocks]
  std::optional<MappedBuffer> staging_memory_;
  std::optional<StagingRing> staging_;
  at::Tensor device_memory_;
  std::vector<at::Tensor> tile_schedule_memory_;
  std::vector<TileSchedule>
      tile_schedules_;  // one per class; empty except for classes without a cache
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_PARTS_ENCODER_PASS_H_
