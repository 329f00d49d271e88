// The models and golden files that the project carries are read whole.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/hf/checkpoint.h"
#include "reprise/hf/safetensors.h"
#include "reprise/hf/tensor_view.h"
#include "reprise/models/decoder/decoder_config.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;

TEST(ModelFilesTest, JargonLlamaIsReadWhole) {
  const std::string folder = "examples/models/jargon-llama";
  const absl::StatusOr<DecoderConfig> config = LoadDecoderConfig(folder);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->vocab_size, 4096);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(1));
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(folder);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  int64_t num_weights = 0;
  for (const auto& [name, tensor] : checkpoint->tensors()) {
    EXPECT_EQ(tensor.type, StoredType::kBFloat16) << name;
    EXPECT_TRUE(tensor.IsAligned()) << name;
    num_weights += tensor.num_elements();
  }
  EXPECT_EQ(num_weights, 6'556'928);
}

class GoldenModelTest : public testing::TestWithParam<const char*> {
 protected:
  const std::string folder_ = absl::StrCat("tests/goldens/", GetParam());
};

TEST_P(GoldenModelTest, WeightsHaveTheShapesOfTheConfig) {
  const absl::StatusOr<DecoderConfig> config = LoadDecoderConfig(folder_);
  ASSERT_TRUE(config.ok()) << config.status();
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(folder_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto shape_of = [&](const std::string& name) {
    const absl::StatusOr<TensorView> tensor = checkpoint->Find(name);
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    return tensor.ok() ? tensor->shape : std::vector<int64_t>();
  };
  const int head_dim = config->head_dim;
  EXPECT_THAT(shape_of("model.embed_tokens.weight"),
              ElementsAre(config->vocab_size, config->hidden_size));
  EXPECT_THAT(shape_of("model.layers.1.self_attn.q_proj.weight"),
              ElementsAre(config->num_q_heads * head_dim, config->hidden_size));
  EXPECT_THAT(shape_of("model.layers.1.self_attn.k_proj.weight"),
              ElementsAre(config->num_kv_heads * head_dim, config->hidden_size));
  const std::string mlp(config->names.mlp);
  EXPECT_THAT(shape_of("model.layers.1." + mlp + ".up_proj.weight"),
              ElementsAre(config->intermediate_size, config->hidden_size));
  EXPECT_EQ(checkpoint->Find("lm_head.weight").ok(), !config->tie_word_embeddings);
  EXPECT_EQ(checkpoint->Find("model.layers.0.self_attn.q_proj.bias").ok(), config->qkv_bias);
  EXPECT_EQ(checkpoint->Find("model.layers.0.mlp.up_proj.bias").ok(), config->mlp_bias);
}

TEST_P(GoldenModelTest, GoldenTokensAndLogitsAreReadable) {
  const absl::StatusOr<SafetensorsFile> golden =
      SafetensorsFile::Open(folder_ + "/golden.safetensors");
  ASSERT_TRUE(golden.ok()) << golden.status();
  int num_chosen = 0;
  for (int i = 0; i < 5; ++i) {
    const absl::StatusOr<TensorView> logits = golden->Find(absl::StrCat("logits_", i));
    ASSERT_TRUE(logits.ok()) << logits.status();
    // Of every fourth token.
    const std::vector<int32_t> kept =
        *CopyElements<int32_t>(*golden->Find(absl::StrCat("logits_tokens_", i)));
    EXPECT_THAT(logits->shape, ElementsAre(40, kept.size()));
    const std::vector<float> values = *CopyElements<float>(*logits);
    const std::vector<int64_t> tokens =
        *CopyElements<int64_t>(*golden->Find(absl::StrCat("tokens_", i)));
    ASSERT_EQ(tokens.size(), 40u);
    for (size_t row = 0; row < tokens.size(); ++row) {
      const auto begin = values.begin() + row * kept.size();
      const auto chosen = std::find(kept.begin(), kept.end(), tokens[row]);
      if (chosen == kept.end()) continue;
      ++num_chosen;
      ASSERT_EQ(std::max_element(begin, begin + kept.size()) - begin, chosen - kept.begin())
          << i << " " << row;
    }
  }
  EXPECT_GT(num_chosen, 0);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenModelTest,
                         testing::Values("gemma2", "llama-bias-untied", "llama-gqa5",
                                         "llama-rope-linear", "llama-rope-llama3", "llama4-chunked",
                                         "mistral-window", "qwen2", "qwen3", "qwen3-rope-yarn"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace reprise
