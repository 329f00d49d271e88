// A net of one's own behind a server loop of one's own. TinyNet stands for the user's network, with
// its attention cut out; TinyModel lends it to the runner; Serve() is the loop: requests arrive
// while others are being served, share the keys of a common prompt, and leave when they are done.

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>

#include <cstdint>
#include <deque>
#include <iostream>
#include <map>
#include <memory>
#include <vector>

#include "example.h"
#include "reprise/runner/model.h"
#include "reprise/runner/model_runner.h"
#include "reprise/runner/step.h"
#include "reprise/runner/step_builder.h"

namespace {

constexpr int kHeads = 4, kHeadDim = 32, kWidth = kHeads * kHeadDim;
constexpr int kVocabSize = 101, kMaxPosition = 128;

struct TinyNet {
  explicit TinyNet(c10::Device device) {
    at::manual_seed(1);
    const auto random = [&](int64_t rows, int64_t columns, double scale) {
      return (at::randn({rows, columns}) * scale).to(device);
    };
    tokens = random(kVocabSize, kWidth, 1);
    places = random(kMaxPosition, kWidth, 1);
    qkv = random(kWidth, 3 * kWidth, 0.1);
    head = random(kWidth, kVocabSize, 1);
  }

  // [num_tokens, kWidth]
  at::Tensor Embed(const at::Tensor& ids, const at::Tensor& positions) const {
    return tokens.index_select(0, ids) + places.index_select(0, positions);
  }
  // Three of [num_tokens, kHeads, kHeadDim].
  std::vector<at::Tensor> Qkv(const at::Tensor& x) const {
    return x.matmul(qkv).view({-1, 3, kHeads, kHeadDim}).unbind(1);
  }
  at::Tensor Logits(const at::Tensor& x, const at::Tensor& attended) const {
    return (x + attended).matmul(head);
  }

  at::Tensor tokens, places, qkv, head;
};

class TinyModel : public reprise::Model {
 public:
  TinyModel(const TinyNet& net, c10::Device device)
      : net_(net),
        spec_{.layers = {{.params = {.num_q_heads = kHeads,
                                     .num_kv_heads = kHeads,
                                     .head_dim_qk = kHeadDim,
                                     .head_dim_v = kHeadDim}}},
              .vocab_size = kVocabSize,
              .max_position = kMaxPosition,
              .device = device} {}

  const reprise::ModelSpec& spec() const override { return spec_; }

  absl::StatusOr<at::Tensor> Forward(const reprise::Step& step) override {
    const at::Tensor x = net_.Embed(step.token_ids(), step.positions());
    const std::vector<at::Tensor> qkv = net_.Qkv(x);
    const absl::StatusOr<at::Tensor> attended = step.Attend(0, qkv[0], qkv[1], qkv[2]);
    if (!attended.ok()) return attended.status();
    const at::Tensor& rows = step.logits_indices();
    return net_.Logits(x.index_select(0, rows), attended->flatten(1).index_select(0, rows));
  }

 private:
  const TinyNet& net_;
  const reprise::ModelSpec spec_;
};

struct Request {
  std::vector<int32_t> prompt;
  size_t num_new_tokens = 0;
};

// The texts of all requests, in the order in which they end. A request arrives in each step.
std::vector<std::vector<int32_t>> Serve(TinyModel& model, std::deque<Request> arriving,
                                        int& num_cached_tokens) {
  const std::unique_ptr<reprise::ModelRunner> runner =
      Check(reprise::ModelRunner::Create(&model, {.max_num_seqs = 3, .max_num_tokens = 32}));
  reprise::StepBuilder steps = Check(reprise::StepBuilder::Create(*runner));
  std::deque<Request> waiting;
  std::map<reprise::SlotId, size_t> ends;  // the length of the whole text
  std::vector<std::vector<int32_t>> texts;
  while (!arriving.empty() || !waiting.empty() || steps.num_sequences() > 0) {
    if (!arriving.empty()) {
      waiting.push_back(arriving.front());
      arriving.pop_front();
    }
    while (!waiting.empty()) {
      const Request& request = waiting.front();
      const absl::StatusOr<reprise::SlotId> slot = steps.Join(request.prompt);
      if (absl::IsResourceExhausted(slot.status())) break;  // another one must end first
      ends[Check(slot)] = request.prompt.size() + request.num_new_tokens;
      num_cached_tokens += steps.num_cached_tokens(*slot);
      waiting.pop_front();
    }
    for (const reprise::NewToken& next : Check(steps.Run())) {
      const absl::Span<const int32_t> text = steps.tokens(next.slot);
      if (text.size() < ends[next.slot] && !next.is_last) continue;
      texts.emplace_back(text.begin(), text.end());
      Check(steps.Leave(next.slot));
    }
  }
  return texts;
}

// The most likely token after `text`, computed without a cache.
int32_t NextToken(const TinyNet& net, const std::vector<int32_t>& text, c10::Device device) {
  const int64_t size = static_cast<int64_t>(text.size());
  const at::Tensor ids = at::tensor(text, at::kInt).to(device);
  const at::Tensor x = net.Embed(ids, at::arange(size, ids.options()));
  std::vector<at::Tensor> qkv = net.Qkv(x);
  for (at::Tensor& heads : qkv) heads = heads.transpose(0, 1).unsqueeze(0);
  const at::Tensor attended =
      at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, /*dropout_p=*/0,
                                       /*is_causal=*/true)
          .squeeze(0)
          .transpose(0, 1)
          .reshape({size, kWidth});
  return net.Logits(x[size - 1], attended[size - 1]).argmax().item<int32_t>();
}

}  // namespace

int main() {
  const at::InferenceMode no_gradients;
  const c10::Device device = ExampleDevice();
  const TinyNet net(device);
  TinyModel model(net, device);
  // Five requests with 48 tokens in common, which is more than a step computes at once.
  std::deque<Request> requests;
  for (int32_t i = 0; i < 5; ++i) {
    Request& request = requests.emplace_back();
    for (int32_t t = 0; t < 48; ++t) request.prompt.push_back(7 * t % kVocabSize);
    request.prompt.insert(request.prompt.end(), {i, 2 * i, 3 * i});
    request.num_new_tokens = 6 + 2 * i;
  }
  int num_cached_tokens = 0;
  const std::vector<std::vector<int32_t>> texts = Serve(model, requests, num_cached_tokens);
  for (const std::vector<int32_t>& text : texts) {
    for (size_t size = 51; size < text.size(); ++size) {
      const std::vector<int32_t> before(text.begin(), text.begin() + static_cast<int64_t>(size));
      Expect(text[size] == NextToken(net, before, device), "the text of the net without a cache");
    }
  }
  Expect(num_cached_tokens >= 48, "later requests to find the common prompt in the cache");
  std::cout << "own_server: " << texts.size() << " texts, equal to the net without a cache"
            << std::endl;
}
