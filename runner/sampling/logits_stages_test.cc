#include "reprise/runner/sampling/logits_stages.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/element_access.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/runner/ops/test_device.h"
#include "reprise/runner/ops/test_tensors.h"
#include "reprise/runner/sampling/logits_processors_args.h"
#include "reprise/runner/sampling/sampling.h"
#ifdef REPRISE_TEST_ON_GPU
#include <c10/cuda/CUDAStream.h>

#include "reprise/base/cuda_fence.h"
#endif

namespace reprise {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

#ifdef REPRISE_TEST_ON_GPU
absl::StatusOr<MappedBuffer> AllocateMapped(int64_t bytes) {
  return MappedBuffer::AllocateMapped(bytes);
}
absl::StatusOr<std::unique_ptr<Fence>> MakeFence() {
  return MakeCudaFence({.device = 0, .stream = c10::cuda::getCurrentCUDAStream(0)});
}
#else
absl::StatusOr<MappedBuffer> AllocateMapped(int64_t bytes) {
  return MappedBuffer::AllocateOnHost(bytes);
}
// All work has completed when the call that enqueues it returns.
class PassedFence : public Fence {
 public:
  void Arm() override {}
  bool Passed() override { return true; }
  absl::Status Wait() override { return absl::OkStatus(); }
};
absl::StatusOr<std::unique_ptr<Fence>> MakeFence() { return std::make_unique<PassedFence>(); }
#endif

template <typename T>
at::Tensor OnDevice(const std::vector<T>& values, at::Device device) {
  const int64_t bytes = static_cast<int64_t>(values.size() * sizeof(T));
  return at::from_blob(const_cast<T*>(values.data()), {bytes}, at::kByte)
      .to(device, at::kByte, /*non_blocking=*/false, /*copy=*/true);
}

template <typename T>
T* Data(const at::Tensor& bytes) {
  return reinterpret_cast<T*>(bytes.mutable_data_ptr<uint8_t>());
}

template <typename T>
std::vector<T> FromDevice(const at::Tensor& bytes) {
  const at::Tensor host = bytes.cpu();
  return std::vector<T>(Data<T>(host), Data<T>(host) + host.numel() / sizeof(T));
}

// Adds kValue to the logit of kToken in the rows of slots for which it is set.
class Bonus : public LogitsStage {
 public:
  static constexpr int kToken = 3;
  static constexpr float kValue = 4;

  Bonus(int num_slots, at::Device device)
      : of_slot_(at::zeros({num_slots}, at::TensorOptions(device).dtype(at::kFloat))) {}

  void Set(int slot, bool has_bonus) { of_slot_[slot].fill_(has_bonus ? kValue : 0.0f); }

  absl::Status BeforeSample(const LogitsStep& step) override {
    ++num_calls;
    const at::Tensor slots =
        at::from_blob(const_cast<int32_t*>(step.sample_slot), {step.logits.size(0)},
                      at::TensorOptions(step.logits.device()).dtype(at::kInt));
    const at::Tensor bonus = of_slot_.index_select(0, slots.clamp_min(0)) * slots.ge(0);
    step.logits.select(1, kToken).add_(bonus);
    return absl::OkStatus();
  }
  absl::Status AfterSample(const LogitsStep&) override {
    ++num_calls_after;
    return absl::OkStatus();
  }

  int num_calls = 0;
  int num_calls_after = 0;

 private:
  at::Tensor of_slot_;  // [num_slots]
};

constexpr int kVocab = 77;
constexpr int kSlots = 6;
constexpr int kMaxRows = 8;
constexpr int kMaxSeqLen = 60;
constexpr int kMaxBiases = 4;
constexpr int kMaxTop = 5;

struct Sequence {
  SamplingParams sampling;
  LogitsParams params;
  std::vector<LogitBias> biases;
  std::vector<int32_t> prompt;
  bool has_bonus = false;
  bool has_mask = false;
  unsigned seed = 0;

  std::vector<int32_t> output = {};
  int slot = -1;

  int length() const { return static_cast<int>(prompt.size() + output.size()); }
  int32_t last() const { return output.empty() ? prompt.back() : output.back(); }
  // Returns the mask of the next token.
  std::vector<int32_t> Mask() const {
    std::mt19937 random(seed * 1000 + output.size());
    std::vector<int32_t> mask(MaskWords(kVocab));
    for (int32_t& word : mask) word = static_cast<int32_t>(random());
    mask[0] |= 2;  // allows at least token 1
    return mask;
  }
};

Sequence RandomSequence(std::mt19937& random) {
  Sequence sequence;
  const auto one_in = [&](int n) { return random() % n == 0; };
  sequence.seed = static_cast<unsigned>(random() % 100000);
  if (!one_in(3)) {
    sequence.sampling = {.temperature = 0.9f, .seed = random()};
    if (one_in(2)) sequence.sampling.top_k = 20;
    if (one_in(2)) sequence.sampling.min_p = 0.05f;
  }
  for (int i = 0; i < 1 + static_cast<int>(random() % 12); ++i) {
    sequence.prompt.push_back(static_cast<int32_t>(random() % kVocab));
  }
  if (one_in(4)) return sequence;  // requests nothing
  if (one_in(2)) sequence.params.repetition_penalty = 1.7f;
  if (one_in(3)) sequence.params.presence_penalty = 1.5f;
  if (one_in(3)) sequence.params.frequency_penalty = 0.6f;
  if (one_in(2)) sequence.params.num_log_probs = static_cast<int32_t>(random() % (kMaxTop + 1));
  for (int i = 0; i < static_cast<int>(random() % (kMaxBiases + 1)); ++i) {
    sequence.biases.push_back({.token = static_cast<int32_t>(10 * i + random() % 10),
                               .bias = one_in(3) ? -kInfinity : 3.0f});
  }
  sequence.has_bonus = one_in(4);
  sequence.has_mask = one_in(3);
  return sequence;
}

// A fake model: the last token and the length select a row of a table as the logits.
class Table {
 public:
  Table(std::mt19937& random, at::ScalarType dtype)
      : rows_((RandomNormal(random, {64, kVocab}, at::kFloat) * 2).to(dtype)) {}
  at::Tensor Of(const Sequence& sequence) const {
    return rows_[(sequence.last() * 31 + sequence.length()) % 64];
  }

 private:
  at::Tensor rows_;
};

struct Chosen {
  int32_t token = 0;
  std::vector<double> log_probs;  // log-probabilities of all tokens, from the raw logits
};

// Computes the next token of a single sequence by the definitions.
Chosen NextAlone(const Table& table, const Sequence& sequence, DType dtype) {
  at::Tensor logits = table.Of(sequence).clone();
  Chosen chosen;
  const at::Tensor raw = logits.to(at::kDouble);
  const at::Tensor log_probs = raw.log_softmax(0);
  chosen.log_probs.assign(log_probs.const_data_ptr<double>(),
                          log_probs.const_data_ptr<double>() + kVocab);
  std::vector<TokenCount> counts(kVocab);
  for (int32_t token : sequence.prompt) counts[token] = WithPromptToken(counts[token]);
  for (int32_t token : sequence.output) counts[token] = WithOutputToken(counts[token]);
  if (!HasPenalties(sequence.params)) counts.assign(kVocab, 0);
  const std::vector<int32_t> mask = sequence.Mask();
  for (int token = 0; token < kVocab; ++token) {
    const auto bias = std::find_if(sequence.biases.begin(), sequence.biases.end(),
                                   [&](const LogitBias& b) { return b.token == token; });
    const bool has_bias = bias != sequence.biases.end();
    float logit = LoadElement<float>(logits.const_data_ptr(), dtype, token);
    if (counts[token] != 0 || has_bias) {
      logit = ProcessedLogit(logit, sequence.params, counts[token], has_bias ? bias->bias : 0.0f);
    }
    if (sequence.has_mask && !IsAllowed(mask.data(), token)) logit = kBannedLogit;
    StoreElement(logits.mutable_data_ptr(), dtype, token, logit);
  }
  if (sequence.has_bonus) logits[Bonus::kToken].add_(Bonus::kValue);
  int32_t slot = 0;
  int32_t last_token = 0;
  int64_t index = static_cast<int64_t>(sequence.output.size());
  SampleOnHost({.dtype = dtype,
                .logits = logits.const_data_ptr(),
                .num_rows = 1,
                .vocab_size = kVocab,
                .slots = {.params = &sequence.sampling,
                          .last_token = &last_token,
                          .sample_index = &index,
                          .num_slots = 1},
                .sample_slot = &slot,
                .out = &chosen.token});
  return chosen;
}

class LogitsStagesTest : public DeviceTest {
 protected:
  static LogitsStagesOptions Options(DType dtype, std::vector<LogitsStage*> stages) {
    return {.logits = {.penalties = true,
                       .max_biases = kMaxBiases,
                       .allowed_tokens = true,
                       .max_log_probs = kMaxTop,
                       .stages = std::move(stages)},
            .device = device(),
            .logits_dtype = dtype,
            .num_slots = kSlots,
            .max_rows = kMaxRows,
            .vocab_size = kVocab,
            .max_seq_len = kMaxSeqLen,
            .max_steps_in_flight = 2};
  }
  static std::unique_ptr<LogitsStages> Make(const LogitsStagesOptions& options) {
    auto stages = LogitsStages::Create(options, {AllocateMapped, MakeFence});
    EXPECT_TRUE(stages.ok()) << stages.status();
    return *std::move(stages);
  }
};

// Runs steps of sequences over slots, as a runner does.
class Traffic {
 public:
  Traffic(unsigned seed, DType dtype, at::Device device, LogitsStages* stages, Bonus* bonus)
      : random_(seed),
        dtype_(dtype),
        device_(device),
        table_(random_, ToScalarType(dtype)),
        stages_(stages),
        bonus_(bonus),
        in_slot_(kSlots),
        last_token_(kSlots, 0) {}

  void Step() {
    std::vector<SlotId> leaves;
    std::vector<LogitsRequest> requests;
    std::vector<Sequence*> joined;
    for (int slot = 0; slot < kSlots; ++slot) {
      std::optional<Sequence>& sequence = in_slot_[slot];
      if (sequence.has_value() && (sequence->length() >= 40 || random_() % 12 == 0)) {
        leaves.push_back(SlotId(slot));
        if (random_() % 2 == 0) preempted_.push_back(*sequence);  // joins again later
        sequence.reset();
      }
      if (sequence.has_value() || random_() % 3 == 0) continue;
      if (!preempted_.empty()) {
        sequence = preempted_.back();
        preempted_.pop_back();
      } else {
        sequence = RandomSequence(random_);
      }
      bonus_->Set(slot, sequence->has_bonus);
      joined.push_back(&*sequence);
      requests.push_back({.slot = SlotId(slot),
                          .params = sequence->params,
                          .biases = sequence->biases,
                          .prompt = sequence->prompt,
                          .output = sequence->output,
                          .stages = sequence->has_bonus ? 1u : 0u});
      // A request for nothing may be omitted.
      const bool asks =
          sequence->params != LogitsParams() || !sequence->biases.empty() || sequence->has_bonus;
      if (!asks && random_() % 2 == 0) requests.pop_back();
    }
    std::vector<int32_t> sample_slot;
    for (int slot = 0; slot < kSlots; ++slot) {
      if (in_slot_[slot].has_value() && random_() % 4 != 0) sample_slot.push_back(slot);
    }
    std::shuffle(sample_slot.begin(), sample_slot.end(), random_);
    const int num_rows = static_cast<int>(sample_slot.size());
    std::vector<std::vector<int32_t>> masks(num_rows);
    std::vector<AllowedTokens> allowed;
    for (int row = 0; row < num_rows; ++row) {
      if (!in_slot_[sample_slot[row]]->has_mask) continue;
      masks[row] = in_slot_[sample_slot[row]]->Mask();
      allowed.push_back({.row = row, .mask = masks[row]});
    }
    const LogitsBatch batch = {
        .leaves = leaves, .requests = requests, .masks = allowed, .sample_slot = sample_slot};
    ASSERT_EQ(stages_->Check(batch), absl::OkStatus());
    stages_->Plan(batch);
    ASSERT_EQ(stages_->Begin(batch), absl::OkStatus());
    Run(sample_slot);
  }

  int num_tokens = 0;
  int num_log_probs = 0;

 private:
  // Runs a step that is padded to more rows, whose logits are NaN.
  void Run(std::vector<int32_t> sample_slot) {
    const int num_rows = static_cast<int>(sample_slot.size());
    const int padded = std::min(kMaxRows, num_rows + static_cast<int>(random_() % 3));
    if (padded == 0) return;
    sample_slot.resize(padded, -1);
    at::Tensor rows = NanRows({padded, kVocab}, 3, ToScalarType(dtype_), at::kCPU);
    std::vector<SamplingParams> params(kSlots);
    std::vector<int64_t> index(kSlots);
    for (int row = 0; row < num_rows; ++row) {
      const Sequence& sequence = *in_slot_[sample_slot[row]];
      rows[row].copy_(table_.Of(sequence));
      params[sample_slot[row]] = sequence.sampling;
      index[sample_slot[row]] = static_cast<int64_t>(sequence.output.size());
    }
    const at::Tensor logits = WithGaps(rows.to(device_), 3);
    const at::Tensor device_params = OnDevice(params, device_);
    const at::Tensor device_last = OnDevice(last_token_, device_);
    const at::Tensor device_index = OnDevice(index, device_);
    const at::Tensor device_slot = OnDevice(sample_slot, device_);
    const at::Tensor out = OnDevice(std::vector<int32_t>(padded, -7), device_);
    const LogitsStep step = {.logits = logits,
                             .slots = {.params = Data<SamplingParams>(device_params),
                                       .last_token = Data<int32_t>(device_last),
                                       .sample_index = Data<int64_t>(device_index),
                                       .num_slots = kSlots},
                             .sample_slot = Data<int32_t>(device_slot)};
    output_ = (output_ + 1) % 3;
    ASSERT_EQ(stages_->BeforeSample(step), absl::OkStatus());
    ASSERT_EQ(Sample({.logits = logits,
                      .slots = step.slots,
                      .sample_slot = step.sample_slot,
                      .out = Data<int32_t>(out)}),
              absl::OkStatus());
    ASSERT_EQ(stages_->AfterSample(step, output_), absl::OkStatus());
    const std::vector<int32_t> tokens = FromDevice<int32_t>(out);  // waits for the step
    last_token_ = FromDevice<int32_t>(device_last);
    for (int row = 0; row < num_rows; ++row) {
      Sequence& sequence = *in_slot_[sample_slot[row]];
      const Chosen chosen = NextAlone(table_, sequence, dtype_);
      ASSERT_EQ(tokens[row], chosen.token)
          << "row " << row << ", output " << sequence.output.size();
      CheckLogProbs(sequence, row, chosen);
      sequence.output.push_back(chosen.token);
      ++num_tokens;
    }
  }

  void CheckLogProbs(const Sequence& sequence, int row, const Chosen& chosen) {
    const int num_top = sequence.params.num_log_probs;
    if (num_top < 0) return;
    const RowLogProbsView got = stages_->log_probs(output_);
    EXPECT_NEAR(got.token_log_probs[row], chosen.log_probs[chosen.token], 1e-5);
    for (int i = 0; i < num_top; ++i) {
      const int32_t token = got.top_tokens[row * kMaxTop + i];
      ASSERT_TRUE(token >= 0 && token < kVocab);
      EXPECT_NEAR(got.top_log_probs[row * kMaxTop + i], chosen.log_probs[token], 1e-5);
      const auto num_larger = std::count_if(chosen.log_probs.begin(), chosen.log_probs.end(),
                                            [&](double p) { return p > chosen.log_probs[token]; });
      EXPECT_LE(num_larger, i);
    }
    ++num_log_probs;
  }

  std::mt19937 random_;
  DType dtype_;
  at::Device device_;
  Table table_;
  LogitsStages* stages_;
  Bonus* bonus_;
  std::vector<std::optional<Sequence>> in_slot_;
  std::vector<Sequence> preempted_;
  std::vector<int32_t> last_token_;
  int output_ = 0;
};

TEST_F(LogitsStagesTest, BatchedSequencesMatchSequencesRunSeparately) {
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (unsigned seed = 0; seed < 5; ++seed) {
      SCOPED_TRACE(testing::Message() << dtype << ", seed " << seed);
      Bonus bonus(kSlots, device());
      const std::unique_ptr<LogitsStages> stages = Make(Options(dtype, {&bonus}));
      Traffic traffic(seed, dtype, device(), stages.get(), &bonus);
      for (int step = 0; step < 150; ++step) {
        SCOPED_TRACE(testing::Message() << "step " << step);
        traffic.Step();
        if (HasFatalFailure()) return;
      }
      EXPECT_GT(traffic.num_tokens, 200);
      EXPECT_GT(traffic.num_log_probs, 50);
      EXPECT_GT(bonus.num_calls, 10);
      EXPECT_LT(bonus.num_calls, 150);  // some steps do not call the stage
      EXPECT_EQ(bonus.num_calls, bonus.num_calls_after);
    }
  }
}

TEST_F(LogitsStagesTest, StepWithoutRequestsRunsNoStage) {
  Bonus bonus(kSlots, device());
  const std::unique_ptr<LogitsStages> stages = Make(Options(DType::kFloat32, {&bonus}));
  const LogitsRequest request[] = {
      {.slot = SlotId(1), .params = {.num_log_probs = 1}},
      {.slot = SlotId(2), .params = {.presence_penalty = 1}},
      {.slot = SlotId(3), .stages = 1},
      {.slot = SlotId(4)},
  };
  const auto needs = [&](LogitsBatch batch) {
    EXPECT_EQ(stages->Check(batch), absl::OkStatus());
    stages->Plan(batch);
    EXPECT_EQ(stages->Begin(batch), absl::OkStatus());
    return stages->is_needed();
  };
  const std::vector<int32_t> none = {0, 4, -1, 5};
  EXPECT_FALSE(needs({.requests = request, .sample_slot = none}));
  for (int32_t slot : {1, 2, 3}) {
    EXPECT_TRUE(needs({.sample_slot = std::vector<int32_t>{0, slot}})) << slot;
  }
  EXPECT_FALSE(needs({.sample_slot = none}));
  const std::vector<int32_t> mask(MaskWords(kVocab), -1);
  EXPECT_TRUE(
      needs({.masks = std::vector<AllowedTokens>{{.row = 1, .mask = mask}}, .sample_slot = none}));
  EXPECT_FALSE(needs({.sample_slot = none}));
  // A slot that was left is in its initial state.
  const std::vector<SlotId> leaves = {SlotId(1), SlotId(2), SlotId(3), SlotId(2)};
  EXPECT_FALSE(needs({.leaves = leaves, .sample_slot = std::vector<int32_t>{1, 2, 3}}));
  // No stage runs, so an empty LogitsStep is accepted.
  EXPECT_EQ(stages->BeforeSample({}), absl::OkStatus());
  EXPECT_EQ(stages->AfterSample({}, 0), absl::OkStatus());
  EXPECT_EQ(bonus.num_calls, 0);
}

TEST_F(LogitsStagesTest, ScoresKnownTokensOfRequestingSlotsWithoutOtherStages) {
  Bonus bonus(kSlots, device());
  LogitsStagesOptions options = Options(DType::kFloat32, {&bonus});
  options.max_earlier_logits = 3;
  const std::unique_ptr<LogitsStages> stages = Make(options);
  const LogitsRequest request[] = {
      {.slot = SlotId(1), .params = {.presence_penalty = 1, .num_known_log_probs = 1}, .stages = 1},
      {.slot = SlotId(2), .params = {.num_log_probs = 1}},
      {.slot = SlotId(3), .params = {.num_known_log_probs = 1}},
  };
  const std::vector<int32_t> sample_slot = {-1, -1};
  const auto scores = [&](const LogitsBatch& batch) {
    EXPECT_EQ(stages->Check(batch), absl::OkStatus());
    stages->Plan(batch);
    EXPECT_EQ(stages->Begin(batch), absl::OkStatus());
    EXPECT_FALSE(stages->is_needed());
    return stages->scores();
  };
  EXPECT_FALSE(scores({.requests = request, .sample_slot = sample_slot}));
  EXPECT_FALSE(scores({.sample_slot = sample_slot, .scored_slots = std::vector<int32_t>{2}}));
  EXPECT_TRUE(scores({.sample_slot = sample_slot, .scored_slots = std::vector<int32_t>{2, 1}}));
  // Its sampled tokens have no cost.
  EXPECT_FALSE(scores({.sample_slot = std::vector<int32_t>{3}}));
  EXPECT_EQ(bonus.num_calls, 0);

  // Two rows and three earlier tokens; the last one is padding.
  at::Tensor logits = at::zeros({5, kVocab}, at::kFloat);
  for (int row = 0; row < 5; ++row) logits[row][10 + row] = 1.0f + row;
  const at::Tensor expected = logits.to(at::kDouble).log_softmax(1);
  logits = logits.to(device());
  const at::Tensor slot = OnDevice<int32_t>({-1, 1, 1, 2, -1}, device());
  const at::Tensor token = OnDevice<int32_t>({10, 11, 3, 4, 5}, device());
  const ScoredLogits scored = {logits, Data<int32_t>(slot), Data<int32_t>(token)};
  ASSERT_EQ(stages->Score(scored, /*output=*/1), absl::OkStatus());
  logits.cpu();  // waits for the step
  const RowLogProbsView log_probs = stages->log_probs(1);
  ASSERT_EQ(log_probs.token_log_probs.size(), kMaxRows + 3);
  EXPECT_NEAR(log_probs.token_log_probs[1], expected[1][11].item<double>(), 1e-6);
  EXPECT_NEAR(log_probs.token_log_probs[2], expected[2][3].item<double>(), 1e-6);
  EXPECT_EQ(log_probs.token_ranks[1], 1);
  EXPECT_EQ(log_probs.top_tokens_of(2)[0], 12);
  const RowLogProbsView earlier = log_probs.Rows(2, 1);
  EXPECT_EQ(earlier.token_log_probs.size(), 1);
  EXPECT_EQ(earlier.token_ranks[0], log_probs.token_ranks[2]);
  EXPECT_EQ(earlier.top_tokens_of(0)[0], 12);
  EXPECT_EQ(earlier.top_log_probs_of(0)[0], log_probs.top_log_probs_of(2)[0]);

  EXPECT_THAT(
      std::string(
          stages->Check({.sample_slot = sample_slot, .scored_slots = std::vector<int32_t>{kSlots}})
              .message()),
      HasSubstr("rows: slot must be in"));
  EXPECT_FALSE(stages
                   ->Score({at::zeros({kMaxRows + 4, kVocab}, logits.options()),
                            Data<int32_t>(slot), Data<int32_t>(token)},
                           0)
                   .ok());
}

TEST_F(LogitsStagesTest, MasksOfAnAbandonedStepDoNotAffectTheNextStep) {
  const std::unique_ptr<LogitsStages> stages = Make(Options(DType::kFloat32, {}));
  const std::vector<int32_t> nothing(MaskWords(kVocab), 0);
  const std::vector<int32_t> sample_slot = {0};
  const LogitsRequest request[] = {{.slot = SlotId(0), .params = {.presence_penalty = 1}}};
  for (int i = 0; i < 7; ++i) {  // more often than the ring has slots
    const AllowedTokens masks[] = {{.row = 0, .mask = nothing}};
    const LogitsBatch batch = {.requests = i == 0 ? request : absl::Span<const LogitsRequest>(),
                               .masks = masks,
                               .sample_slot = sample_slot};
    stages->Plan(batch);
    ASSERT_EQ(stages->Begin(batch), absl::OkStatus());
  }
  stages->Plan({.sample_slot = sample_slot});
  ASSERT_EQ(stages->Begin({.sample_slot = sample_slot}), absl::OkStatus());
  const at::Tensor logits =
      at::full({1, kVocab}, 2.0f, at::TensorOptions(device()).dtype(at::kFloat));
  const at::Tensor slot = OnDevice(sample_slot, device());
  const at::Tensor last = OnDevice(std::vector<int32_t>(kSlots), device());
  ASSERT_EQ(stages->BeforeSample({.logits = logits,
                                  .slots = {.last_token = Data<int32_t>(last)},
                                  .sample_slot = Data<int32_t>(slot)}),
            absl::OkStatus());
  EXPECT_TRUE(Equals(logits, at::full_like(logits, 2.0f)));
}

TEST_F(LogitsStagesTest, RequestsLargerThanTheRingTakeSeveralLaunches) {
  const std::unique_ptr<LogitsStages> stages = Make(Options(DType::kFloat32, {}));
  const std::vector<int32_t> prompt(kMaxSeqLen, 5);
  std::vector<LogitsRequest> requests;
  std::vector<int32_t> sample_slot;
  for (int slot = 0; slot < kSlots; ++slot) {
    requests.push_back(
        {.slot = SlotId(slot), .params = {.repetition_penalty = 2}, .prompt = prompt});
    sample_slot.push_back(slot);
  }
  const LogitsBatch batch = {.requests = requests, .sample_slot = sample_slot};
  ASSERT_EQ(stages->Check(batch), absl::OkStatus());
  stages->Plan(batch);
  ASSERT_EQ(stages->Begin(batch), absl::OkStatus());
  const at::Tensor logits =
      at::full({kSlots, kVocab}, 2.0f, at::TensorOptions(device()).dtype(at::kFloat));
  const at::Tensor slot = OnDevice(sample_slot, device());
  const at::Tensor last = OnDevice(std::vector<int32_t>(kSlots), device());
  ASSERT_EQ(stages->BeforeSample({.logits = logits,
                                  .slots = {.last_token = Data<int32_t>(last)},
                                  .sample_slot = Data<int32_t>(slot)}),
            absl::OkStatus());
  at::Tensor expected = at::full_like(logits, 2.0f);
  expected.select(1, 5).fill_(1.0f);
  EXPECT_TRUE(Equals(logits, expected));
}

TEST_F(LogitsStagesTest, RejectsBadBatchesAndNamesThePart) {
  Bonus bonus(kSlots, device());
  const std::unique_ptr<LogitsStages> stages = Make(Options(DType::kFloat32, {&bonus}));
  LogitsStagesOptions nothing = Options(DType::kFloat32, {});
  nothing.logits = {};
  const std::unique_ptr<LogitsStages> bare = Make(nothing);
  const std::vector<int32_t> rows = {0, -1, 2};
  const std::vector<int32_t> mask(MaskWords(kVocab), -1);
  const std::vector<int32_t> long_prompt(kMaxSeqLen + 1, 5);
  const std::vector<LogitBias> biases = {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}};
  const auto message = [&](const LogitsStages& of, const LogitsBatch& batch) {
    const absl::Status status = of.Check(batch);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const auto request = [&](const LogitsStages& of, const LogitsRequest& wrong) {
    const LogitsRequest requests[] = {wrong};
    return message(of, {.requests = requests, .sample_slot = rows});
  };
  const auto masks = [&](const LogitsStages& of, const std::vector<AllowedTokens>& wrong) {
    return message(of, {.masks = wrong, .sample_slot = rows});
  };
  EXPECT_EQ(request(*stages, {.slot = SlotId(kSlots)}), "requests: slot must be in [0, 6), got 6");
  EXPECT_EQ(request(*stages, {.slot = SlotId(-1)}), "requests: slot must be in [0, 6), got -1");
  EXPECT_EQ(request(*stages, {.slot = SlotId(2), .params = {.repetition_penalty = 0}}),
            "requests: slot 2: repetition_penalty must be above 0: got 0");
  EXPECT_EQ(request(*stages, {.params = {.frequency_penalty = kNan}}),
            "requests: slot 0: frequency_penalty must be finite: got nan");
  EXPECT_EQ(request(*stages, {.params = {.num_log_probs = kMaxTop + 1}}),
            "requests: slot 0: num_log_probs: expected -1 to 5, got 6");
  EXPECT_EQ(request(*stages, {.biases = biases}),
            "requests: slot 0: biases: expected 0 to 4, got 5");
  EXPECT_EQ(request(*stages, {.params = {.presence_penalty = 1}, .prompt = long_prompt}),
            "requests: slot 0: prompt and output: expected 0 to 60, got 61");
  EXPECT_EQ(request(*stages, {.stages = 2}),
            "requests: slot 0: stages: expected a subset of the options' 1 stages, got the set 2");
  const std::vector<LogitsRequest> twice = {{.slot = SlotId(1)}, {.slot = SlotId(1)}};
  EXPECT_EQ(message(*stages, {.requests = twice}), "requests: slot 1 occurs twice");
  const std::vector<SlotId> leaves = {SlotId(9)};
  EXPECT_EQ(message(*stages, {.leaves = leaves}), "leaves: slot must be in [0, 6), got 9");
  EXPECT_EQ(message(*stages, {.sample_slot = std::vector<int32_t>(kMaxRows + 1, 0)}),
            "rows: expected 0 to 8, got 9");
  EXPECT_EQ(masks(*stages, {{.row = 3, .mask = mask}}),
            "masks: row must be in [0, 3) and sample: got 3");
  EXPECT_EQ(masks(*stages, {{.row = 1, .mask = mask}}),
            "masks: row must be in [0, 3) and sample: got 1");
  EXPECT_EQ(masks(*stages, {{.row = 0}}), "masks: row 0: expected 3 words, got 0");
  EXPECT_EQ(masks(*stages, {{.row = 0, .mask = mask}, {.row = 0, .mask = mask}}),
            "masks: row 0 occurs twice");

  EXPECT_EQ(bare->Check({.requests = std::vector<LogitsRequest>{{}}, .sample_slot = rows}),
            absl::OkStatus());
  EXPECT_THAT(request(*bare, {.params = {.presence_penalty = 1}}),
              HasSubstr("penalties: the options do not provide for them"));
  EXPECT_THAT(request(*bare, {.biases = {biases.data(), 1}}),
              HasSubstr("biases: expected 0 to 0, got 1"));
  EXPECT_EQ(request(*stages, {.params = {.num_known_log_probs = kMaxTop + 1}}),
            "requests: slot 0: num_known_log_probs: expected -1 to 5, got 6");
  EXPECT_THAT(request(*bare, {.params = {.num_log_probs = 0}}),
              HasSubstr("num_log_probs: expected -1 to -1, got 0"));
  EXPECT_THAT(request(*bare, {.stages = 1}),
              HasSubstr("expected a subset of the options' 0 stages, got the set 1"));
  EXPECT_THAT(masks(*bare, {{.row = 0, .mask = mask}}),
              HasSubstr("masks: the options do not provide for them"));
}

TEST_F(LogitsStagesTest, RejectsBadOptionsAndSteps) {
  const auto message = [&](auto spoil) {
    LogitsStagesOptions options = Options(DType::kFloat32, {});
    spoil(options);
    const auto stages = LogitsStages::Create(options, {AllocateMapped, MakeFence});
    EXPECT_EQ(stages.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(stages.status().message());
  };
  using Options = LogitsStagesOptions;
  EXPECT_EQ(message([](Options& o) { o.num_slots = 0; }), "num_slots: expected at least 1, got 0");
  EXPECT_EQ(message([](Options& o) { o.vocab_size = 0; }),
            "vocab_size: expected at least 1, got 0");
  EXPECT_EQ(message([](Options& o) { o.logits.max_biases = -1; }),
            "logits.max_biases: expected at least 0, got -1");
  EXPECT_EQ(message([](Options& o) { o.logits.max_log_probs = 21; }),
            "logits.max_log_probs: expected -1 to 20, got 21");
  EXPECT_EQ(message([](Options& o) { o.logits.stages = {nullptr}; }),
            "logits.stages: expected an array, got none");

  const std::unique_ptr<LogitsStages> stages = Make(LogitsStagesTest::Options(DType::kFloat32, {}));
  const LogitsRequest request[] = {{.params = {.num_log_probs = 0}}};
  const std::vector<int32_t> sample_slot = {0};
  stages->Plan({.requests = request, .sample_slot = sample_slot});
  ASSERT_EQ(stages->Begin({.requests = request, .sample_slot = sample_slot}), absl::OkStatus());
  const at::TensorOptions floats = at::TensorOptions(device()).dtype(at::kFloat);
  int32_t value = 0;
  LogitsStep step = {.logits = at::zeros({1, kVocab + 1}, floats),
                     .slots = {.last_token = &value},
                     .sample_slot = &value};
  EXPECT_FALSE(stages->BeforeSample(step).ok());
  step.logits = at::zeros({1, kVocab}, floats.dtype(at::kHalf));
  EXPECT_FALSE(stages->BeforeSample(step).ok());
  step.logits = at::zeros({kMaxRows + 1, kVocab}, floats);
  EXPECT_FALSE(stages->BeforeSample(step).ok());
  step = {.logits = at::zeros({1, kVocab}, floats)};
  EXPECT_FALSE(stages->BeforeSample(step).ok());
}

class ThrowingStage : public LogitsStage {
 public:
  absl::Status BeforeSample(const LogitsStep&) override { throw std::runtime_error("burnt"); }
  absl::Status AfterSample(const LogitsStep&) override { throw 5; }
};

TEST_F(LogitsStagesTest, ReturnsAnErrorIfAStageThrows) {
  ThrowingStage stage;
  const std::unique_ptr<LogitsStages> stages = Make(Options(DType::kFloat32, {&stage}));
  const LogitsRequest request[] = {{.stages = 1}};
  const std::vector<int32_t> sample_slot = {0};
  const LogitsBatch batch = {.requests = request, .sample_slot = sample_slot};
  stages->Plan(batch);
  ASSERT_EQ(stages->Begin(batch), absl::OkStatus());
  int32_t value = 0;
  const LogitsStep step = {
      .logits = at::zeros({1, kVocab}, at::TensorOptions(device()).dtype(at::kFloat)),
      .slots = {.last_token = &value},
      .sample_slot = &value};
  EXPECT_EQ(stages->BeforeSample(step), absl::InternalError("burnt"));
  EXPECT_EQ(stages->AfterSample(step, /*output=*/0),
            absl::InternalError("threw something that is not a std::exception"));
}

TEST_F(LogitsStagesTest, AllocatesTheDocumentedMemory) {
  LogitsStagesOptions options = Options(DType::kBFloat16, {});
  options.num_slots = options.max_rows = 256;
  options.vocab_size = 1000;
  const int64_t params = 256 * 24;
  options.logits = {.max_log_probs = 20};
  EXPECT_EQ(Make(options)->device_bytes(), params);
  options.logits = {.penalties = true};
  EXPECT_EQ(Make(options)->device_bytes(), params + 256 * 1000 * 2);
  options.logits = {.max_biases = 300, .max_log_probs = 0};
  EXPECT_EQ(Make(options)->device_bytes(), params + 256 * 300 * 8 + 256 * 1000 * 2);
}

}  // namespace
}  // namespace reprise
