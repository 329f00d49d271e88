#include "reprise/hf/config_fields.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "reprise/hf/json_fields.h"

namespace reprise {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr ModelKind kKinds[] = {{"OneForCausalLM", "one"}, {"TwoForCausalLM", "two"}};

// The index, or the error.
std::string Found(const json& config) {
  const auto kind = FindModelKind(*JsonFields::Of(config, "config.json"), kKinds);
  return kind.ok() ? std::to_string(*kind) : std::string(kind.status().message());
}

TEST(ConfigFieldsTest, AFamilyIsKnownByItsClassAndByItsTypeWhereNoClassIsNamed) {
  EXPECT_EQ(Found({{"architectures", {"TwoForCausalLM"}}, {"model_type", "one"}}), "1");
  EXPECT_EQ(Found({{"architectures", {"OneForCausalLM"}}}), "0");
  EXPECT_EQ(Found({{"model_type", "two"}}), "1");
  EXPECT_EQ(Found({{"architectures", nullptr}, {"model_type", "two"}}), "1");
}

TEST(ConfigFieldsTest, OfAnUnknownFamilyTheFieldAndAllThatAreKnownAreNamed) {
  constexpr char kExpected[] =
      "expected a supported architecture (OneForCausalLM, TwoForCausalLM), got ";
  EXPECT_EQ(Found({{"architectures", {"ThreeForCausalLM"}}, {"model_type", "one"}}),
            std::string("config.json: architectures: ") + kExpected + "[\"ThreeForCausalLM\"]");
  EXPECT_EQ(Found({{"model_type", "three"}}),
            std::string("config.json: model_type: ") + kExpected + "\"three\"");
  EXPECT_EQ(Found(json::object()),
            std::string("config.json: architectures: ") + kExpected + "nothing");
  for (const json& classes : {json(1), json("OneForCausalLM"), json::array(), json::array({1}),
                              json::object(), json::array({"OneForCausalLM", "TwoForCausalLM"})}) {
    EXPECT_THAT(Found({{"architectures", classes}, {"model_type", "one"}}),
                HasSubstr("architectures: expected a supported architecture"))
        << classes;
  }
  EXPECT_THAT(Found({{"model_type", 1}}), HasSubstr("model_type: expected a string, got 1"));
}

}  // namespace
}  // namespace reprise
