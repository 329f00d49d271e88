#include "reprise/models/decoder/public_configs.h"

#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/hf/paths.h"
#include "reprise/hf/tensor_view.h"
#include "reprise/models/decoder/decoder_weights.h"

namespace reprise {
namespace {

using testing::HasSubstr;

int64_t NumParameters(const DecoderConfig& config) {
  int64_t sum = 0;
  for (const ExpectedTensor& tensor : DecoderTensors(config)) sum += *NumElements(tensor.shape);
  return sum;
}

TEST(LlamaPresetTest, HaveAsManyParametersAsThePublishedModels) {
  EXPECT_EQ(NumParameters(*LlamaPreset("llama-3.1-8b")), 8030261248);
  EXPECT_EQ(NumParameters(*LlamaPreset("llama-3.1-70b")), 70553706496);
  EXPECT_EQ(NumParameters(*LlamaPreset("llama-3.2-1b")), 1235814400);
}

TEST(LlamaPresetTest, JargonIsTheModelThatComesWithTheProject) {
  const std::optional<std::string> folder = FindData("examples/models/jargon-llama", DataRoots());
  ASSERT_TRUE(folder.has_value());
  const auto expected = LoadDecoderConfig(*folder);
  ASSERT_TRUE(expected.ok()) << expected.status();
  const auto preset = LlamaPreset("jargon");
  ASSERT_TRUE(preset.ok());
  EXPECT_EQ(preset->hidden_size, expected->hidden_size);
  EXPECT_EQ(preset->intermediate_size, expected->intermediate_size);
  EXPECT_EQ(preset->num_layers, expected->num_layers);
  EXPECT_EQ(preset->num_q_heads, expected->num_q_heads);
  EXPECT_EQ(preset->num_kv_heads, expected->num_kv_heads);
  EXPECT_EQ(preset->head_dim, expected->head_dim);
  EXPECT_EQ(preset->vocab_size, expected->vocab_size);
  EXPECT_EQ(preset->max_seq_len, expected->max_seq_len);
  EXPECT_EQ(preset->rms_norm_eps, expected->rms_norm_eps);
  EXPECT_EQ(preset->tie_word_embeddings, expected->tie_word_embeddings);
  EXPECT_EQ(preset->rope, expected->rope);
  EXPECT_EQ(preset->dtype, expected->dtype);
  EXPECT_EQ(preset->eos_token_ids, expected->eos_token_ids);
}

TEST(LlamaPresetTest, AnUnknownNameIsAnsweredWithTheKnownOnes) {
  EXPECT_THAT(std::string(LlamaPreset("llama").status().message()),
              HasSubstr("expected llama-3.1-8b, llama-3.1-70b, llama-3.2-1b, jargon, qwen3-8b, "));
}

}  // namespace
}  // namespace reprise
