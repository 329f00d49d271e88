#include "reprise/models/load_model.h"

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/dtype.h"
#include "reprise/engine/create_engine.h"

namespace reprise {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

namespace fs = std::filesystem;

// A copy of a golden model's folder without the file `left_out`.
std::string CopyWithout(const std::string& left_out) {
  const fs::path copy = fs::path(testing::TempDir()) / ("without_" + left_out);
  fs::remove_all(copy);
  fs::create_directories(copy);
  for (const char* const file : {"config.json", "model.safetensors"}) {
    if (file != left_out) fs::copy_file(fs::path("tests/goldens/qwen3") / file, copy / file);
  }
  return copy.string();
}

std::string Problem(const std::string& folder, const LoadModelOptions& options = {}) {
  return std::string(LoadModel(folder, options).status().message());
}

TEST(LoadModelTest, LoadsEveryFamilyInOneCall) {
  for (const char* const name :
       {"bart", "bloom-alibi", "deepseek-mla", "deepseek-mla-yarn", "gemma2", "gemma3",
        "gpt-oss-sinks", "gpt2", "llama-bias-untied", "llama-gqa5", "llama-rope-linear",
        "llama-rope-llama3", "llama4-chunked", "mistral-window", "qwen2", "qwen3", "qwen3-moe",
        "qwen3-rope-yarn"}) {
    const auto loaded = LoadModel(std::string("tests/goldens/") + name);
    ASSERT_TRUE(loaded.ok()) << name << ": " << loaded.status();
    EXPECT_GT(loaded->model->spec().vocab_size, 0) << name;
    EXPECT_FALSE(loaded->model->spec().layers.empty()) << name;
    EXPECT_GT(loaded->folder.max_seq_len(), 0) << name;
    EXPECT_FALSE(loaded->folder.tokenizer.has_value()) << name;
  }
}

TEST(LoadModelTest, GivesWhatAnEngineNeedsToWriteText) {
  const auto path = DefaultModelFolder();
  ASSERT_TRUE(path.ok()) << path.status();
  const auto loaded = LoadModel(*path, {.weights = {.dtype = DType::kFloat32}});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ASSERT_TRUE(loaded->folder.tokenizer.has_value());
  const auto engine = CreateEngine(loaded->model.get());
  ASSERT_TRUE(engine.ok()) << engine.status();
  const auto prompt = loaded->folder.tokenizer->Encode("YEAR, n.");
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  ASSERT_TRUE((*engine)
                  ->Add({.prompt = *prompt,
                         .max_new_tokens = 64,
                         .stop_tokens = loaded->folder.eos_token_ids()})
                  .ok());
  std::vector<int32_t> tokens;
  for (std::vector<TokenEvent> events; (*engine)->has_work(); events.clear()) {
    ASSERT_TRUE((*engine)->Step(events).ok());
    for (const TokenEvent& event : events) tokens.push_back(*event.token);
  }
  EXPECT_LT(tokens.size(), 64) << "eos_token_ids() did not end the text";
  EXPECT_EQ(loaded->folder.tokenizer->Decode(tokens, SpecialTokenText::kSkip),
            "  A period of three hundred and sixty-five disappointments.");
}

TEST(LoadModelTest, UsesTheRequestedDTypeAndDevice) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    const auto loaded =
        LoadModel("tests/goldens/qwen3", {.weights = {.device = c10::kCPU, .dtype = dtype}});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->model->spec().dtype, dtype);
    EXPECT_EQ(loaded->model->spec().device, c10::Device(c10::kCPU));
  }
}

TEST(LoadModelTest, TheModelDoesNotReferToTheFolder) {
  auto loaded = LoadModel("tests/goldens/qwen3");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const std::unique_ptr<Model> model = std::move(loaded->model);
  *loaded = {};
  EXPECT_TRUE(CreateEngine(model.get()).ok());
}

TEST(LoadModelTest, RejectsAFolderThatDoesNotExist) {
  EXPECT_EQ(Problem("tests/goldens/none"), "tests/goldens/none: there is no such folder");
  EXPECT_TRUE(absl::IsNotFound(LoadModel("tests/goldens/none").status()));
}

TEST(LoadModelTest, RejectsAFolderWithoutWeights) {
  const std::string folder = CopyWithout("model.safetensors");
  EXPECT_TRUE(absl::IsNotFound(LoadModel(folder).status()));
  EXPECT_THAT(Problem(folder), AllOf(StartsWith(folder), HasSubstr("model.safetensors")));
}

TEST(LoadModelTest, RejectsAFolderWithoutConfig) {
  const std::string folder = CopyWithout("config.json");
  EXPECT_TRUE(absl::IsNotFound(LoadModel(folder).status()));
  EXPECT_THAT(Problem(folder), HasSubstr(folder + "/config.json"));
}

TEST(LoadModelTest, RejectsAnUnknownFamily) {
  const std::string folder = CopyWithout("config.json");
  std::ofstream(folder + "/config.json") << R"({"architectures": ["MambaForCausalLM"]})";
  EXPECT_TRUE(absl::IsInvalidArgument(LoadModel(folder).status()));
  EXPECT_THAT(Problem(folder),
              AllOf(StartsWith(folder + "/config.json: architectures: expected a supported "
                                        "architecture (LlamaForCausalLM, "),
                    EndsWith("got [\"MambaForCausalLM\"]")));
}

TEST(LoadModelTest, RejectsADTypeThatModelsDoNotComputeWith) {
  for (const auto& [dtype, name] :
       {std::tuple(DType::kFloat64, "float64"), std::tuple(DType::kFp8E4M3, "float8_e4m3fn"),
        std::tuple(DType::kFp8E5M2, "float8_e5m2")}) {
    EXPECT_EQ(Problem("tests/goldens/qwen3", {.weights = {.dtype = dtype}}),
              std::string("dtype must be float32, float16 or bfloat16: got ") + name);
  }
}

TEST(LoadModelTest, RejectsMorePositionsThanTheConfigHas) {
  EXPECT_THAT(Problem("tests/goldens/gpt2", {.max_position = 513}), HasSubstr("513"));
}

TEST(LoadModelTest, RejectsADeviceThatLibTorchCannotUse) {
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(NumGpus()));
  EXPECT_THAT(Problem("tests/goldens/qwen3", {.weights = {.device = device}}),
              AllOf(StartsWith("device must be a GPU that LibTorch can use: expected at most "),
                    EndsWith("got " + device.str())));
  EXPECT_EQ(Problem("tests/goldens/qwen3", {.weights = {.device = c10::kMeta}}),
            "device must be the CPU or a CUDA device: got meta");
}

TEST(DefaultDeviceTest, IsAGpuIfLibTorchHasOne) {
  EXPECT_EQ(DefaultDevice().is_cuda(), NumGpus() > 0);
  EXPECT_TRUE(CheckDevice(DefaultDevice()).ok());
}

}  // namespace
}  // namespace reprise
