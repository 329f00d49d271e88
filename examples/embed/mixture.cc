// A mixture of experts in captured graphs: a Qwen3-MoE of one's own, whose router is LibTorch's
// operations and whose experts are kernels of one's own (expert_kernels.h). Its greedy texts are
// compared with those that the folder's golden file holds for the model.
//
//   mixture FOLDER    with config.json's sizes below, model.safetensors and golden.safetensors

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/topk.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "example.h"
#include "expert_kernels.h"
#include "reprise/engine/create_engine.h"
#include "reprise/runner/model.h"
#include "reprise/runner/step.h"
#include "safetensors.h"
#ifdef REPRISE_WITH_CUDA
#include <c10/cuda/CUDAStream.h>
#endif

namespace {

constexpr int kVocabSize = 256, kHidden = 64, kNumLayers = 2, kMaxPosition = 512;
constexpr int kQHeads = 8, kKvHeads = 2, kHeadDim = 64;
constexpr int kExperts = 8, kChosen = 2, kInner = 48;

class Mixture : public reprise::Model {
 public:
  Mixture(const std::string& folder, c10::Device device) {
    for (auto& [name, tensor] : ReadSafetensors(folder + "/model.safetensors")) {
      weights_[name] = tensor.to(device, at::kFloat);
    }
    for (int layer = 0; layer < kNumLayers; ++layer) {
      std::vector<at::Tensor> gate_up, down;
      for (int expert = 0; expert < kExperts; ++expert) {
        const std::string name = Name(layer, "mlp.experts." + std::to_string(expert));
        gate_up.push_back(at::cat({W(name + ".gate_proj"), W(name + ".up_proj")}));
        down.push_back(W(name + ".down_proj"));
      }
      gate_up_.push_back(at::stack(gate_up));  // [kExperts, 2 * kInner, kHidden]
      down_.push_back(at::stack(down));        // [kExperts, kHidden, kInner]
    }
    const auto options = at::device(device).dtype(at::kFloat);
    const at::Tensor frequencies =
        at::pow(10000.0, -at::arange(0, kHeadDim, 2, options) / kHeadDim);
    angles_ = at::arange(kMaxPosition, options).unsqueeze(1) * frequencies;
    spec_ = {
        .layers = std::vector<reprise::LayerSpec>(kNumLayers, {.params = {.num_q_heads = kQHeads,
                                                                          .num_kv_heads = kKvHeads,
                                                                          .head_dim_qk = kHeadDim,
                                                                          .head_dim_v = kHeadDim}}),
        .vocab_size = kVocabSize,
        .max_position = kMaxPosition,
        .device = device};
  }

  const reprise::ModelSpec& spec() const override { return spec_; }

  absl::StatusOr<at::Tensor> Forward(const reprise::Step& step) override {
    at::Tensor x = W("model.embed_tokens").index_select(0, step.token_ids());
    const at::Tensor angles = angles_.index_select(0, step.positions()).unsqueeze(1);
    const at::Tensor cos = angles.cos(), sin = angles.sin();
    const auto rotate = [&](const at::Tensor& heads) {
      const std::vector<at::Tensor> halves = heads.chunk(2, -1);
      return at::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1);
    };
    for (int layer = 0; layer < kNumLayers; ++layer) {
      const auto heads_of = [&](const at::Tensor& h, const char* projection, int count) {
        return at::linear(h, W(Name(layer, projection))).view({-1, count, kHeadDim});
      };
      at::Tensor h = Norm(x, Name(layer, "input_layernorm"));
      const at::Tensor q =
          rotate(Norm(heads_of(h, "self_attn.q_proj", kQHeads), Name(layer, "self_attn.q_norm")));
      const at::Tensor k =
          rotate(Norm(heads_of(h, "self_attn.k_proj", kKvHeads), Name(layer, "self_attn.k_norm")));
      const absl::StatusOr<at::Tensor> attended =
          step.Attend(layer, q, k, heads_of(h, "self_attn.v_proj", kKvHeads));
      if (!attended.ok()) return attended.status();
      x = x + at::linear(attended->flatten(1), W(Name(layer, "self_attn.o_proj")));
      h = Norm(x, Name(layer, "post_attention_layernorm"));
      const absl::StatusOr<at::Tensor> mixed = Mix(step, layer, h);
      if (!mixed.ok()) return mixed.status();
      x = x + *mixed;
    }
    x = x.index_select(0, step.logits_indices());
    return at::linear(Norm(x, "model.norm"), W("lm_head"));
  }

 private:
  static std::string Name(int layer, const std::string& part) {
    return "model.layers." + std::to_string(layer) + "." + part;
  }
  const at::Tensor& W(const std::string& name) const { return weights_.at(name + ".weight"); }
  at::Tensor Norm(const at::Tensor& x, const std::string& name) const {
    return x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + 1e-6) * W(name);
  }

  // x [num_tokens, kHidden]. Which experts are chosen never leaves the device.
  absl::StatusOr<at::Tensor> Mix(const reprise::Step& step, int layer, const at::Tensor& x) const {
    const auto [logits, experts] = at::topk(at::linear(x, W(Name(layer, "mlp.gate"))), kChosen, -1);
    const at::Tensor weights = at::softmax(logits, -1);
    // Room for every token in every queue, so that none is dropped and the result is the model's.
    // Fewer places make the step cheaper where queues are known to be even.
    const int num_tokens = step.num_tokens(), capacity = num_tokens;
    const auto ints = x.options().dtype(at::kInt);
    const at::Tensor places = at::empty({num_tokens, kChosen}, ints);
    const at::Tensor counts = at::empty({kExperts}, ints);
    const at::Tensor tokens = at::empty({kExperts, capacity}, ints);
    const at::Tensor outputs = at::empty({kExperts, capacity, kHidden}, x.options());
    const at::Tensor out = at::empty_like(x);
    const reprise::PagedBatch& batch = step.batch(layer);
    const ExpertArgs args = {
        .x = x.const_data_ptr<float>(),
        .experts = experts.const_data_ptr<int64_t>(),
        .weights = weights.const_data_ptr<float>(),
        // Where the last row ends: the step's live tokens, whatever size it is padded to.
        .num_live_tokens = batch.query_start_loc + batch.num_rows,
        .gate_up = gate_up_[layer].const_data_ptr<float>(),
        .down = down_[layer].const_data_ptr<float>(),
        .places = places.mutable_data_ptr<int32_t>(),
        .counts = counts.mutable_data_ptr<int32_t>(),
        .tokens = tokens.mutable_data_ptr<int32_t>(),
        .outputs = outputs.mutable_data_ptr<float>(),
        .out = out.mutable_data_ptr<float>(),
        .num_tokens = num_tokens,
        .num_chosen = kChosen,
        .num_experts = kExperts,
        .capacity = capacity,
        .hidden = kHidden,
        .inner = kInner};
    if (x.is_cpu()) ExpertsOnHost(args);
#ifdef REPRISE_WITH_CUDA
    if (x.is_cuda() && LaunchExperts(args, c10::cuda::getCurrentCUDAStream().stream()) != 0) {
      return absl::InternalError("the experts' kernels were not launched");
    }
#endif
    return out;
  }

  std::map<std::string, at::Tensor> weights_;
  std::vector<at::Tensor> gate_up_, down_;  // by layer
  at::Tensor angles_;                       // [kMaxPosition, kHeadDim / 2]
  reprise::ModelSpec spec_;
};

std::vector<int32_t> Ints(const at::Tensor& tensor) {
  const at::Tensor ints = tensor.to(at::kInt).contiguous();
  return {ints.const_data_ptr<int32_t>(), ints.const_data_ptr<int32_t>() + ints.numel()};
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : ".";
  std::map<std::string, at::Tensor> golden = ReadSafetensors(folder + "/golden.safetensors");
  Expect(golden.count("prompt_0") == 1, "FOLDER to hold golden.safetensors");
  Mixture model(folder, ExampleDevice());
  const auto engine = Check(reprise::CreateEngine(&model, {}));
  std::map<int64_t, std::vector<int32_t>> texts;
  std::map<int64_t, int> prompt_of;
  for (int i = 0; golden.count("prompt_" + std::to_string(i)) == 1; ++i) {
    const reprise::SequenceId id = Check(engine->Add(
        {.prompt = Ints(golden["prompt_" + std::to_string(i)]),
         .max_new_tokens = static_cast<int>(golden["tokens_" + std::to_string(i)].numel())}));
    prompt_of[id.value()] = i;
  }
  for (std::vector<reprise::TokenEvent> events; engine->has_work(); events.clear()) {
    Check(engine->Step(events));
    for (const reprise::TokenEvent& event : events) {
      Check(event.error);
      texts[event.sequence.value()].push_back(*event.token);
    }
  }
  for (const auto& [id, tokens] : texts) {
    Expect(tokens == Ints(golden["tokens_" + std::to_string(prompt_of[id])]),
           "the tokens of the Qwen3-MoE model");
  }
  Expect(ModelRunnerOf(*engine).graph_report().num_replays() > 0,
         "decode steps to be replayed graphs");
  std::cout << "mixture: " << texts.size() << " texts, equal to the Qwen3-MoE model's" << std::endl;
}
