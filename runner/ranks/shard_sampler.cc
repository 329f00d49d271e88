#include "reprise/runner/ranks/shard_sampler.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "absl/functional/function_ref.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/base/torch_status.h"
#include "reprise/distributed/collectives.h"
#include "reprise/runner/sampling/shard_sampling.h"
#ifdef REPRISE_WITH_CUDA
#include "reprise/runner/ops/cuda_launch.h"
#endif

namespace reprise {
namespace {

// Runs one of the three parts of shard sampling on the device of `logits`.
absl::Status Run([[maybe_unused]] const at::Tensor& logits, const ShardSamplingArgs& args,
                 void (*on_host)(const ShardSamplingArgs&),
                 [[maybe_unused]] absl::Status (*launch)(const ShardSamplingArgs&, CUstream_st*)) {
#ifdef REPRISE_WITH_CUDA
  if (logits.is_cuda()) {
    return LaunchOnCurrentStream(logits, [&](cudaStream_t stream) { return launch(args, stream); });
  }
#endif
  REPRISE_RETURN_IF_ERROR(CheckShardSampling(args));
  on_host(args);
  return absl::OkStatus();
}

#ifdef REPRISE_WITH_CUDA
constexpr auto kLaunchTop = LaunchShardTop;
constexpr auto kLaunchChoice = LaunchShardChoice;
constexpr auto kLaunchTokens = LaunchShardTokens;
#else
constexpr absl::Status (*kLaunchTop)(const ShardSamplingArgs&, CUstream_st*) = nullptr;
constexpr auto kLaunchChoice = kLaunchTop;
constexpr auto kLaunchTokens = kLaunchTop;
#endif

}  // namespace

ShardedLogits* ShardSampler::LogitsOf(const ModelSpec& spec) {
  ShardedLogits* const sharded = spec.sharded_logits;
  return sharded == nullptr || sharded->ranks().world == 1 ? nullptr : sharded;
}

ShardSampler::ShardSampler(const ShardSamplerOptions& options)
    : options_(options), params_(options.max_rows) {}

absl::StatusOr<std::unique_ptr<ShardSampler>> ShardSampler::Create(
    const ShardSamplerOptions& options) {
  return CatchTorchOr([&]() -> absl::StatusOr<std::unique_ptr<ShardSampler>> {
    auto sampler = std::unique_ptr<ShardSampler>(new ShardSampler(options));
    const int64_t world = options.logits->ranks().world;
    const int64_t max_rows = options.max_rows;
    const at::TensorOptions on_device(options.device);
    sampler->memory_ = at::zeros({options.logits->PartsSize(options.max_logits)},
                                 on_device.dtype(ToScalarType(options.logits_dtype)));
    sampler->tops_ =
        at::zeros({world * max_rows * ShardTopWords(kMaxShardTop)}, on_device.dtype(at::kInt));
    sampler->choices_ = at::zeros({world * max_rows}, on_device.dtype(at::kLong));
    return sampler;
  });
}

void ShardSampler::Plan(const ScheduledBatch& batch) {
  for (const SlotJoin& join : batch.joins) params_[join.slot.value()] = join.sampling;
  const int64_t vocab_size = options_.logits->vocab_size();
  serves_ = true;
  num_top_ = 0;
  for (const ScheduledRow& row : batch.rows) {
    if (row.output != RowOutput::kToken) continue;
    const SamplingParams& params = params_[row.slot.value()];
    serves_ = serves_ && ShardsServe(params, vocab_size);
    num_top_ = std::max(num_top_, ShardTopOf(params, vocab_size));
  }
}

absl::Status ShardSampler::Exchange(const at::Tensor& all, int64_t count) const {
  const Ranks ranks = options_.logits->ranks();
  at::Tensor gathered = all.narrow(0, 0, ranks.world * count).view({ranks.world, count});
  return options_.logits->collectives()->AllGather(gathered[ranks.rank], gathered);
}

absl::Status ShardSampler::Sample(const ShardSampleArgs& args) {
  return CatchTorch([&]() -> absl::Status {
    const ShardedLogits& logits = *options_.logits;
    const int64_t width = logits.largest_share();
    const Ranks ranks = logits.ranks();
    const int64_t num_words = int64_t{args.num_rows} * ShardTopWords(num_top_);
    auto* const tops = static_cast<uint32_t*>(tops_.mutable_data_ptr());
    auto* const choices = static_cast<uint64_t*>(choices_.mutable_data_ptr());
    const auto item_size = static_cast<int64_t>(memory_.itemsize());
    const ShardSamplingArgs shard = {.dtype = options_.logits_dtype,
                                     .logits = static_cast<const char*>(memory_.const_data_ptr()) +
                                               ranks.rank * args.num_logits * width * item_size,
                                     .logits_stride = width,
                                     .num_rows = args.num_rows,
                                     .shard_size = static_cast<int>(logits.share().size),
                                     .first_token = static_cast<int>(logits.share().begin),
                                     .vocab_size = static_cast<int>(logits.vocab_size()),
                                     .world = ranks.world,
                                     .num_top = num_top_,
                                     .slots = args.slots,
                                     .sample_slot = args.sample_slot,
                                     .top = tops + ranks.rank * num_words,
                                     .all_tops = tops,
                                     .choices = choices + int64_t{ranks.rank} * args.num_rows,
                                     .all_choices = choices,
                                     .out = args.out};
    if (num_top_ > 0) {
      REPRISE_RETURN_IF_ERROR(Run(memory_, shard, ShardTopOnHost, kLaunchTop));
      REPRISE_RETURN_IF_ERROR(Exchange(tops_, num_words));
    }
    REPRISE_RETURN_IF_ERROR(Run(memory_, shard, ShardChoiceOnHost, kLaunchChoice));
    REPRISE_RETURN_IF_ERROR(Exchange(choices_, args.num_rows));
    return Run(memory_, shard, ShardTokensOnHost, kLaunchTokens);
  });
}

absl::Status ShardSampler::Gather(int num_logits, const at::Tensor& logits) {
  return CatchTorch([&] {
    return options_.logits->Gather(options_.logits->PartsIn(memory_, num_logits), logits);
  });
}

absl::Status ShardSampler::WarmUp(const at::Tensor& logits) {
  REPRISE_RETURN_IF_ERROR(Gather(options_.max_logits, logits));
  return CatchTorch([&]() -> absl::Status {
    const int64_t max_rows = options_.max_rows;
    REPRISE_RETURN_IF_ERROR(Exchange(tops_, max_rows * ShardTopWords(kMaxShardTop)));
    return Exchange(choices_, max_rows);
  });
}

int64_t ShardSampler::bytes() const {
  return static_cast<int64_t>(memory_.nbytes() + tops_.nbytes() + choices_.nbytes());
}

void ShardSampler::AddTo(Fingerprint& fingerprint) const {
  fingerprint.AddAddress("sharded logits", memory_.const_data_ptr());
}

}  // namespace reprise
