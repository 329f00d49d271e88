// A runner of one's own: the toolkit's slots, refill and graphs around a step that is not a
// reprise::Model. A step is one message to the device (the delta), one refill, one replay.
//
// The step: a token attends to the keys of its sequence, and its logits are what it finds, shifted
// by one. All that a replay reads is at fixed addresses: slots, step arrays, cache.

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/roll.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <memory>
#include <vector>

#include "example.h"
#include "reprise/attention/planned_attention.h"
#include "reprise/cache/blocks/block_manager.h"
#include "reprise/cache/ops/write_kv.h"
#include "reprise/cache/storage/kv_cache.h"
#include "reprise/graphs/graph_set.h"
#include "reprise/graphs/recorded_backend.h"
#include "reprise/runner/slots/refill.h"
#include "reprise/runner/slots/scheduled_batch.h"
#include "reprise/runner/slots/step_delta_layout.h"
#ifdef REPRISE_WITH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "reprise/graphs/cuda_graph_backend.h"
#endif

namespace {

constexpr int kVocabSize = 32, kMaxSeqs = 4, kMaxTokens = 32, kBlockSize = 4, kMaxBlocks = 8;
constexpr int kNumBlocks = 1 + kMaxSeqs * kMaxBlocks;
constexpr reprise::StepDeltaCapacity kDelta = {.num_slots = kMaxSeqs,
                                               .max_updates = kMaxSeqs * kMaxBlocks,
                                               .max_rows = kMaxSeqs,
                                               .max_tokens = kMaxTokens};

class OwnRunner {
 public:
  explicit OwnRunner(c10::Device device) : device_(device) {
    MakeStateAndArrays();
    MakeAttention();
    graphs_ = Check(reprise::GraphSet::Create({.mode = reprise::GraphSetOptions::Mode::kLazy,
                                               .max_num_seqs = kMaxSeqs,
                                               .max_seq_len = kBlockSize * kMaxBlocks},
                                              backend_.get()));
  }

  // The newest token of each row.
  std::vector<int32_t> Step(const reprise::ScheduledBatch& batch) {
    reprise::StepShape shape = {.num_seqs = static_cast<int>(batch.rows.size())};
    for (const reprise::ScheduledRow& row : batch.rows) {
      shape.num_tokens += row.query_len();
      shape.max_query_len = std::max(shape.max_query_len, row.query_len());
    }
    reprise::GraphDecision decision = graphs_->Decide(shape);
    // The message. With steps in flight it would be a slot of a StagingRing in mapped memory.
    reprise::WriteStepDelta(batch, /*common_prefix_len=*/0, kDelta,
                            reprise::StepDeltaAt(kDelta, Bytes(host_delta_)));
    device_delta_.copy_(host_delta_);
    Refill(decision.key);
    if (decision.kind == reprise::GraphDecision::Kind::kReplay) {
      decision = Check(graphs_->Replay(
          decision.key, [this](const reprise::GraphKey& key) { return StepAt(key); },
          reprise::Fingerprint()));
    } else {
      Check(StepAt(decision.key)());
    }
    graphs_->Count(decision, shape);
    const at::Tensor tokens = tokens_.slice(0, 0, shape.num_seqs).cpu();
    return {tokens.const_data_ptr<int32_t>(), tokens.const_data_ptr<int32_t>() + shape.num_seqs};
  }

  const reprise::GraphReport& graph_report() const { return graphs_->report(); }
#ifdef REPRISE_WITH_CUDA
  CUstream_st* stream() const { return stream_; }
#endif

 private:
  static std::byte* Bytes(const at::Tensor& tensor) {
    return reinterpret_cast<std::byte*>(tensor.mutable_data_ptr<uint8_t>());
  }
  at::Tensor Ints(int64_t count) {
    return Keep(at::zeros({count}, at::device(device_).dtype(at::kInt)));
  }
  at::Tensor Keep(at::Tensor tensor) { return kept_.emplace_back(std::move(tensor)); }
  int32_t* IntArray(int64_t count) { return Ints(count).mutable_data_ptr<int32_t>(); }

  void MakeStateAndArrays() {
#ifdef REPRISE_WITH_CUDA
    if (device_.is_cuda()) {
      auto backend = Check(reprise::CudaGraphBackend::Create({.device = device_.index()}));
      stream_ = backend->stream();
      backend_ = std::move(backend);
    }
#endif
    if (device_.is_cpu()) backend_ = reprise::MakeRecordedBackend();
    const auto bytes = at::device(device_).dtype(at::kByte);
    host_delta_ = at::zeros({reprise::StepDeltaBytes(kDelta)}, at::kByte);
    device_delta_ = at::zeros_like(host_delta_, bytes);
    table_ = at::zeros({kMaxSeqs, kMaxBlocks}, at::device(device_).dtype(at::kInt));
    slot_mapping_ = at::zeros({kMaxTokens}, at::device(device_).dtype(at::kLong));
    token_ids_ = Ints(kMaxTokens), query_start_loc_ = Ints(kMaxSeqs + 1);
    seq_lens_ = Ints(kMaxSeqs), table_row_ = Ints(kMaxSeqs), logits_indices_ = Ints(kMaxSeqs);
    sample_slot_ = Ints(kMaxSeqs), last_token_ = Ints(kMaxSeqs), tokens_ = Ints(kMaxSeqs);
    embedding_ = at::eye(kVocabSize, at::device(device_));

    args_.delta = reprise::StepDeltaAt(kDelta, Bytes(device_delta_));
    args_.slots.block_table = table_.mutable_data_ptr<int32_t>();
    args_.slots.block_table_stride = kMaxBlocks;
    args_.slots.block_table_group_stride = kMaxSeqs * kMaxBlocks;
    args_.slots.seq_len = IntArray(kMaxSeqs);
    args_.slots.encoder_len = IntArray(kMaxSeqs);
    args_.slots.last_token = last_token_.mutable_data_ptr<int32_t>();
    args_.slots.sample_index =
        Keep(at::zeros({kMaxSeqs}, slot_mapping_.options())).mutable_data_ptr<int64_t>();
    args_.slots.sampling = reinterpret_cast<reprise::SamplingParams*>(
        Bytes(Keep(at::zeros({int64_t{kMaxSeqs * sizeof(reprise::SamplingParams)}}, bytes))));
    args_.slots.num_slots = kMaxSeqs;
    args_.slots.max_blocks = kMaxBlocks;
    args_.arrays = {.token_ids = token_ids_.mutable_data_ptr<int32_t>(),
                    .positions = IntArray(kMaxTokens),
                    .slot_mapping = slot_mapping_.mutable_data_ptr<int64_t>(),
                    .query_start_loc = query_start_loc_.mutable_data_ptr<int32_t>(),
                    .seq_lens = seq_lens_.mutable_data_ptr<int32_t>(),
                    .context_lens = IntArray(kMaxSeqs),
                    .encoder_lens = IntArray(kMaxSeqs),
                    .table_row = table_row_.mutable_data_ptr<int32_t>(),
                    .logits_indices = logits_indices_.mutable_data_ptr<int32_t>(),
                    .sample_slot = sample_slot_.mutable_data_ptr<int32_t>(),
                    .common_prefix_len = IntArray(1),
                    .row_faults = IntArray(kMaxSeqs),
                    .num_faults = IntArray(1),
                    .max_rows = kMaxSeqs,
                    .max_tokens = kMaxTokens};
    args_.block_size = kBlockSize;
    args_.num_blocks = kNumBlocks;
  }

  void MakeAttention() {
    cache_ =
        Check(reprise::KvCache::Create(Check(reprise::KvLayout::Create({.num_blocks = kNumBlocks,
                                                                        .block_size = kBlockSize,
                                                                        .num_kv_heads = 1,
                                                                        .head_dim_qk = kVocabSize,
                                                                        .head_dim_v = kVocabSize})),
                                       device_));
    attention_ =
        Check(reprise::PlannedAttention::Create({.work = {.dtype = reprise::DType::kFloat32,
                                                          .num_q_heads = 1,
                                                          .num_kv_heads = 1,
                                                          .head_dim_qk = kVocabSize,
                                                          .head_dim_v = kVocabSize,
                                                          .max_rows = kMaxSeqs,
                                                          .max_tokens = kMaxTokens,
                                                          .max_query_len = kMaxTokens,
                                                          .max_seq_len = kBlockSize * kMaxBlocks},
                                                 .block_size = kBlockSize,
                                                 .device = device_}));
    const auto bytes = at::device(device_).dtype(at::kByte);
    Check(attention_->SetScheduleWorkspace(at::empty({attention_->schedule_bytes()}, bytes)));
    Check(attention_->SetPartialWorkspace(at::empty({attention_->partial_bytes()}, bytes)));
  }

  void Refill(const reprise::GraphKey& key) {
    args_.padded_num_rows = key.padded_num_seqs;
    args_.padded_num_tokens = key.padded_num_tokens;
    Check(reprise::CheckRefill(args_));
#ifdef REPRISE_WITH_CUDA
    if (device_.is_cuda()) return Check(reprise::LaunchRefill(args_, stream_));
#endif
    reprise::RefillOnHost(args_);
  }

  // The work of a step of this size: captured, and on the CPU run at each replay.
  std::function<absl::Status()> StepAt(const reprise::GraphKey& key) {
    return [this, rows = key.padded_num_seqs, tokens = key.padded_num_tokens]() -> absl::Status {
      const at::Tensor x = embedding_.index_select(0, token_ids_.slice(0, 0, tokens)).unsqueeze(1);
      // The rows' tables, in their order: PlannedAttention takes a table a row.
      const at::Tensor row_tables = table_.index_select(0, table_row_.slice(0, 0, rows));
      absl::Status status =
          attention_->Plan({.seq_lens = seq_lens_.slice(0, 0, rows),
                            .block_table = row_tables,
                            .query_start_loc = query_start_loc_.slice(0, 0, rows + 1),
                            .num_tokens = tokens});
      if (!status.ok()) return status;
      status = reprise::WriteKv(cache_->layer(0), x, x, slot_mapping_.slice(0, 0, tokens));
      if (!status.ok()) return status;
      at::Tensor attended = at::empty_like(x);
      status = attention_->Run({.num_q_heads = 1,
                                .num_kv_heads = 1,
                                .head_dim_qk = kVocabSize,
                                .head_dim_v = kVocabSize},
                               x * 20, cache_->layer(0), {attended});
      if (!status.ok()) return status;
      const at::Tensor logits =
          at::roll(attended.squeeze(1).index_select(0, logits_indices_.slice(0, 0, rows)), 1, 1);
      const at::Tensor chosen = logits.argmax(1).to(at::kInt);
      tokens_.slice(0, 0, rows).copy_(chosen);
      // What a slot's next row starts from. Padded rows have no slot: they go beyond the last one.
      const at::Tensor slots = sample_slot_.slice(0, 0, rows);
      at::Tensor by_slot = at::zeros({kMaxSeqs + 1}, last_token_.options());
      by_slot.slice(0, 0, kMaxSeqs).copy_(last_token_);
      by_slot.index_copy_(0, slots.where(slots >= 0, at::full_like(slots, kMaxSeqs)).to(at::kLong),
                          chosen);
      last_token_.copy_(by_slot.slice(0, 0, kMaxSeqs));
      return absl::OkStatus();
    };
  }

  const c10::Device device_;
  CUstream_st* stream_ = nullptr;
  std::unique_ptr<reprise::GraphBackend> backend_;
  std::vector<at::Tensor> kept_;  // memory that args_ points into
  at::Tensor host_delta_, device_delta_, table_, slot_mapping_, token_ids_, query_start_loc_;
  at::Tensor seq_lens_, table_row_, logits_indices_, sample_slot_, last_token_, tokens_, embedding_;
  reprise::RefillArgs args_;
  std::optional<reprise::KvCache> cache_;
  std::unique_ptr<reprise::PlannedAttention> attention_;
  std::unique_ptr<reprise::GraphSet> graphs_;  // after all that its graphs read
};

void Run() {
  const c10::Device device = ExampleDevice();
  OwnRunner runner(device);
#ifdef REPRISE_WITH_CUDA
  std::optional<c10::cuda::CUDAStreamGuard> on_stream;
  if (device.is_cuda()) {
    c10::cuda::device_synchronize();  // the memory was filled on another stream
    on_stream.emplace(c10::cuda::getStreamFromExternal(runner.stream(), device.index()));
  }
#endif
  reprise::BlockManager blocks = Check(reprise::BlockManager::Create({.num_blocks = kNumBlocks,
                                                                      .block_size = kBlockSize,
                                                                      .num_slots = kMaxSeqs,
                                                                      .max_blocks = kMaxBlocks}));
  const std::vector<std::vector<int32_t>> prompts = {{3, 4, 5}, {9, 10, 11, 12, 13}, {20}};
  std::vector<reprise::SlotJoin> joins;
  std::vector<reprise::ScheduledRow> rows;
  for (int i = 0; i < 3; ++i) {
    const reprise::SlotId slot(i);
    Check(blocks.Add(slot, static_cast<int>(prompts[i].size())));
    joins.push_back(reprise::JoinOf(slot, {}, prompts[i].size()));
    rows.push_back({.slot = slot, .tokens = prompts[i]});
  }
  std::vector<int32_t> newest =
      runner.Step({.joins = joins, .updates = blocks.TakeUpdates(), .rows = rows});
  for (int step = 1; step < 8; ++step) {
    for (reprise::ScheduledRow& row : rows) {
      Check(blocks.Append(row.slot, 1));
      row.tokens = {};  // the slot's last token, which the device has
    }
    newest = runner.Step({.updates = blocks.TakeUpdates(), .rows = rows});
  }
  for (int i = 0; i < 3; ++i) {
    Expect(newest[i] == prompts[i].back() + 8,
           "each sequence to have counted to its 8th successor");
  }
  const int64_t num_replays = runner.graph_report().num_replays();
  Expect(num_replays == 7, "all decode steps to be replays");
  std::cout << "own_runner: 3 sequences, 1 eager step, " << num_replays << " replays" << std::endl;
}

}  // namespace

int main() { Run(); }
