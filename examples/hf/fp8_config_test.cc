#include "reprise/hf/fp8_config.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace reprise {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

// Of a config with this "quantization_config"; empty: accepted.
std::string ErrorOf(const json& quantization) {
  const json config = {{"quantization_config", quantization}};
  return std::string(AcceptFp8Weights(*JsonFields::Of(config, "config.json")).message());
}

TEST(Fp8ConfigTest, AcceptsFp8WeightsAsTheyArePublished) {
  EXPECT_TRUE(AcceptFp8Weights(*JsonFields::Of(json::object(), "config.json")).ok());
  EXPECT_EQ(ErrorOf(nullptr), "");
  EXPECT_EQ(ErrorOf({{"quant_method", "fp8"}, {"activation_scheme", "static"}}), "");
  EXPECT_EQ(ErrorOf({{"quant_method", "fp8"},
                     {"fmt", "e4m3"},
                     {"activation_scheme", "dynamic"},
                     {"weight_block_size", {128, 128}}}),
            "");
  EXPECT_EQ(ErrorOf({{"quant_method", "fbgemm_fp8"}, {"activation_scale_ub", 1200.0}}), "");
  EXPECT_EQ(ErrorOf({{"quant_method", "compressed-tensors"},
                     {"format", "float-quantized"},
                     {"config_groups", json::object()}}),
            "");
}

TEST(Fp8ConfigTest, AcceptsFp8OfModeloptAndNaiveQuantized) {
  EXPECT_EQ(ErrorOf({{"quant_method", "modelopt"},
                     {"quant_algo", "FP8"},
                     {"kv_cache_scheme", {{"num_bits", 8}}},
                     {"ignore", {"lm_head"}}}),
            "");
  EXPECT_EQ(ErrorOf({{"quant_method", "modelopt"}, {"quant_algo", "FP8_PER_CHANNEL_PER_TOKEN"}}),
            "");
  EXPECT_EQ(ErrorOf({{"quant_method", "compressed-tensors"}, {"format", "naive-quantized"}}), "");
}

TEST(Fp8ConfigTest, TakesTheMethodFromOtherMembersIfItIsAbsent) {
  EXPECT_EQ(ErrorOf({{"activation_scheme", "static"}, {"ignored_layers", {"lm_head"}}}), "");
  EXPECT_EQ(ErrorOf({{"fmt", "e4m3"}, {"quant_method", nullptr}}), "");
  EXPECT_EQ(ErrorOf({{"weight_block_size", {128, 128}}}), "");
  EXPECT_EQ(ErrorOf({{"quant_algo", "FP8"}}), "");
  EXPECT_EQ(ErrorOf({{"format", "float-quantized"}}), "");
  EXPECT_THAT(ErrorOf({{"fmt", "e5m2"}}), HasSubstr("fmt: expected \"e4m3\", got \"e5m2\""));
  EXPECT_THAT(ErrorOf({{"weight_block_size", {64, 64}}}), HasSubstr("weight_block_size"));
  EXPECT_THAT(ErrorOf({{"format", "pack-quantized"}}), HasSubstr("format"));
  EXPECT_THAT(ErrorOf({{"bits", 8}, {"activation_scheme", "static"}}), HasSubstr("quant_method"));
  EXPECT_THAT(ErrorOf(json::object()), HasSubstr("quant_method: expected \"fp8\""));
}

TEST(Fp8ConfigTest, AcceptsScalesOfTheCacheAlone) {
  EXPECT_EQ(ErrorOf({{"quant_method", "modelopt"}, {"kv_cache_quant_algo", "FP8"}}), "");
  EXPECT_EQ(ErrorOf({{"quant_algo", nullptr}, {"kv_cache_quant_algo", "FP8"}}), "");
  EXPECT_EQ(ErrorOf({{"quant_method", "compressed-tensors"},
                     {"format", "dense"},
                     {"kv_cache_scheme", {{"num_bits", 8}}}}),
            "");
  EXPECT_THAT(ErrorOf({{"kv_cache_quant_algo", "NVFP4"}}),
              HasSubstr("kv_cache_quant_algo: expected \"FP8\", got \"NVFP4\""));
  EXPECT_THAT(ErrorOf({{"quant_algo", "NVFP4"}, {"kv_cache_quant_algo", "FP8"}}),
              HasSubstr("quant_algo: expected \"FP8\""));
}

TEST(Fp8ConfigTest, FindsBlocks) {
  const auto columns = [](const json& quantization) {
    const json config = {{"quantization_config", quantization}};
    return Fp8BlockColumns(*JsonFields::Of(config, "config.json"));
  };
  const auto group = [](const json& strategy) {
    return json{{"config_groups", {{"group_0", {{"weights", {{"strategy", strategy}}}}}}}};
  };
  EXPECT_EQ(columns({{"weight_block_size", {128, 128}}}), 128);
  EXPECT_EQ(columns(group("block")), 128);
  for (const json& other :
       {json(), json::object(), json{{"weight_block_size", nullptr}}, group("channel"),
        group(nullptr), json{{"config_groups", {1}}}, json{{"config_groups", {{"a", 1}}}}}) {
    EXPECT_EQ(columns(other), 1) << other;
  }
}

TEST(Fp8ConfigTest, RefusesOthersByName) {
  EXPECT_THAT(ErrorOf({{"quant_method", "gptq"}}),
              AllOf(HasSubstr("quantization_config"), HasSubstr("quant_method"),
                    HasSubstr("not supported"), HasSubstr("gptq")));
  EXPECT_THAT(ErrorOf({{"bits", 4}}), HasSubstr("quant_method"));
  EXPECT_THAT(ErrorOf("fp8"), HasSubstr("quantization_config"));
  EXPECT_THAT(ErrorOf({{"quant_method", "fp8"}, {"fmt", "e5m2"}}), HasSubstr("fmt"));
  for (const json& block : {json{64, 128}, json{128}, json{128, 128, 128}, json("128")}) {
    EXPECT_THAT(ErrorOf({{"quant_method", "fp8"}, {"weight_block_size", block}}),
                HasSubstr("weight_block_size"));
  }
  EXPECT_THAT(ErrorOf({{"quant_method", "compressed-tensors"}, {"format", "pack-quantized"}}),
              HasSubstr("format"));
  EXPECT_THAT(ErrorOf({{"quant_method", "compressed-tensors"}}), HasSubstr("format"));
  EXPECT_THAT(ErrorOf({{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}),
              HasSubstr("quant_algo: expected \"FP8\" or \"FP8_PER_CHANNEL_PER_TOKEN\", got "
                        "\"NVFP4\""));
  EXPECT_THAT(ErrorOf({{"quant_algo", "W4A8_AWQ"}}), HasSubstr("quant_algo"));
  EXPECT_THAT(ErrorOf({{"quant_method", "modelopt"}}), HasSubstr("quant_algo"));
}

}  // namespace
}  // namespace reprise
