#include "reprise/runner/testing/speculation_texts.h"

namespace reprise::speculation_tests {

DraftProposer ProposerOf(Proposer proposer) {
  switch (proposer) {
    case Proposer::kNgram:
      return NgramProposer{};
    case Proposer::kModel:
      return ModelProposer{SpeculationHarness::AnyDraftModel()};
    case Proposer::kNone:
    case Proposer::kCustom:
    case Proposer::kHeads:
      break;
  }
  return NoProposer{};
}

// The cache has blocks for up to three groups.
ModelRunnerOptions Options(Proposer proposer) {
  return {.max_num_seqs = 4,
          .max_num_tokens = 96,
          .max_seq_len = kMaxSeqLen,
          .cache = {.block_size = 4, .size = NumBlocks{1 + 4 * 3 * (kMaxSeqLen / 4)}},
          .graphs = {.sizes = {2, 4}},
          .speculation = {.max_drafts = kChainDrafts,
                          .proposer = ProposerOf(proposer),
                          .graph_num_drafts = {2, kChainDrafts}}};
}

LayeredModelOptions TwoLayers(c10::Device device, uint64_t seed) {
  const AttentionParams params = {
      .num_q_heads = 4, .num_kv_heads = 2, .head_dim_qk = 32, .head_dim_v = 32};
  return {.layers = {{.params = params}, {.params = params}},
          .vocab_size = kVocab,
          .device = device,
          .seed = seed};
}

LayeredModelOptions Windows(c10::Device device, uint64_t seed) {
  LayeredModelOptions model = TwoLayers(device, seed);
  model.layers[0].params.window_left = 9;
  return model;
}

LayeredModelOptions ShortSighted(c10::Device device, uint64_t seed) {
  LayeredModelOptions model = TwoLayers(device, seed);
  for (LayerSpec& layer : model.layers) layer.params.window_left = 5;
  return model;
}

LayeredModelOptions Latents(c10::Device device, uint64_t seed) {
  LayeredModelOptions model = TwoLayers(device, seed);
  for (LayerSpec& layer : model.layers) {
    layer.params = {.num_q_heads = 4, .num_kv_heads = 1, .head_dim_qk = 64, .head_dim_v = 32};
    layer.v_in_k = true;
  }
  return model;
}

LayeredModelOptions WindowsAndChunks(c10::Device device, uint64_t seed) {
  LayeredModelOptions model = TwoLayers(device, seed);
  model.layers[0].params.window_left = 9;
  model.layers[1].chunk_size = 16;
  return model;
}

std::vector<int32_t> RandomPrompt(std::mt19937& rng, int length) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < length; ++i) prompt.push_back(static_cast<int32_t>(rng() % kVocab));
  return prompt;
}

std::vector<Request> SomeRequests(uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<Request> requests;
  for (int i = 0; i < 4; ++i) {
    Request& request = requests.emplace_back();
    request.prompt = RandomPrompt(rng, 1 + static_cast<int>(rng() % 20));
    request.sampling.seed = rng();
    request.sampling.temperature = i == 0 ? 0.0f : i == 1 ? 0.5f : 1.0f;
    if (i == 2) request.sampling.top_k = 7;
    if (i == 3) request.sampling.top_p = 0.8f;
  }
  return requests;
}

std::vector<std::vector<int32_t>> PlainTexts(const LayeredModelOptions& model,
                                             const std::vector<Request>& requests,
                                             const ModelRunnerOptions& options) {
  auto harness = SpeculationHarness::Create(options, model);
  EXPECT_TRUE(harness.ok()) << harness.status();
  std::vector<std::vector<int32_t>> texts;
  for (const Request& request : requests) {
    (*harness)->Join(0, request.prompt, request.sampling);
    for (int i = 0; i < kNumNew; ++i) {
      const absl::Status status = (*harness)->Step({{.slot = 0}});
      EXPECT_TRUE(status.ok()) << status;
    }
    texts.push_back((*harness)->text(0));
    (*harness)->Leave(0);
  }
  return texts;
}

std::vector<std::vector<int32_t>> PlainTexts(const LayeredModelOptions& model,
                                             const std::vector<Request>& requests) {
  ModelRunnerOptions options = Options(Proposer::kNone);
  options.speculation = {};
  return PlainTexts(model, requests, options);
}

}  // namespace reprise::speculation_tests
