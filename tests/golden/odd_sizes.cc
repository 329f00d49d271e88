#include "tests/golden/odd_sizes.h"

#include <utility>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/models/decoder/random_checkpoint.h"

namespace reprise {

absl::StatusOr<OddSizes> WriteOddSizes(const std::string& name) {
  constexpr int kVocabSize = 301;
  OddSizes odd = {.folder = testing::TempDir() + name};
  const nlohmann::json json = {{"architectures", {"LlamaForCausalLM"}},
                               {"model_type", "llama"},
                               {"hidden_size", 48},
                               {"intermediate_size", 101},
                               {"num_hidden_layers", 2},
                               {"num_attention_heads", 6},
                               {"num_key_value_heads", 1},
                               {"head_dim", 16},
                               {"vocab_size", kVocabSize},
                               {"max_position_embeddings", 64},
                               {"rms_norm_eps", 1e-5},
                               {"tie_word_embeddings", true},
                               {"torch_dtype", "float32"}};
  REPRISE_RETURN_IF_ERROR(WriteRandomCheckpoint(odd.folder, json, {.max_shard_bytes = 100'000}));
  REPRISE_ASSIGN_OR_RETURN(odd.config, LoadModelConfig(odd.folder));
  Request request = {.max_new_tokens = 8, .forced_tokens = {300, 0, 150, 75, 299, 1, 2, 3}};
  for (int i = 0; i < 21; ++i) request.prompt.push_back(i * 43 % kVocabSize);
  odd.num_logits = request.max_new_tokens * kVocabSize;
  odd.requests.push_back(std::move(request));
  return odd;
}

}  // namespace reprise
