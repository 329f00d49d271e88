// A decode step of jargon-llama on the CPU, against the matrix-vector products that it is made of,
// and against the same step without a model.
//
//   ./bazelw run //tests/benchmarks:decode_step_cpu_benchmark
//
//   step_us      Engine::Step(): scheduling, delta, refill, the recorded forward pass, sampling
//   products_us  the products of one step alone, by the same Linear over the same weights
//   host_us      Engine::Step() of a model that computes nothing, with a vocabulary of one token:
//                scheduler, block manager, delta, mirror, refill
//   sample_us    what the choice of a token from 4096 logits a row adds to that
//   ratio        step_us / products_us
//   host_share   host_us / step_us
//
// All are measured in turns within one run, and the 10th percentiles of their times are compared: a
// busy machine interrupts long work more often than short work. One thread, as decode chooses for
// this model.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "glog/logging.h"
#include "reprise/base/dtype.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/engine/create_engine.h"
#include "reprise/models/decoder/decoder_model.h"
#include "reprise/models/decoder/decoder_weights.h"
#include "reprise/models/decoder/public_configs.h"
#include "reprise/runner/model.h"
#include "reprise/runner/ops/linear.h"

namespace reprise {
namespace {

using Clock = std::chrono::steady_clock;

// Tokens of a sequence around its context before it starts again.
constexpr int kNumSteps = 64;

template <typename Work>
double MicrosecondsOf(Work&& work) {
  const Clock::time_point begin = Clock::now();
  work();
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

// The time of the work without interruptions: the 10th percentile.
double LowestDecile(std::vector<double>& samples) {
  const auto decile = samples.begin() + samples.size() / 10;
  std::nth_element(samples.begin(), decile, samples.end());
  return *decile;
}

void CheckOk(const absl::Status& status) { CHECK(status.ok()) << status; }

// A model with the same layers that computes nothing.
class EmptyModel : public Model {
 public:
  EmptyModel(const ModelSpec& spec, int vocab_size) : spec_(spec) { spec_.vocab_size = vocab_size; }
  const ModelSpec& spec() const override { return spec_; }
  absl::StatusOr<at::Tensor> Forward(const Step& step) override { return step.logits(); }

 private:
  ModelSpec spec_;
};

// All products of one step of `num_rows` tokens.
class Products {
 public:
  Products(const DecoderModel& model, int num_rows) : weights_(model.weights()) {
    auto context = MakeLinearContext(c10::kCPU, {});
    CheckOk(context.status());
    context_ = *std::move(context);
    const DecoderLayerWeights& layer = weights_.layers.front();
    for (const Linear* linear :
         {&layer.qkv, &layer.o, &*layer.gate_up, &*layer.down, &weights_.lm_head}) {
      const auto options = at::TensorOptions().dtype(ToScalarType(weights_.dtype));
      in_.push_back(at::randn({num_rows, linear->in_features()}).to(options));
      out_.push_back(at::empty({num_rows, linear->out_features()}, options));
    }
  }

  void Run() {
    for (const DecoderLayerWeights& layer : weights_.layers) {
      CheckOk(layer.qkv.Apply(*context_, in_[0], out_[0]));
      CheckOk(layer.o.Apply(*context_, in_[1], out_[1]));
      CheckOk(layer.gate_up->Apply(*context_, in_[2], out_[2]));
      CheckOk(layer.down->Apply(*context_, in_[3], out_[3]));
    }
    CheckOk(weights_.lm_head.Apply(*context_, in_[4], out_[4]));
  }

 private:
  const DecoderWeights& weights_;
  std::unique_ptr<LinearContext> context_;
  std::vector<at::Tensor> in_;
  std::vector<at::Tensor> out_;
};

// `num_rows` sequences whose contexts stay near `context`.
class DecodeLoop {
 public:
  DecodeLoop(Model& model, int num_rows, int context)
      : num_rows_(num_rows), context_(context), vocab_size_(model.spec().vocab_size) {
    auto engine = CreateEngine(&model, {.runner = {.max_num_seqs = num_rows,
                                                   .max_num_tokens = num_rows * context,
                                                   .max_seq_len = context + kNumSteps}});
    CheckOk(engine.status());
    engine_ = *std::move(engine);
  }

  // Makes sure that the next step is a decode step.
  void Prepare() {
    if (num_left_ > 0) return;
    while (engine_->has_work()) RunStep();
    for (int row = 0; row < num_rows_; ++row) {
      std::vector<int32_t> prompt(context_ - kNumSteps / 2);
      for (size_t i = 0; i < prompt.size(); ++i) {
        prompt[i] = static_cast<int32_t>((i * 7919 + row) % vocab_size_);
      }
      CheckOk(
          engine_->Add({.prompt = std::move(prompt), .max_new_tokens = kNumSteps + 2}).status());
    }
    RunStep();  // the prompts
    num_left_ = kNumSteps;
  }

  void RunStep() {
    events_.clear();
    CheckOk(engine_->Step(events_));
    --num_left_;
  }

 private:
  int num_rows_;
  int context_;
  int vocab_size_;
  int num_left_ = 0;
  std::unique_ptr<Engine> engine_;
  std::vector<TokenEvent> events_;
};

std::unique_ptr<DecoderModel> MakeModel(DType dtype) {
  const auto config = LlamaPreset("jargon");
  CheckOk(config.status());
  auto weights = MakeRandomWeights(*config, {.dtype = dtype});
  CheckOk(weights.status());
  auto model = DecoderModel::Create(*config, *std::move(weights), {});
  CheckOk(model.status());
  return *std::move(model);
}

void BM_DecodeStep(benchmark::State& state, DType dtype) {
  at::set_num_threads(1);
  const int num_rows = static_cast<int>(state.range(0));
  const int context = static_cast<int>(state.range(1));
  const std::unique_ptr<DecoderModel> model = MakeModel(dtype);
  EmptyModel sampled(model->spec(), model->spec().vocab_size);
  EmptyModel empty(model->spec(), /*vocab_size=*/1);
  Products products(*model, num_rows);
  DecodeLoop steps(*model, num_rows, context);
  DecodeLoop sampled_steps(sampled, num_rows, context);
  DecodeLoop empty_steps(empty, num_rows, context);
  std::vector<double> step_us;
  std::vector<double> products_us;
  std::vector<double> sampled_us;
  std::vector<double> host_us;
  for (auto _ : state) {
    steps.Prepare();
    step_us.push_back(MicrosecondsOf([&] { steps.RunStep(); }));
    state.SetIterationTime(step_us.back() * 1e-6);
    products_us.push_back(MicrosecondsOf([&] { products.Run(); }));
    sampled_steps.Prepare();
    sampled_us.push_back(MicrosecondsOf([&] { sampled_steps.RunStep(); }));
    empty_steps.Prepare();
    host_us.push_back(MicrosecondsOf([&] { empty_steps.RunStep(); }));
  }
  const double step = LowestDecile(step_us);
  const double host = LowestDecile(host_us);
  state.counters["step_us"] = step;
  state.counters["products_us"] = LowestDecile(products_us);
  state.counters["host_us"] = host;
  state.counters["sample_us"] = LowestDecile(sampled_us) - host;
  state.counters["ratio"] = step / state.counters["products_us"];
  state.counters["host_share"] = host / step;
}

void Points(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"rows", "context"})
      ->Args({1, 64})
      ->Args({1, 256})
      ->Args({1, 1024})
      ->Args({8, 256})
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond);
}

BENCHMARK_CAPTURE(BM_DecodeStep, bfloat16, DType::kBFloat16)->Apply(Points);
BENCHMARK_CAPTURE(BM_DecodeStep, float32, DType::kFloat32)->Apply(Points);

}  // namespace
}  // namespace reprise
