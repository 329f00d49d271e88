#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "reprise/hf/rope.h"

namespace reprise {
namespace {

using ::nlohmann::json;
using ::testing::HasSubstr;

absl::StatusOr<RopeConfig> Read(const std::string& text) {
  const json config = json::parse(text);
  return ReadRopeConfig(*JsonFields::Of(config, "config.json"), {.max_seq_len = 131072});
}

TEST(RopeConfigTest, BothFormsSayTheSame) {
  const std::pair<std::string, RopeConfig> cases[] = {
      {R"({})", {.theta = 10000}},
      {R"({"rope_theta": 5e5})", {.theta = 500000}},
      {R"({"rope_theta": 10000, "rope_scaling": null})", {.theta = 10000}},
      {R"({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}})", {.theta = 1e6}},
      {R"({"rope_parameters": {}})", {.theta = 10000}},
      {R"({"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 4}})",
       {.theta = 1e6, .scaling = LinearRope{.factor = 4}}},
      {R"({"rope_scaling": {"rope_type": "linear", "type": "linear", "factor": 2.5}})",
       {.theta = 10000, .scaling = LinearRope{.factor = 2.5}}},
      {R"({"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6}})",
       {.theta = 1e6, .scaling = LinearRope{.factor = 4}}},
      {R"({"rope_theta": 1e6, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}})",
       {.theta = 1e6}},
      {R"({"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "factor": 32, "low_freq_factor": 1,
           "high_freq_factor": 4, "original_max_position_embeddings": 8192}})",
       {.theta = 5e5, .scaling = Llama3Rope{.factor = 32}}},
      {R"({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8, "low_freq_factor": 1,
           "high_freq_factor": 4, "original_max_position_embeddings": 64, "partial_rotary_factor": 1.0}})",
       {.theta = 5e5, .scaling = Llama3Rope{.original_max_seq_len = 64}}},
  };
  for (const auto& [text, expected] : cases) {
    const absl::StatusOr<RopeConfig> config = Read(text);
    ASSERT_TRUE(config.ok()) << text << config.status();
    EXPECT_TRUE(*config == expected) << text;
  }
}

TEST(RopeConfigTest, Llama3WithoutItsOriginalLengthTakesTheModels) {
  const absl::StatusOr<RopeConfig> config = Read(
      R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(std::get<Llama3Rope>(config->scaling).original_max_seq_len, 131072);
}

// Llama 4 Scout's published rope_scaling.
TEST(RopeConfigTest, Llama3FactorsMayBeEqual) {
  const absl::StatusOr<RopeConfig> config =
      Read(R"({"rope_theta": 5e5, "rope_scaling": {"factor": 16.0, "high_freq_factor": 1.0,
          "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
          "rope_type": "llama3"}})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(*config ==
              (RopeConfig{.theta = 5e5,
                          .scaling = Llama3Rope{
                              .factor = 16, .low_freq_factor = 1, .high_freq_factor = 1}}));
}

TEST(RopeConfigTest, ThePartThatRotatesMayStandInTheFileOrInEitherForm) {
  for (const char* text :
       {R"({"partial_rotary_factor": 0.5})",
        R"({"rope_parameters": {"partial_rotary_factor": 0.5}})",
        R"({"partial_rotary_factor": 0.5, "rope_scaling": {"partial_rotary_factor": 0.5}})"}) {
    const absl::StatusOr<RopeConfig> config = Read(text);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->rotary_fraction, 0.5) << text;
  }
  const json empty = json::object();
  const absl::StatusOr<RopeConfig> config =
      ReadRopeConfig(*JsonFields::Of(empty, "config.json"), {.rotary_fraction = 0.25});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rotary_fraction, 0.25);
}

TEST(RopeConfigTest, FamiliesNameMembersThatTheyReadThemselves) {
  const json config = json::parse(R"({"original_max_position_embeddings": 64,
      "rope_scaling": {"rope_type": "default", "mrope_section": [8, 8]}})");
  const JsonFields fields = *JsonFields::Of(config, "config.json");
  constexpr std::string_view kOthers[] = {"mrope_section"};
  EXPECT_TRUE(ReadRopeConfig(fields, {.other_members = kOthers, .has_original_length = true}).ok());
  EXPECT_THAT(ReadRopeConfig(fields, {.has_original_length = true}).status().message(),
              HasSubstr("\"mrope_section\" is not supported"));
  EXPECT_THAT(ReadRopeConfig(fields, {.other_members = kOthers}).status().message(),
              HasSubstr("original_max_position_embeddings: expected it within"));
}

TEST(RopeConfigTest, RefusesWhatIsNotImplementedByName) {
  for (const char* type : {"dynamic", "longrope", "su", "mrope", "proportional", "LLAMA3", ""}) {
    const std::string name = std::string("\"") + type + "\"";
    EXPECT_EQ(Read(R"({"rope_scaling": {"type": )" + name + "}}").status().message(),
              "config.json: rope_scaling: type: expected \"default\", \"linear\", \"llama3\" or "
              "\"yarn\", got " +
                  name);
    EXPECT_EQ(Read(R"({"rope_parameters": {"rope_type": )" + name + "}}").status().message(),
              "config.json: rope_parameters: rope_type: expected \"default\", \"linear\", "
              "\"llama3\" or \"yarn\", got " +
                  name);
  }
}

TEST(RopeConfigTest, RefusesContradictionsAndBadNumbers) {
  const std::pair<std::string, std::string> cases[] = {
      {R"({"rope_scaling": [], "rope_theta": 1e4})", "rope_scaling: expected an object, got []"},
      {R"({"rope_scaling": {}, "rope_parameters": {}})",
       "rope_scaling: expected nothing beside rope_parameters"},
      {R"({"rope_theta": 0})", "rope_theta: expected a number in [1, "},
      {R"({"rope_theta": -1e4})", "rope_theta: expected a number in [1, "},
      {R"({"rope_theta": "NaN"})", "rope_theta: expected a number in [1, 1e+12], got \"NaN\""},
      {R"({"rope_theta": 1e300})", "rope_theta: expected a number"},
      {R"({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e5}})",
       "rope_parameters: rope_theta: expected that of the file (10000), got 100000.0"},
      {R"({"partial_rotary_factor": 0})",
       "config.json: partial_rotary_factor: expected a number in [0.001, 1], got 0"},
      {R"({"partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 0.25}})",
       "partial_rotary_factor: expected that of the file (0.5), got 0.25"},
      {R"({"rope_parameters": {"full_attention": {"rope_type": "default"}}})",
       "\"full_attention\" is not supported"},
      {R"({"rope_scaling": {"rope_type": 3}})", "rope_type: expected a string, got 3"},
      {R"({"rope_scaling": {"rope_type": "linear", "type": "llama3"}})",
       "type: expected the same as rope_type"},
      {R"({"rope_scaling": {"rope_type": "linear"}})", "factor: expected a number, got nothing"},
      {R"({"rope_scaling": {"rope_type": "linear", "factor": 0}})",
       "factor: expected a number in [1, "},
      {R"({"rope_scaling": {"rope_type": "linear", "factor": true}})", "factor: expected a number"},
      {R"({"rope_scaling": {"rope_type": "linear", "factor": 2, "beta": 1}})",
       "\"beta\" is not supported"},
      {R"({"original_max_position_embeddings": 4096, "rope_scaling": {}})",
       "original_max_position_embeddings: expected it within rope_parameters"},
  };
  for (const auto& [text, error] : cases) {
    EXPECT_THAT(Read(text).status().message(), HasSubstr(error)) << text;
  }
}

TEST(RopeConfigTest, RefusesLlama3ThatLacksOrTwistsAParameter) {
  const json good =
      json::parse(R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
      "high_freq_factor": 4, "original_max_position_embeddings": 8192}})");
  ASSERT_TRUE(Read(good.dump()).ok());
  for (const char* name : {"factor", "low_freq_factor", "high_freq_factor"}) {
    json bad = good;
    bad["rope_scaling"].erase(name);
    EXPECT_THAT(Read(bad.dump()).status().message(),
                HasSubstr(std::string(name) + ": expected a number, got nothing"));
  }
  const std::vector<std::pair<std::string, json>> twists = {
      {"high_freq_factor", 0.5},
      {"low_freq_factor", 0},
      {"low_freq_factor", "1"},
      {"factor", 0.5},
      {"original_max_position_embeddings", 0},
      {"original_max_position_embeddings", 8192.0},
      {"original_max_position_embeddings", int64_t{1} << 40}};
  for (const auto& [name, value] : twists) {
    json bad = good;
    bad["rope_scaling"][name] = value;
    EXPECT_THAT(Read(bad.dump()).status().message(),
                HasSubstr("rope_scaling: " + name + ": expected"))
        << value;
  }
}

// DeepSeek-R1-0528-Qwen3-8B: 0.1 ln 4 + 1 = 1.138629436, whose inverse is 0.878248857.
TEST(RopeConfigTest, AttnFactorMultipliesYarnsAttentionFactor) {
  const absl::StatusOr<RopeConfig> published = Read(
      R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0,
          "original_max_position_embeddings": 32768, "attn_factor": 0.8782488562869419}})");
  ASSERT_TRUE(published.ok()) << published.status();
  EXPECT_NEAR(RopeAttentionFactor(*published), 1, 1e-12);
  const absl::StatusOr<RopeConfig> half =
      Read(R"({"rope_scaling": {"type": "yarn", "factor": 4, "attn_factor": 0.5}})");
  ASSERT_TRUE(half.ok()) << half.status();
  EXPECT_NEAR(RopeAttentionFactor(*half), 0.569314718, 1e-9);
}

// Yarn-Llama-2-7b-64k.
TEST(RopeConfigTest, AcceptsTheMarksOfYarnsAuthors) {
  const absl::StatusOr<RopeConfig> marked = Read(
      R"({"rope_scaling": {"type": "yarn", "factor": 16.0, "finetuned": true,
          "extrapolation_factor": 1, "original_max_position_embeddings": 4096}})");
  ASSERT_TRUE(marked.ok()) << marked.status();
  const absl::StatusOr<RopeConfig> plain = Read(
      R"({"rope_scaling": {"type": "yarn", "factor": 16.0,
          "original_max_position_embeddings": 4096}})");
  EXPECT_TRUE(*marked == *plain);
}

TEST(RopeConfigTest, RefusesYarnMarksThatWouldChangeTheResult) {
  const std::pair<std::string, std::string> cases[] = {
      {R"("attn_factor": 0)", "attn_factor: expected a number in [0.001, 1000], got 0"},
      {R"("attn_factor": "1")", "attn_factor: expected a number"},
      {R"("attn_factor": 0.5, "attention_factor": 1)",
       "attn_factor: expected nothing beside attention_factor, got 0.5"},
      {R"("finetuned": 1)", "finetuned: expected true or false, got 1"},
      {R"("extrapolation_factor": 0.5)", "extrapolation_factor: expected 1, got 0.5"},
  };
  for (const auto& [member, error] : cases) {
    EXPECT_THAT(Read(R"({"rope_scaling": {"type": "yarn", "factor": 4, )" + member + "}}")
                    .status()
                    .message(),
                HasSubstr(error));
  }
}

TEST(RopeConfigTest, ReadsYarnAsQwenAndTransformers5HaveIt) {
  const YarnRope qwen = {
      .factor = 4, .attention_factor = 0.1 * std::log(4.0) + 1, .original_max_seq_len = 32768};
  for (const char* text :
       {R"({"rope_theta": 1e6, "rope_scaling": {"type": "yarn", "factor": 4.0,
            "original_max_position_embeddings": 32768}})",
        R"({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": null,
            "original_max_position_embeddings": 32768}})"}) {  // 131072 / 32768
    const absl::StatusOr<RopeConfig> config = Read(text);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_TRUE(*config == (RopeConfig{.theta = 1e6, .scaling = qwen})) << text;
  }
  const absl::StatusOr<RopeConfig> all = Read(
      R"({"rope_parameters": {"rope_type": "yarn", "factor": 2, "attention_factor": 1.25,
          "beta_fast": 16, "beta_slow": 2, "mscale": 1, "mscale_all_dim": 1, "truncate": false}})");
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_TRUE(std::get<YarnRope>(all->scaling) == (YarnRope{.factor = 2,
                                                            .attention_factor = 1.25,
                                                            .beta_fast = 16,
                                                            .beta_slow = 2,
                                                            .original_max_seq_len = 131072,
                                                            .truncate = false}));
}

TEST(RopeConfigTest, YarnsAttentionFactorIsARatioWhereBothScalesAreGiven) {
  const auto factor = [](const std::string& members) {
    const absl::StatusOr<RopeConfig> config =
        Read(R"({"rope_scaling": {"type": "yarn", "factor": 40, )" + members + "}}");
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? RopeAttentionFactor(*config) : 0;
  };
  EXPECT_NEAR(factor(R"("mscale": 0.707, "mscale_all_dim": 1.0)"), 0.9210423553163399, 1e-12);
  EXPECT_EQ(factor(R"("mscale": 1.0, "mscale_all_dim": 1.0)"), 1);
  const double alone = 0.1 * std::log(40.0) + 1;
  EXPECT_EQ(factor(R"("mscale": 0.707)"), alone);  // counts only with the other
  EXPECT_EQ(factor(R"("mscale": 0, "mscale_all_dim": 1.0)"), alone);
}

TEST(RopeConfigTest, WindowsMayHaveARopeOfTheirOwn) {
  const auto read = [](const std::string& text) {
    const json config = json::parse(text);
    return ReadLayerRopes(*JsonFields::Of(config, "config.json"),
                          {.max_seq_len = 131072, .theta = 1e6}, 1e4);
  };
  const LinearRope linear = {.factor = 8};
  for (const char* const text : {R"({"rope_theta": 5e5, "rope_local_base_freq": 2e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0}})",
                                 R"({"rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4}}})"}) {
    const auto ropes = read(text);
    ASSERT_TRUE(ropes.ok()) << ropes.status();
    EXPECT_TRUE(ropes->full == (RopeConfig{.theta = 5e5, .scaling = linear}));
    EXPECT_TRUE(ropes->window == (RopeConfig{.theta = 2e4}));
  }
  const auto absent = read("{}");
  ASSERT_TRUE(absent.ok()) << absent.status();
  EXPECT_EQ(absent->full.theta, 1e6);
  EXPECT_EQ(absent->window.theta, 1e4);
  const auto half = read(R"({"rope_parameters": {"full_attention": {"rope_type": "default"}}})");
  ASSERT_TRUE(half.ok()) << half.status();
  EXPECT_EQ(half->full.theta, 1e6);
  EXPECT_EQ(half->window.theta, 1e4);
  const auto outside = read(R"({"rope_theta": 7e5, "rope_local_base_freq": 2e4,
      "rope_parameters": {"full_attention": {}, "sliding_attention": {}}})");
  ASSERT_TRUE(outside.ok()) << outside.status();
  EXPECT_EQ(outside->full.theta, 7e5);
  EXPECT_EQ(outside->window.theta, 2e4);
  EXPECT_THAT(read(R"({"rope_parameters": {"full_attention": {}, "chunked_attention": {}}})")
                  .status()
                  .message(),
              HasSubstr("\"chunked_attention\" is not supported"));
  EXPECT_THAT(read(R"({"rope_parameters": {"sliding_attention": {"rope_type": "spiral"}}})")
                  .status()
                  .message(),
              HasSubstr("rope_parameters.sliding_attention"));
  EXPECT_THAT(read(R"({"rope_local_base_freq": 0})").status().message(),
              HasSubstr("rope_local_base_freq: expected a number in [1, "));
}

TEST(RopeConfigTest, RefusesYarnThatTwistsAParameter) {
  const json good = json::parse(R"({"rope_theta": 1e4, "rope_scaling": {"rope_type": "yarn",
      "factor": 4, "original_max_position_embeddings": 32768}})");
  ASSERT_TRUE(Read(good.dump()).ok());
  const std::vector<std::pair<std::string, json>> twists = {
      {"factor", 0.5},
      {"factor", "4"},
      {"beta_fast", 0},
      {"beta_slow", -1},
      {"beta_fast", 0.5},
      {"beta_slow", 64},
      {"mscale", "1"},
      {"truncate", 1},
      {"attention_factor", 0},
      {"attention_factor", true},
      {"original_max_position_embeddings", 0}};
  for (const auto& [name, value] : twists) {
    json bad = good;
    bad["rope_scaling"][name] = value;
    EXPECT_THAT(Read(bad.dump()).status().message(),
                HasSubstr("rope_scaling: " + name + ": expected"))
        << value;
  }
  json bad = good;
  bad["rope_scaling"].erase("factor");
  bad["rope_scaling"]["original_max_position_embeddings"] = 1 << 20;  // 131072 is the model's
  EXPECT_THAT(Read(bad.dump()).status().message(),
              HasSubstr("expected at most max_position_embeddings (131072), got 1048576"));
  bad["rope_scaling"].erase("original_max_position_embeddings");
  EXPECT_THAT(Read(bad.dump()).status().message(),
              HasSubstr("factor: expected a number, or original_max_position_embeddings"));
  bad = good;
  bad["rope_theta"] = 1;
  EXPECT_THAT(Read(bad.dump()).status().message(),
              HasSubstr("rope_theta: expected more than 1.001 with yarn, got 1"));
  bad = good;
  bad["rope_scaling"]["beta"] = 1;
  EXPECT_THAT(Read(bad.dump()).status().message(), HasSubstr("\"beta\" is not supported"));
}

}  // namespace
}  // namespace reprise
