#include "reprise/runner/testing/attend_options_suite.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/model_runner.h"

namespace reprise {

// A build without CUDA instantiates no test for a GPU.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AttendOptionsSuite);

namespace {

using ::testing::HasSubstr;

constexpr int kVocab = 31;
constexpr int kQHeads = 4;
constexpr int kKvHeads = 2;
constexpr int kDim = 32;
constexpr int kMaxTokens = 16;

// A model with one attention layer, in which a token id determines its query, keys and values.
class OneLayerModel : public Model {
 public:
  // The attention of a forward pass.
  using Attention = std::function<absl::Status(const Step& step, const at::Tensor& q,
                                               const at::Tensor& k, const at::Tensor& v)>;

  OneLayerModel(c10::Device device, Attention attention, const LayerSpec& layer = {})
      : attention_(std::move(attention)) {
    std::mt19937 rng(5);
    std::normal_distribution<float> normal;
    embedding_ = at::zeros({kVocab, kQHeads + 2 * kKvHeads, kDim}, at::kFloat);
    for (int64_t i = 0; i < embedding_.numel(); ++i) embedding_.data_ptr<float>()[i] = normal(rng);
    embedding_ = embedding_.to(at::kBFloat16).to(device);
    spec_ = {.layers = {layer},
             .vocab_size = kVocab,
             .max_position = 64,
             .dtype = DType::kBFloat16,
             .device = device};
    AttentionParams& params = spec_.layers[0].params;
    params.num_q_heads = kQHeads;
    params.num_kv_heads = kKvHeads;
    params.head_dim_qk = params.head_dim_v = kDim;
  }

  const ModelSpec& spec() const override { return spec_; }

  // Every sampled token is 0.
  absl::StatusOr<at::Tensor> Forward(const Step& step) override {
    const at::Tensor x = embedding_.index_select(0, step.token_ids());
    REPRISE_RETURN_IF_ERROR(attention_(step, x.narrow(1, 0, kQHeads),
                                       x.narrow(1, kQHeads, kKvHeads),
                                       x.narrow(1, kQHeads + kKvHeads, kKvHeads)));
    step.logits().zero_();
    return step.logits();
  }

  // Returns out [n, kQHeads, kDim] and lse [n, kQHeads] for each token of `text`, float64 on the
  // CPU. `stored`: maps the heads q, k, v, [n, kQHeads + 2 * kKvHeads, kDim], to their quantised
  // values.
  std::pair<at::Tensor, at::Tensor> Dense(
      const std::vector<int32_t>& text,
      const std::function<at::Tensor(const at::Tensor&)>& stored = nullptr) const {
    const int64_t n = static_cast<int64_t>(text.size());
    at::Tensor x = embedding_.cpu().to(at::kDouble).index_select(0, at::tensor(text));
    if (stored) x = stored(x);
    const at::Tensor q = x.narrow(1, 0, kQHeads);
    const auto repeated = [&](int64_t first) {
      return x.narrow(1, first, kKvHeads).repeat_interleave(kQHeads / kKvHeads, 1);
    };
    const at::Tensor hidden = at::ones({n, n}, at::kBool).tril().logical_not();
    const at::Tensor scores =
        (at::einsum("qhd,khd->hqk", {q, repeated(kQHeads)}) / std::sqrt(double{kDim}))
            .masked_fill(hidden, -std::numeric_limits<double>::infinity());
    const at::Tensor out =
        at::einsum("hqk,khd->qhd", {at::softmax(scores, -1), repeated(kQHeads + kKvHeads)});
    return {out, at::logsumexp(scores, -1).transpose(0, 1)};
  }

 private:
  Attention attention_;
  ModelSpec spec_;
  at::Tensor embedding_;
};

const std::vector<int32_t> kPrompt = {3, 1, 4, 15, 9, 2, 6};

using Check = std::function<void(const std::vector<int32_t>& text, int num_new)>;

void RunSteps(OneLayerModel& model, DType kv_dtype, bool attention_in_graphs, const Check& check) {
  SCOPED_TRACE(attention_in_graphs ? "attention in graphs" : "attention between graphs");
  auto runner = ModelRunner::Create(
      &model, {.max_num_seqs = 1,
               .max_num_tokens = kMaxTokens,
               .max_steps_in_flight = 1,
               .cache = {.block_size = 4, .dtype = kv_dtype},
               .graphs = {.mode = GraphSetOptions::Mode::kEager},
               .debug = {.attention = attention_in_graphs ? AttentionLaunch::kInGraphs
                                                          : AttentionLaunch::kBetweenGraphs}});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const std::vector<SlotJoin> join = {JoinOf(SlotId(0), {}, kPrompt.size())};
  std::vector<BlockTableUpdate> updates;
  for (int column = 0; column < 4; ++column)
    updates.push_back({.slot = SlotId(0), .column = column, .block = BlockId(4 - column)});
  const std::vector<ScheduledRow> prompt = {{.slot = SlotId(0), .tokens = kPrompt}};
  const std::vector<ScheduledRow> decode = {{.slot = SlotId(0)}};
  std::vector<int32_t> text = kPrompt;
  auto result = (*runner)->Step({.joins = join, .updates = updates, .rows = prompt});
  ASSERT_TRUE(result.ok()) << result.status();
  check(text, static_cast<int>(kPrompt.size()));
  for (int step = 0; step < 4; ++step) {
    text.push_back(0);
    result = (*runner)->Step({.rows = decode});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->decision.kind, GraphDecision::Kind::kReplay);
    check(text, 1);
  }
}

// Runs a prompt, then decodes. Calls `check` after each step with the text up to the step's last
// token and with the number of the step's tokens. Runs twice: with attention in captured graphs,
// and with attention between them.
void RunSteps(OneLayerModel& model, DType kv_dtype, const Check& check) {
  for (const bool attention_in_graphs : {true, false}) {
    RunSteps(model, kv_dtype, attention_in_graphs, check);
  }
}

double MaxError(const at::Tensor& got, const at::Tensor& want, int num_new) {
  return (got.narrow(0, 0, num_new).cpu().to(at::kDouble) -
          want.narrow(0, want.size(0) - num_new, num_new))
      .abs()
      .max()
      .item<double>();
}

// Tolerance for the rounding error of a result below 4 in bfloat16.
constexpr double kRounding = 4.0 / 256;

}  // namespace

TEST_P(AttendOptionsSuite, WritesOutAndLseToTheGivenTensors) {
  const auto options = at::TensorOptions(GetParam());
  at::Tensor out = at::zeros({kMaxTokens, kQHeads, kDim}, options.dtype(at::kFloat));
  at::Tensor lse = at::zeros({kQHeads, kMaxTokens}, options.dtype(at::kFloat)).t();
  const void* returned = nullptr;
  OneLayerModel model(
      GetParam(),
      [&](const Step& step, const auto& q, const auto& k, const auto& v) -> absl::Status {
        REPRISE_ASSIGN_OR_RETURN(const at::Tensor result,
                                 step.Attend(0, q, k, v, {.out = out, .lse = lse}));
        returned = result.data_ptr();
        return absl::OkStatus();
      });
  RunSteps(model, DType::kBFloat16, [&](const std::vector<int32_t>& text, int num_new) {
    const auto [want_out, want_lse] = model.Dense(text);
    EXPECT_LT(MaxError(out, want_out, num_new), kRounding);
    EXPECT_LT(MaxError(lse, want_lse, num_new), 1e-3);
    EXPECT_EQ(returned, out.data_ptr());
  });
}

TEST_P(AttendOptionsSuite, ExactNewKeysAreNotRoundedToTheCache) {
  const auto kept = [&] {
    return at::zeros({kMaxTokens, kQHeads, kDim}, at::TensorOptions(GetParam()).dtype(at::kFloat));
  };
  at::Tensor exact = kept();
  at::Tensor cached = kept();
  using NewKeys = AttendOptions::NewKeys;
  OneLayerModel model(
      GetParam(),
      [&](const Step& step, const auto& q, const auto& k, const auto& v) -> absl::Status {
        REPRISE_RETURN_IF_ERROR(
            step.Attend(0, q, k, v, {.out = exact, .new_keys = NewKeys::kExact}).status());
        return step.Attend(0, q, {.out = cached}).status();
      });
  RunSteps(model, DType::kFp8E4M3, [&](const std::vector<int32_t>& text, int num_new) {
    const at::Tensor want = model.Dense(text).first;
    // A prompt has no other keys. A decode also reads cached keys, which are rounded; its new key
    // is a large part of its keys.
    EXPECT_LT(MaxError(exact, want, num_new), num_new > 1 ? kRounding : 0.3);
    EXPECT_GT(MaxError(cached, want, num_new), kRounding);
    EXPECT_LT(MaxError(cached, want, num_new), 0.3);
    EXPECT_GT((exact - cached).narrow(0, 0, num_new).abs().max().item<double>(), 1e-3);
  });
}

// Compares with the definition over quantised q, k and v. Scales are powers of two, so the order of
// divisions does not matter, and only the result is rounded.
TEST_P(AttendOptionsSuite, Fp8QueryScalesMayChangeBetweenReplays) {
  constexpr float kKScale = 1.0f / 32;
  constexpr float kVScale = 1.0f / 64;
  // Scales of q by kv head, one pair per step.
  const std::vector<std::pair<float, float>> q_scales = {{1.0f / 16, 1.0f / 32},
                                                         {1.0f / 64, 1.0f / 8},
                                                         {1.0f / 8, 1.0f / 16},
                                                         {1.0f / 32, 1.0f / 64},
                                                         {1.0f / 16, 1.0f / 16}};
  const auto of_heads = [](const at::Tensor& of_kv_heads) {
    return of_kv_heads.repeat_interleave(kQHeads / kKvHeads).reshape({1, kQHeads, 1});
  };
  const auto rounded = [](const at::Tensor& x, const at::Tensor& scale) {
    return (x / scale).to(at::kFloat).to(at::kFloat8_e4m3fn).to(at::kDouble) * scale;
  };
  for (const DType kv_dtype : {DType::kFp8E4M3, DType::kBFloat16}) {
    SCOPED_TRACE(DTypeName(kv_dtype));
    size_t step_idx = 0;
    at::Tensor q_scale =
        at::tensor({q_scales[0].first, q_scales[0].second}, at::kFloat).to(GetParam());
    at::Tensor kept =
        at::zeros({kMaxTokens, kQHeads, kDim}, at::TensorOptions(GetParam()).dtype(at::kFloat));
    at::ScalarType dtype = at::kFloat;
    const LayerSpec layer = {
        .params = {.q_scale = {.data = q_scale.data_ptr<float>(), .head_stride = 1}},
        .k_scale = kKScale,
        .v_scale = kVScale,
        .q_dtype = DType::kFp8E4M3};
    OneLayerModel model(
        GetParam(),
        [&](const Step& step, const auto& q, const auto& k, const auto& v) -> absl::Status {
          const at::Tensor q8 = (q / of_heads(q_scale)).to(at::kFloat8_e4m3fn);
          REPRISE_ASSIGN_OR_RETURN(const at::Tensor out, step.Attend(0, q8, k, v));
          dtype = out.scalar_type();
          kept.narrow(0, 0, out.size(0)).copy_(out);
          return absl::OkStatus();
        },
        layer);
    RunSteps(model, kv_dtype, [&](const std::vector<int32_t>& text, int num_new) {
      EXPECT_EQ(dtype, at::kBFloat16);
      const auto& [first, second] = q_scales[step_idx];
      const auto stored = [&](const at::Tensor& x) {
        const at::Tensor scale = of_heads(at::tensor({double{first}, double{second}}, at::kDouble));
        at::Tensor k = x.narrow(1, kQHeads, kKvHeads);
        at::Tensor v = x.narrow(1, kQHeads + kKvHeads, kKvHeads);
        if (IsFp8(kv_dtype)) {
          k = rounded(k, at::full({1}, kKScale, at::kDouble));
          v = rounded(v, at::full({1}, kVScale, at::kDouble));
        }
        return at::cat({rounded(x.narrow(1, 0, kQHeads), scale), k, v}, 1);
      };
      EXPECT_LT(MaxError(kept, model.Dense(text, stored).first, num_new), kRounding);
      // Sets the scales of the next step.
      step_idx = (step_idx + 1) % q_scales.size();
      q_scale.copy_(at::tensor({q_scales[step_idx].first, q_scales[step_idx].second}, at::kFloat));
    });
  }
}

TEST_P(AttendOptionsSuite, RejectsQueriesWithTheWrongDtype) {
  OneLayerModel model(GetParam(),
                      [](const Step& step, const auto& q, const auto& k, const auto& v) {
                        return step.Attend(0, q.to(at::kFloat8_e4m3fn), k, v).status();
                      });
  const auto runner = ModelRunner::Create(
      &model,
      {.max_num_seqs = 1, .max_num_tokens = 8, .graphs = {.mode = GraphSetOptions::Mode::kEager}});
  EXPECT_THAT(std::string(runner.status().message()),
              HasSubstr("q of layer 0 has the wrong dtype: expected BFloat16, as "
                        "LayerSpec::q_dtype or the model's spec says, got Float8_e4m3fn"));
}

TEST_P(AttendOptionsSuite, AQuantisedOutIsDividedByItsScale) {
  constexpr float kScale = 1.0f / 64;
  at::Tensor out = at::zeros({kMaxTokens, kQHeads, kDim},
                             at::TensorOptions(GetParam()).dtype(at::kFloat8_e4m3fn));
  OneLayerModel model(GetParam(),
                      [&](const Step& step, const auto& q, const auto& k, const auto& v) {
                        AttendOptions options = {.out = out};
                        options.extras.out_scale = {.value = kScale};
                        return step.Attend(0, q, k, v, options).status();
                      },
                      {.kernels = {.max_tier = 1}});
  RunSteps(model, DType::kBFloat16, [&](const std::vector<int32_t>& text, int num_new) {
    // Values below 4 have 4 significant bits.
    EXPECT_LT(MaxError(out.to(at::kFloat) * kScale, model.Dense(text).first, num_new), 4.0 / 16);
  });
}

TEST_P(AttendOptionsSuite, AQuantisedOutFollowsAScaleInMemory) {
  const auto options = at::TensorOptions(GetParam());
  at::Tensor out = at::zeros({kMaxTokens, kQHeads, kDim}, options.dtype(at::kFloat8_e4m3fn));
  float scale = 1.0f / 64;
  at::Tensor scale_memory = at::full({1}, scale, options.dtype(at::kFloat));
  OneLayerModel model(GetParam(),
                      [&](const Step& step, const auto& q, const auto& k, const auto& v) {
                        AttendOptions attend = {.out = out};
                        attend.extras.out_scale = {.data = scale_memory.data_ptr<float>()};
                        return step.Attend(0, q, k, v, attend).status();
                      });
  RunSteps(model, DType::kBFloat16, [&](const std::vector<int32_t>& text, int num_new) {
    // Values below 4 have 4 significant bits.
    EXPECT_LT(MaxError(out.to(at::kFloat) * scale, model.Dense(text).first, num_new), 4.0 / 16);
    // Sets the scale of the next step. Values below 4 do not saturate.
    scale = scale > 0.1f ? 1.0f / 64 : 4 * scale;
    scale_memory.fill_(scale);
  });
}

// A graph would freeze the number. Work between graphs reads it in every step.
TEST_P(AttendOptionsSuite, WorkBetweenGraphsReadsHostValues) {
  at::Tensor out =
      at::zeros({kMaxTokens, kQHeads, kDim}, at::TensorOptions(GetParam()).dtype(at::kFloat));
  float factor = 1;
  int num_works = 0;
  OneLayerModel model(
      GetParam(),
      [&](const Step& step, const auto& q, const auto& k, const auto& v) -> absl::Status {
        REPRISE_ASSIGN_OR_RETURN(const at::Tensor attended, step.Attend(0, q, k, v));
        return step.RunBetweenGraphs([&, attended] {
          ++num_works;
          at::Tensor kept = out.narrow(0, 0, attended.size(0));
          kept.copy_(attended);
          kept.mul_(factor);
          return absl::OkStatus();
        });
      });
  RunSteps(model, DType::kBFloat16, [&](const std::vector<int32_t>& text, int num_new) {
    EXPECT_GT(std::exchange(num_works, 0), 0) << "not run in this step";
    EXPECT_LT(MaxError(out / factor, model.Dense(text).first, num_new), kRounding);
    factor *= 2;
  });
}

TEST_P(AttendOptionsSuite, RejectsMissingWorkBetweenGraphs) {
  OneLayerModel model(GetParam(), [](const Step& step, const auto&, const auto&, const auto&) {
    return step.RunBetweenGraphs(nullptr);
  });
  const auto runner = ModelRunner::Create(
      &model,
      {.max_num_seqs = 1, .max_num_tokens = 8, .graphs = {.mode = GraphSetOptions::Mode::kEager}});
  EXPECT_THAT(std::string(runner.status().message()), HasSubstr("work must be callable"));
}

TEST_P(AttendOptionsSuite, BadOptionsFailTheStep) {
  const auto refusal = [&](const AttendOptions& options) {
    OneLayerModel model(
        GetParam(),
        [&](const Step& step, const auto& q, const auto& k, const auto& v) -> absl::Status {
          REPRISE_RETURN_IF_ERROR(step.Write(0, k, v));
          return step.Attend(0, q, options).status();
        });
    return std::string(
        ModelRunner::Create(&model, {.max_num_seqs = 1,
                                     .max_num_tokens = kMaxTokens,
                                     .graphs = {.mode = GraphSetOptions::Mode::kEager}})
            .status()
            .message());
  };
  EXPECT_THAT(refusal({.new_keys = AttendOptions::NewKeys::kExact}),
              HasSubstr("new_keys of layer 0 are exact, so the call must bring them"));
  EXPECT_THAT(refusal({.out = at::zeros({kMaxTokens, kQHeads, kDim + 1},
                                        at::TensorOptions(GetParam()).dtype(at::kBFloat16))}),
              HasSubstr("out"));
  EXPECT_THAT(refusal({.lse = at::zeros({kMaxTokens, kQHeads},
                                        at::TensorOptions(GetParam()).dtype(at::kBFloat16))}),
              HasSubstr("lse"));
}

}  // namespace reprise
