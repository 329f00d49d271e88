#include "reprise/runner/sampling/built_in_stages.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <glog/logging.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/runner/sampling/log_probs.h"
#include "reprise/runner/sampling/logits_processors.h"
#include "reprise/runner/sampling/logits_state.h"
#include "reprise/runner/sampling/raw_logits.h"
#ifdef REPRISE_WITH_CUDA
#include "reprise/runner/ops/cuda_launch.h"
#define REPRISE_LAUNCH(launch) launch
#else
#define REPRISE_LAUNCH(launch) nullptr
#endif

namespace reprise {
namespace {

// Number of bias lists of maximum length that fit into a slot of the ring of joins.
constexpr int kBiasListsOfRing = 4;

// The host and the device form of an operation.
template <typename Args>
struct Forms {
  absl::Status (*check)(const Args&);
  void (*on_host)(const Args&);
  [[maybe_unused]] absl::Status (*launch)(const Args&, CUstream_st*);
};

constexpr Forms<JoinLogitsArgs> kJoinLogits = {CheckJoinLogits, JoinLogitsOnHost,
                                               REPRISE_LAUNCH(LaunchJoinLogits)};
constexpr Forms<CountTokensArgs> kCountTokens = {CheckCountTokens, CountTokensOnHost,
                                                 REPRISE_LAUNCH(LaunchCountTokens)};
constexpr Forms<LogitsProcessorsArgs> kLogitsProcessors = {
    CheckLogitsProcessors, LogitsProcessorsOnHost, REPRISE_LAUNCH(LaunchLogitsProcessors)};
constexpr Forms<RawLogitsArgs> kKeepRawLogits = {CheckKeepRawLogits, KeepRawLogitsOnHost,
                                                 REPRISE_LAUNCH(LaunchKeepRawLogits)};
constexpr Forms<LogProbsArgs> kLogProbs = {CheckLogProbs, LogProbsOnHost,
                                           REPRISE_LAUNCH(LaunchLogProbs)};

// Runs the form for the device of `tensor`, on LibTorch's current stream.
template <typename Args>
absl::Status Run(const Forms<Args>& forms, const at::Tensor& tensor, const Args& args) {
#ifdef REPRISE_WITH_CUDA
  if (tensor.is_cuda()) {
    return LaunchOnCurrentStream(tensor,
                                 [&](cudaStream_t stream) { return forms.launch(args, stream); });
  }
#endif
  CHECK(tensor.is_cpu()) << "a build without CUDA got a tensor on " << tensor.device().str();
  REPRISE_RETURN_IF_ERROR(forms.check(args));
  forms.on_host(args);
  return absl::OkStatus();
}

// Allocates aligned arrays from `base`. If `base` is null, only counts bytes.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}

  template <typename T>
  T* Take(int64_t count) {
    T* array = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + offset_);
    constexpr int64_t kAlignment = MappedBuffer::kAlignment;
    offset_ += (count * static_cast<int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    return array;
  }
  int64_t offset() const { return offset_; }

 private:
  std::byte* base_;
  int64_t offset_ = 0;
};

// Returns the bytes of one ring slot that holds the arrays that `carve` takes from a Carver.
template <typename Carve>
int64_t BytesOf(Carve carve) {
  Carver carver(nullptr);
  carve(carver);
  return std::max<int64_t>(carver.offset(), MappedBuffer::kAlignment);
}

absl::Status MakeRing(const LogitsStagesMemory& memory, int64_t slot_bytes, int num_slots,
                      std::optional<MappedBuffer>& buffer, std::optional<StagingRing>& ring) {
  REPRISE_ASSIGN_OR_RETURN(buffer, memory.allocate_mapped(slot_bytes * num_slots));
  std::vector<std::unique_ptr<Fence>> fences;
  for (int i = 0; i < num_slots; ++i) {
    REPRISE_ASSIGN_OR_RETURN(fences.emplace_back(), memory.make_fence());
  }
  REPRISE_ASSIGN_OR_RETURN(ring, StagingRing::Create(buffer->host_bytes(), std::move(fences)));
  return absl::OkStatus();
}

// The joins of a step, or a part of them, in one slot of their ring.
struct JoinLists {
  LogitsJoin* joins = nullptr;
  LogitBias* biases = nullptr;
  int32_t* tokens = nullptr;
};

struct JoinCapacity {
  int num_joins = 0;
  int num_biases = 0;
  int num_tokens = 0;
};

JoinCapacity JoinCapacityOf(const LogitsStagesOptions& options) {
  return {options.num_slots, kBiasListsOfRing * options.logits.max_biases,
          options.logits.penalties ? options.max_seq_len : 0};
}

JoinLists CarveJoins(const JoinCapacity& capacity, Carver& carver) {
  JoinLists lists;
  lists.joins = carver.Take<LogitsJoin>(capacity.num_joins);
  lists.biases = carver.Take<LogitBias>(capacity.num_biases);
  lists.tokens = carver.Take<int32_t>(capacity.num_tokens);
  return lists;
}

// Returns the list space that a request needs.
JoinCapacity SizeOfJoin(const LogitsRequest& request) {
  JoinCapacity size = {1, static_cast<int>(request.biases.size()), 0};
  if (HasPenalties(request.params)) {
    size.num_tokens = static_cast<int>(request.prompt.size() + request.output.size());
  }
  return size;
}

bool Fits(const JoinCapacity& used, const JoinCapacity& more, const JoinCapacity& capacity) {
  return used.num_joins + more.num_joins <= capacity.num_joins &&
         used.num_biases + more.num_biases <= capacity.num_biases &&
         used.num_tokens + more.num_tokens <= capacity.num_tokens;
}

// Appends the request to the lists. `used`: entries in use so far.
void AddJoin(const LogitsRequest& request, const JoinLists& lists, JoinCapacity& used) {
  const JoinCapacity size = SizeOfJoin(request);
  LogitsJoin join = {.slot = static_cast<int32_t>(request.slot.value()),
                     .params = request.params,
                     .first_bias = used.num_biases,
                     .first_token = used.num_tokens};
  std::copy(request.biases.begin(), request.biases.end(), lists.biases + used.num_biases);
  if (size.num_tokens > 0) {
    join.num_prompt_tokens = static_cast<int32_t>(request.prompt.size());
    join.num_output_tokens = static_cast<int32_t>(request.output.size());
    int32_t* const tokens = lists.tokens + used.num_tokens;
    std::copy(request.output.begin(), request.output.end(),
              std::copy(request.prompt.begin(), request.prompt.end(), tokens));
  }
  lists.joins[used.num_joins] = join;
  used.num_joins += size.num_joins;
  used.num_biases += size.num_biases;
  used.num_tokens += size.num_tokens;
}

struct Masks {
  int32_t* mask_of_row = nullptr;  // [max_rows]
  int32_t* allowed = nullptr;      // [max_rows, MaskWords(vocab_size)]
};

Masks CarveMasks(const LogitsStagesOptions& options, Carver& carver) {
  Masks masks;
  masks.mask_of_row = carver.Take<int32_t>(options.max_rows);
  masks.allowed = carver.Take<int32_t>(options.max_rows * MaskWords(options.vocab_size));
  return masks;
}

LogProbs CarveLogProbs(const LogitsStagesOptions& options, Carver& carver) {
  const int64_t num_logits = int64_t{options.max_rows} + options.max_earlier_logits;
  const int64_t num_top = num_logits * options.logits.max_log_probs;
  LogProbs log_probs;
  log_probs.token_log_probs = carver.Take<float>(num_logits);
  log_probs.token_ranks = carver.Take<int32_t>(num_logits);
  log_probs.top_tokens = carver.Take<int32_t>(num_top);
  log_probs.top_log_probs = carver.Take<float>(num_top);
  return log_probs;
}

}  // namespace

bool HasProcessors(const LogitsOptions& options) {
  return options.penalties || options.max_biases > 0 || options.allowed_tokens;
}

absl::StatusOr<std::unique_ptr<LogitsSlotStates>> LogitsSlotStates::Create(
    const LogitsStagesOptions& options, const LogitsStagesMemory& memory) {
  auto states = std::unique_ptr<LogitsSlotStates>(new LogitsSlotStates(options));
  REPRISE_RETURN_IF_ERROR(states->Allocate(memory));
  return states;
}

absl::Status LogitsSlotStates::Allocate(const LogitsStagesMemory& memory) {
  const LogitsOptions& logits = options_.logits;
  const int num_slots = options_.num_slots;
  const auto bytes_on_device = [&](int64_t bytes) {
    return at::empty({bytes}, at::TensorOptions(options_.device).dtype(at::kByte));
  };
  std::vector<LogitsParams> defaults(num_slots);
  params_ = at::from_blob(defaults.data(),
                          {static_cast<int64_t>(defaults.size() * sizeof(LogitsParams))}, at::kByte)
                .to(options_.device, at::kByte, /*non_blocking=*/false, /*copy=*/true);
  slots_.params = reinterpret_cast<LogitsParams*>(params_.data_ptr());
  slots_.num_slots = num_slots;
  slots_.vocab_size = options_.vocab_size;
  if (logits.max_biases > 0) {
    biases_ = bytes_on_device(int64_t{num_slots} * logits.max_biases * int64_t{sizeof(LogitBias)});
    slots_.biases = reinterpret_cast<LogitBias*>(biases_.data_ptr());
    slots_.max_biases = logits.max_biases;
  }
  if (logits.penalties) {
    counts_ = bytes_on_device(num_slots * TokenCountStride(options_.vocab_size) *
                              int64_t{sizeof(TokenCount)});
    slots_.counts = reinterpret_cast<TokenCount*>(counts_.data_ptr());
  }
  const JoinCapacity capacity = JoinCapacityOf(options_);
  return MakeRing(memory, BytesOf([&](Carver& carver) { CarveJoins(capacity, carver); }),
                  options_.max_steps_in_flight + 1, memory_, ring_);
}

absl::Status LogitsSlotStates::Join(absl::Span<const LogitsRequest> requests) {
  const JoinCapacity capacity = JoinCapacityOf(options_);
  for (size_t next = 0; next < requests.size();) {
    const StagingSlot staging = ring_->Acquire();
    Carver host_carver(staging.bytes().data());
    const JoinLists on_host = CarveJoins(capacity, host_carver);
    JoinCapacity used;
    while (next < requests.size() && Fits(used, SizeOfJoin(requests[next]), capacity)) {
      AddJoin(requests[next++], on_host, used);
    }
    CHECK_GT(used.num_joins, 0) << "the lists of slot " << requests[next].slot << " are too long";
    Carver carver(memory_->device<std::byte>() + staging.offset_bytes());
    const JoinLists lists = CarveJoins(capacity, carver);
    REPRISE_RETURN_IF_ERROR(Run(kJoinLogits, params_,
                                JoinLogitsArgs{.joins = lists.joins,
                                               .biases = lists.biases,
                                               .tokens = lists.tokens,
                                               .num_joins = used.num_joins,
                                               .num_biases = used.num_biases,
                                               .num_tokens = used.num_tokens,
                                               .slots = slots_}));
  }
  return absl::OkStatus();
}

int64_t LogitsSlotStates::device_bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : {params_, biases_, counts_}) {
    if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<ProcessorsStage>> ProcessorsStage::Create(
    const LogitsStagesOptions& options, const LogitsSlots& slots,
    const LogitsStagesMemory& memory) {
  auto stage = std::unique_ptr<ProcessorsStage>(new ProcessorsStage(options, slots));
  if (options.logits.allowed_tokens) {
    REPRISE_RETURN_IF_ERROR(
        MakeRing(memory, BytesOf([&](Carver& carver) { CarveMasks(options, carver); }),
                 options.max_steps_in_flight + 1, stage->memory_, stage->ring_));
  }
  return stage;
}

void ProcessorsStage::SetMasks(absl::Span<const AllowedTokens> masks) {
  masks_.reset();  // masks of a step that was abandoned
  num_masks_ = static_cast<int>(masks.size());
  if (masks.empty()) return;
  masks_ = ring_->Acquire();
  Carver carver(masks_->bytes().data());
  const Masks on_host = CarveMasks(options_, carver);
  std::fill_n(on_host.mask_of_row, options_.max_rows, -1);
  const int64_t num_words = MaskWords(options_.vocab_size);
  for (int i = 0; i < num_masks_; ++i) {
    on_host.mask_of_row[masks[i].row] = i;
    std::copy(masks[i].mask.begin(), masks[i].mask.end(), on_host.allowed + i * num_words);
  }
}

absl::Status ProcessorsStage::BeforeSample(const LogitsStep& step) {
  // Destroying `read` after the launch ends the right to write the masks and arms their fence: the
  // ring reuses the memory only after the kernel has read it.
  const std::optional<StagingSlot> read = std::exchange(masks_, std::nullopt);
  LogitsProcessorsArgs args = {.dtype = options_.logits_dtype,
                               .logits = step.logits.mutable_data_ptr(),
                               .logits_stride = step.logits.stride(0),
                               .num_rows = static_cast<int>(step.logits.size(0)),
                               .sample_slot = step.sample_slot,
                               .slots = slots_};
  if (read.has_value()) {
    Carver carver(memory_->device<std::byte>() + read->offset_bytes());
    const Masks masks = CarveMasks(options_, carver);
    args.allowed_tokens = masks.allowed;
    args.mask_stride = MaskWords(options_.vocab_size);
    args.num_masks = num_masks_;
    args.mask_of_row = masks.mask_of_row;
  }
  return Run(kLogitsProcessors, step.logits, args);
}

absl::Status ProcessorsStage::AfterSample(const LogitsStep& step) {
  if (slots_.counts == nullptr) return absl::OkStatus();
  return Run(kCountTokens, step.logits,
             CountTokensArgs{.sample_slot = step.sample_slot,
                             .last_token = step.slots.last_token,
                             .num_rows = static_cast<int>(step.logits.size(0)),
                             .slots = slots_});
}

absl::StatusOr<std::unique_ptr<LogProbsStage>> LogProbsStage::Create(
    const LogitsStagesOptions& options, const LogitsSlots& slots,
    const LogitsStagesMemory& memory) {
  auto stage = std::unique_ptr<LogProbsStage>(new LogProbsStage(options, slots));
  stage->output_bytes_ = BytesOf([&](Carver& carver) { CarveLogProbs(options, carver); });
  REPRISE_ASSIGN_OR_RETURN(
      stage->memory_,
      memory.allocate_mapped(stage->output_bytes_ * (options.max_steps_in_flight + 1)));
  if (HasProcessors(options.logits) || !options.logits.stages.empty()) {
    stage->raw_ =
        at::empty({options.max_rows, options.vocab_size},
                  at::TensorOptions(options.device).dtype(ToScalarType(options.logits_dtype)));
  }
  return stage;
}

absl::Status LogProbsStage::BeforeSample(const LogitsStep& step) {
  if (!keeps_raw_) return absl::OkStatus();
  return Run(kKeepRawLogits, step.logits,
             RawLogitsArgs{.dtype = options_.logits_dtype,
                           .logits = step.logits.const_data_ptr(),
                           .logits_stride = step.logits.stride(0),
                           .raw = raw_.mutable_data_ptr(),
                           .raw_stride = raw_.stride(0),
                           .num_rows = static_cast<int>(step.logits.size(0)),
                           .vocab_size = options_.vocab_size,
                           .sample_slot = step.sample_slot,
                           .params = slots_.params,
                           .num_slots = slots_.num_slots});
}

absl::Status LogProbsStage::AfterSample(const LogitsStep& step) {
  const at::Tensor& logits = keeps_raw_ ? raw_ : step.logits;
  return Run(kLogProbs, step.logits,
             LogProbsArgs{.dtype = options_.logits_dtype,
                          .logits = logits.const_data_ptr(),
                          .logits_stride = logits.stride(0),
                          .num_rows = static_cast<int>(step.logits.size(0)),
                          .vocab_size = options_.vocab_size,
                          .sample_slot = step.sample_slot,
                          .params = slots_.params,
                          .tokens = step.slots.last_token,
                          .num_slots = slots_.num_slots,
                          .max_top = options_.logits.max_log_probs,
                          .out = At(memory_->device<std::byte>(), output_)});
}

absl::Status LogProbsStage::Score(const ScoredLogits& scored) {
  return Run(kLogProbs, scored.logits,
             LogProbsArgs{.dtype = options_.logits_dtype,
                          .logits = scored.logits.const_data_ptr(),
                          .logits_stride = scored.logits.stride(0),
                          .num_rows = static_cast<int>(scored.logits.size(0)),
                          .vocab_size = options_.vocab_size,
                          .sample_slot = scored.slot,
                          .params = slots_.params,
                          .row_tokens = scored.token,
                          .of_known_tokens = true,
                          .num_slots = slots_.num_slots,
                          .max_top = options_.logits.max_log_probs,
                          .out = At(memory_->device<std::byte>(), output_)});
}

LogProbs LogProbsStage::At(std::byte* base, int output) const {
  Carver carver(base + output * output_bytes_);
  return CarveLogProbs(options_, carver);
}

RowLogProbsView LogProbsStage::On(int output) const {
  const LogProbs arrays = At(memory_->host<std::byte>(), output);
  const auto num_rows = static_cast<size_t>(options_.max_rows + options_.max_earlier_logits);
  const size_t num_top = num_rows * static_cast<size_t>(options_.logits.max_log_probs);
  return {{arrays.token_log_probs, num_rows},
          {arrays.token_ranks, num_rows},
          {arrays.top_tokens, num_top},
          {arrays.top_log_probs, num_top},
          options_.logits.max_log_probs};
}

}  // namespace reprise
