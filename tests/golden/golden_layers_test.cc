// Each family uses only the classes of layers, and keeps only the keys, that it needs.

#include <c10/core/Device.h>

#include <ostream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/layer_classes.h"
#include "reprise/base/dtype.h"
#include "reprise/cache/kv_group.h"
#include "tests/golden/golden.h"
#include "tests/golden/golden_model.h"

namespace reprise {

// For messages.
void PrintTo(const KvGroupSpec& group, std::ostream* out) {
  *out << static_cast<int>(group.retention) << " of " << group.span;
}

namespace {

constexpr KvGroupSpec kFull = {};
constexpr KvGroupSpec kWindow = {.retention = KvRetention::kSlidingWindow, .span = 16};
constexpr KvGroupSpec kWindowOf15 = {.retention = KvRetention::kSlidingWindow, .span = 15};
constexpr KvGroupSpec kChunk = {.retention = KvRetention::kChunkedLocal, .span = 16};
constexpr KvGroupSpec kCross = {.retention = KvRetention::kCross};

struct Family {
  const char* name;
  int num_classes;
  std::vector<KvGroupSpec> groups;
};

TEST(GoldenLayersTest, AFamilyHasTheClassesAndGroupsThatItNeeds) {
  const std::vector<Family> families = {
      {"bart", 3, {kFull, kCross}},  // the encoder's layers keep nothing
      {"bloom-alibi", 1, {kFull}},
      {"deepseek-mla", 1, {kFull}},
      {"deepseek-mla-yarn", 1, {kFull}},
      {"deepseek-v2", 1, {kFull}},
      {"deepseek-v3", 1, {kFull}},
      {"gemma", 1, {kFull}},
      {"gemma2", 2, {kWindow, kFull}},
      {"gemma3", 2, {kWindow, kFull}},
      {"gemma3-wrapped", 2, {kWindow, kFull}},
      {"glm4-moe", 1, {kFull}},
      {"gpt-oss-sinks", 2, {kWindow, kFull}},
      {"gpt2", 1, {kFull}},
      {"granite", 1, {kFull}},
      {"llama-bias-untied", 1, {kFull}},
      {"llama-fp8-modelopt", 1, {kFull}},
      {"llama-gqa5", 1, {kFull}},
      {"llama-rope-linear", 1, {kFull}},
      {"llama-rope-llama3", 1, {kFull}},
      {"llama4-chunked", 2, {kChunk, kFull}},
      {"ministral3", 1, {kFull}},
      {"mistral-window", 1, {kWindow}},
      {"mistral3", 1, {kFull}},
      {"mixtral", 1, {kFull}},
      {"olmoe", 1, {kFull}},
      {"phi3", 1, {kWindowOf15}},
      {"qwen2", 1, {kFull}},
      {"qwen2-moe", 1, {kFull}},
      {"qwen3", 1, {kFull}},
      {"qwen3-moe", 1, {kFull}},
      {"qwen3-rope-yarn", 1, {kFull}},
      {"qwen3-vl", 1, {kFull}},
      {"seed-oss", 1, {kFull}},
  };
  for (const Family& family : families) {
    SCOPED_TRACE(family.name);
    const auto golden = LoadGolden(family.name);
    ASSERT_TRUE(golden.ok()) << golden.status();
    const auto model = LoadGoldenModel(*golden, c10::kCPU, DType::kFloat32);
    ASSERT_TRUE(model.ok()) << model.status();
    const auto classes = CollectLayerClasses((*model)->spec().layers);
    ASSERT_TRUE(classes.ok()) << classes.status();
    EXPECT_EQ(classes->num_classes(), family.num_classes);
    EXPECT_THAT(classes->groups, testing::ElementsAreArray(family.groups));
  }
}

}  // namespace
}  // namespace reprise
