#include "tests/benchmarks/device/decode_case.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"
#include "reprise/distributed/share.h"
#include "reprise/runner/model_runner.h"
#include "reprise/runner/ops/linear.h"
#include "tests/benchmarks/device/replay_timer.h"
#include "tests/benchmarks/device/stream_kernels.h"

namespace reprise {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kNumWarmupSteps = 10;
constexpr int kNumTracedSteps = 12;
constexpr int64_t kMessageBytes = 8192;  // of RankedSteps

double MicrosecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

// Of a row: the drafts before the first that is wrong, and one token more.
double MeanNewTokens(const DecodeCase& c) {
  double mean = 1;
  double probability = 1;
  for (int i = 0; i < c.num_drafts; ++i) mean += probability *= c.acceptance;
  return mean;
}

// Sequences in the middle of their texts: `batch` slots with `seq_len` random keys each.
class DecodingBatch {
 public:
  static absl::StatusOr<DecodingBatch> Create(DecoderModel& model, const DecodeCase& c) {
    // Rejected drafts take no room in the end, but the last step's may be accepted.
    const int num_steps = kNumWarmupSteps + kNumTracedSteps + c.num_timed_steps * c.num_samples +
                          1 + 4 * c.num_drafts;
    const int first_len = FirstLen(c, num_steps);
    const int max_seq_len =
        first_len + (c.acceptance > 0 ? num_steps * (1 + c.num_drafts) : num_steps);
    const int blocks_per_seq = (max_seq_len - 1) / c.block_size + 1;
    if (c.shared_len < 0 || c.shared_len > first_len || c.shared_len % c.block_size != 0) {
      return absl::InvalidArgumentError(absl::StrCat("shared_len: expected a multiple of ",
                                                     c.block_size, " up to ", first_len, ", got ",
                                                     c.shared_len));
    }
    DecodingBatch batch;
    batch.drafts_.assign(static_cast<size_t>(c.batch) * c.num_drafts, 0);
    batch.num_drafts_ = c.num_drafts;
    batch.acceptance_ = c.acceptance;
    if (RanksOf(c.collectives).world > 1) batch.collectives_ = c.collectives;
    REPRISE_ASSIGN_OR_RETURN(
        batch.runner_,
        ModelRunner::Create(
            &model,
            {.max_num_seqs = c.batch,
             .max_num_tokens = c.batch * (1 + c.num_drafts),
             .max_seq_len = max_seq_len,
             .cache = {.block_size = c.block_size, .size = NumBlocks{1 + c.batch * blocks_per_seq}},
             .graphs = {.mode = c.graphs, .sizes = {c.batch}},
             .speculation = {.max_drafts = c.num_drafts},
             .ranks = {.collectives = c.collectives},
             .device = {.linear_choices_file = c.linear_choices_file, .cascade = c.cascade},
             .debug = {.sample_shards = c.sample_shards}}));
    for (int layer = 0; layer < batch.runner_->kv_cache().num_layers(); ++layer) {
      for (at::Tensor tensor : batch.runner_->kv_cache().tensors(layer)) tensor.normal_();
    }
    batch.blocks_per_seq_ = blocks_per_seq;
    batch.shared_blocks_ = c.shared_len / c.block_size;
    REPRISE_RETURN_IF_ERROR(batch.Join(c.batch, first_len));
    return batch;
  }

  // Begins again, so that num_steps steps have `context` keys in their middle.
  absl::Status Rejoin(const DecodeCase& c, int num_steps) {
    return Join(c.batch, std::max(c.shared_len, FirstLen(c, num_steps)));
  }

  // Launches ahead as far as the runner allows.
  absl::Status Run(int num_steps) {
    for (int i = 0; i < num_steps; ++i) {
      if (acceptance_ > 0) DrawDrafts();
      const Clock::time_point begin = Clock::now();
      if (collectives_ != nullptr) {
        REPRISE_RETURN_IF_ERROR(collectives_->Broadcast(message_, /*root=*/0));
      }
      REPRISE_ASSIGN_OR_RETURN(const int64_t ticket, runner_->Launch({.rows = rows_}));
      launch_us_ += MicrosecondsSince(begin);
      ++num_launches_;
      in_flight_.push_back(ticket);
      if (static_cast<int>(in_flight_.size()) == runner_->shape().max_steps_in_flight) {
        REPRISE_RETURN_IF_ERROR(AwaitOldest());
      }
    }
    return absl::OkStatus();
  }

  absl::Status Drain() {
    while (!in_flight_.empty()) REPRISE_RETURN_IF_ERROR(AwaitOldest());
    return absl::OkStatus();
  }

  // Since the last call.
  double TakeMeanLaunchUs() {
    const double mean = launch_us_ / num_launches_;
    launch_us_ = 0;
    num_launches_ = 0;
    return mean;
  }

  // The same.
  double TakeMeanNewTokens() {
    const double mean = num_new_tokens_ / num_rows_;
    num_new_tokens_ = 0;
    num_rows_ = 0;
    return mean;
  }

  ModelRunner& runner() { return *runner_; }
  bool is_cascade() const { return is_cascade_; }

 private:
  absl::Status AwaitOldest() {
    const absl::StatusOr<StepResult> result = runner_->Await(in_flight_.front());
    in_flight_.pop_front();
    if (!result.ok()) return result.status();
    is_cascade_ = result->decision.key.cascade;
    for (int row = 0; row < static_cast<int>(result->tokens.size()); ++row) {
      num_new_tokens_ += static_cast<double>(result->NewTokens(row).size());
      ++num_rows_;
    }
    return absl::OkStatus();
  }

  // Token 0 is right. The rows point to them.
  void DrawDrafts() {
    std::bernoulli_distribution is_right(acceptance_);
    for (int32_t& draft : drafts_) draft = is_right(rng_) ? 0 : 1;
  }

  static int FirstLen(const DecodeCase& c, int num_steps) {
    const double expected = c.acceptance > 0 ? MeanNewTokens(c) : 1.0;
    return std::max(1, c.context - static_cast<int>(num_steps * expected / 2));
  }

  // Those that had joined leave.
  absl::Status Join(int batch, int seq_len) {
    std::vector<int32_t> blocks(static_cast<size_t>(batch) * blocks_per_seq_);
    std::iota(blocks.begin(), blocks.end(), 1);
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937(1));
    std::vector<SlotJoin> joins;
    std::vector<BlockTableUpdate> updates;
    std::vector<SlotId> leaves;
    for (const ScheduledRow& row : rows_) leaves.push_back(row.slot);
    rows_.clear();
    const std::vector<int32_t> token = {1};
    std::vector<ScheduledRow> first_rows;
    for (int slot = 0; slot < batch; ++slot) {
      joins.push_back({.slot = SlotId(slot), .seq_len = seq_len, .prompt_len = seq_len + 1});
      for (int column = 0; column < blocks_per_seq_; ++column) {
        const size_t owner = column < shared_blocks_ ? 0 : slot;
        updates.push_back({.slot = SlotId(slot),
                           .column = column,
                           .block = BlockId(blocks[owner * blocks_per_seq_ + column])});
      }
      first_rows.push_back({.slot = SlotId(slot), .tokens = token});
      rows_.push_back({.slot = SlotId(slot),
                       .drafts = absl::MakeConstSpan(drafts_).subspan(
                           static_cast<size_t>(slot) * num_drafts_, num_drafts_)});
    }
    return runner_->Step({.leaves = leaves, .joins = joins, .updates = updates, .rows = first_rows})
        .status();
  }

  std::unique_ptr<ModelRunner> runner_;
  Collectives* collectives_ = nullptr;  // if there are several ranks
  at::Tensor message_ = at::zeros({kMessageBytes}, at::kByte);
  int blocks_per_seq_ = 0;
  int shared_blocks_ = 0;
  std::vector<int32_t> drafts_;  // [batch, num_drafts_]
  int num_drafts_ = 0;
  double acceptance_ = 0;
  std::mt19937 rng_{2};
  double num_new_tokens_ = 0;
  double num_rows_ = 0;
  std::vector<ScheduledRow> rows_;
  std::deque<int64_t> in_flight_;
  bool is_cascade_ = false;
  double launch_us_ = 0;
  int num_launches_ = 0;
};

std::vector<const Linear*> ProductsOf(const DecoderModel& model) {
  std::vector<const Linear*> products;
  for (const DecoderLayerWeights& layer : model.weights().layers) {
    products.insert(products.end(), {&layer.qkv, &layer.o, &*layer.gate_up, &*layer.down});
  }
  products.push_back(&model.weights().lm_head);
  return products;
}

// All products of a step in the model's order: the weights of the other layers evict each layer's
// from the caches.
absl::StatusOr<double> TimeProducts(const DecoderModel& model, int batch) {
  REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<LinearContext> context,
                           MakeLinearContext(model.spec().device, {}));
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  for (const Linear* product : ProductsOf(model)) {
    const at::TensorOptions options = model.weights().embedding.options();
    inputs.push_back(at::randn({batch, product->in_features()}, options));
    outputs.push_back(at::empty({batch, product->out_features()}, options));
  }
  REPRISE_ASSIGN_OR_RETURN(const Timing timing, TimeReplays(
                                                    [&]() -> absl::Status {
                                                      size_t i = 0;
                                                      for (const Linear* p : ProductsOf(model)) {
                                                        REPRISE_RETURN_IF_ERROR(p->Apply(
                                                            *context, inputs[i], outputs[i]));
                                                        ++i;
                                                      }
                                                      return absl::OkStatus();
                                                    },
                                                    {}));
  return timing.median_us;
}

double WeightBytesOf(const Linear& product) {
  double bytes = static_cast<double>(product.weight().nbytes());
  if (product.scales().has_value()) bytes += static_cast<double>(product.scales()->nbytes());
  return bytes;
}

double WeightBytes(const DecoderModel& model) {
  double bytes = static_cast<double>(model.weights().final_norm.nbytes());
  for (const Linear* product : ProductsOf(model)) bytes += WeightBytesOf(*product);
  for (const DecoderLayerWeights& layer : model.weights().layers) {
    bytes += static_cast<double>(layer.input_norm.nbytes() + layer.mlp_norm.nbytes());
  }
  return bytes;
}

// DecodeResult::part_bytes for steps of num_tokens tokens.
std::map<std::string, double> PartBytes(const DecoderModel& model, int num_tokens, double kv_bytes,
                                        double new_kv_bytes) {
  std::map<std::string, double> bytes = {{"attention", kv_bytes}};
  const double row_bytes = num_tokens * model.weights().embedding.element_size();
  for (const DecoderLayerWeights& layer : model.weights().layers) {
    bytes["qkv"] += WeightBytesOf(layer.qkv);
    bytes["o"] += WeightBytesOf(layer.o);
    bytes["gate_up"] += WeightBytesOf(*layer.gate_up);
    bytes["down"] += WeightBytesOf(*layer.down);
    // x and the residual in and out; gate and up in, their product out; q, k and v in, q out.
    bytes["norm"] += 2 * 4 * row_bytes * layer.qkv.in_features();
    bytes["activation"] += row_bytes * 1.5 * layer.gate_up->out_features();
    bytes["rotary_write"] += row_bytes * (layer.qkv.out_features() + layer.o.in_features());
  }
  bytes["rotary_write"] += new_kv_bytes;
  bytes["head"] += WeightBytesOf(model.weights().lm_head);
  bytes["sampling"] += row_bytes * model.weights().lm_head.out_features();
  return bytes;
}

}  // namespace

absl::StatusOr<DecodeResult> MeasureDecode(DecoderModel& model, const DecodeCase& decode_case,
                                           const MemoryRates& limits) {
  return CatchTorchOr([&]() -> absl::StatusOr<DecodeResult> {
    c10::cuda::CUDACachingAllocator::emptyCache();
    DecodeResult result;
    REPRISE_ASSIGN_OR_RETURN(DecodingBatch batch, DecodingBatch::Create(model, decode_case));
    REPRISE_RETURN_IF_ERROR(batch.Run(kNumWarmupSteps));
    REPRISE_RETURN_IF_ERROR(batch.Drain());
    batch.TakeMeanLaunchUs();
    batch.TakeMeanNewTokens();

    std::vector<double> samples_us;
    for (int sample = 0; sample < decode_case.num_samples; ++sample) {
      const Clock::time_point begin = Clock::now();
      REPRISE_RETURN_IF_ERROR(batch.Run(decode_case.num_timed_steps));
      REPRISE_RETURN_IF_ERROR(batch.Drain());
      samples_us.push_back(MicrosecondsSince(begin) / decode_case.num_timed_steps);
    }
    std::sort(samples_us.begin(), samples_us.end());
    result.step_us = samples_us[samples_us.size() / 2];
    result.step_min_us = samples_us.front();
    result.step_max_us = samples_us.back();
    result.launch_us = batch.TakeMeanLaunchUs();
    result.tokens_per_row = batch.TakeMeanNewTokens();

    // The floors that the trace is compared with are those of `context` keys.
    REPRISE_RETURN_IF_ERROR(batch.Rejoin(decode_case, kNumTracedSteps));
    REPRISE_ASSIGN_OR_RETURN(const DeviceTrace trace, TraceDevice([&]() -> absl::Status {
                               REPRISE_RETURN_IF_ERROR(batch.Run(kNumTracedSteps));
                               return batch.Drain();
                             }));
    REPRISE_ASSIGN_OR_RETURN(result.parts, SplitSteps(trace));
    result.is_cascade = batch.is_cascade();
    result.graph_bytes = static_cast<double>(batch.runner().graph_report().graph_bytes());
    result.capture_ms = batch.runner().graph_report().capture_ms();

    const int num_tokens = decode_case.batch * (1 + decode_case.num_drafts);
    const double bytes_per_token =
        static_cast<double>(batch.runner().kv_cache().bytes_per_block()) / decode_case.block_size;
    REPRISE_ASSIGN_OR_RETURN(result.products_us, TimeProducts(model, num_tokens));
    result.weight_bytes = WeightBytes(model);
    const int num_repeats = decode_case.batch - 1;
    result.kv_bytes = bytes_per_token * (1.0 * decode_case.batch * decode_case.context -
                                         1.0 * num_repeats * decode_case.shared_len);
    result.part_bytes = PartBytes(model, num_tokens, result.kv_bytes, bytes_per_token * num_tokens);
    const double bytes_per_us = limits.read_tb_per_s * 1e6;
    result.bytes_floor_us = (result.weight_bytes + result.kv_bytes) / bytes_per_us;
    result.products_floor_us = result.products_us + result.kv_bytes / bytes_per_us;
    return result;
  });
}

}  // namespace reprise
