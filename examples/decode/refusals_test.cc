// Errors of users: each ends in a sentence, none in a crash.

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <sstream>
#include <string>

#include "absl/strings/str_replace.h"
#include "examples/decode/model_copy.h"
#include "examples/decode/run.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

// Why a run is refused. It has to be one line, and nothing may have been printed.
std::string Problem(DecodeOptions options) {
  options.device = DeviceChoice::kCpu;
  std::ostringstream out;
  std::ostringstream err;
  const absl::Status status = RunDecode(options, {.out = out, .err = err});
  EXPECT_FALSE(status.ok());
  const std::string message(status.message());
  EXPECT_THAT(message,
              AllOf(Not(HasSubstr("\n")), SizeIs(testing::Gt(10u)), SizeIs(testing::Lt(700u))));
  EXPECT_EQ(out.str(), "");
  return message;
}

TEST(DecodeRefusalsTest, PromptsThatDoNotFitAreRefused) {
  EXPECT_THAT(Problem({.prompts = {{.content = TokenList{4096}}}}), HasSubstr("4096"));
  EXPECT_THAT(Problem({.prompts = {{.content = TokenList{1}},
                                   {.content = TokenList{1}, .forced_tokens = {5000}}}}),
              AllOf(HasSubstr("prompt 2"), HasSubstr("forced_tokens"), HasSubstr("5000")));
  EXPECT_THAT(Problem({.prompts = {{.content = TokenList(2049, 1)}}}),
              AllOf(HasSubstr("2048"), HasSubstr("2049")));
  EXPECT_THAT(Problem({.prompts = {{.content = TokenList(100, 1)}},
                       .engine = {.runner = {.cache = {.size = NumBlocks{3}}}}}),
              AllOf(HasSubstr("at most 32 tokens"), HasSubstr("100")));
}

TEST(DecodeRefusalsTest, ACacheThatCannotBeIsRefused) {
  EXPECT_THAT(Problem({.engine = {.runner = {.cache = {.block_size = 2'000'000'000,
                                                       .size = NumBlocks{2'000'000'000}}}}}),
              HasSubstr("the cache is too large"));
  // 6 terabytes.
  EXPECT_THAT(Problem({.engine = {.runner = {.cache = {.block_size = 2'000'000'000}}}}),
              HasSubstr("memory"));
}

struct Spoiling {
  const char* what;
  std::function<void(const std::string& folder)> spoil;
  const char* expected;  // part of the message
};

void ReplaceIn(const std::string& path, const std::string& from, const std::string& to) {
  const std::string content = ReadWholeFile(path);
  const std::string changed = absl::StrReplaceAll(content, {{from, to}});
  ASSERT_NE(content, changed) << path << " has no " << from;
  WriteWholeFile(path, changed);
}

// The header of a safetensors file, its length adjusted.
void ReplaceInHeader(const std::string& path, const std::string& from, const std::string& to) {
  const std::string content = ReadWholeFile(path);
  uint64_t length = 0;
  std::memcpy(&length, content.data(), sizeof(length));
  std::string header = content.substr(sizeof(length), length);
  const std::string tensors = content.substr(sizeof(length) + length);
  const size_t at = header.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  header.replace(at, from.size(), to);
  length = header.size();
  std::string changed(sizeof(length), '\0');
  std::memcpy(changed.data(), &length, sizeof(length));
  WriteWholeFile(path, changed + header + tensors);
}

const Spoiling kSpoilings[] = {
    {"no config", [](const std::string& f) { std::filesystem::remove(f + "/config.json"); },
     "config.json"},
    {"no weights", [](const std::string& f) { std::filesystem::remove(f + "/model.safetensors"); },
     "model.safetensors"},
    {"an empty config", [](const std::string& f) { WriteWholeFile(f + "/config.json", ""); },
     "config.json"},
    {"a config that is no JSON",
     [](const std::string& f) { WriteWholeFile(f + "/config.json", "{\"hidden_size\": "); },
     "JSON"},
    {"an unknown architecture",
     [](const std::string& f) { ReplaceIn(f + "/config.json", "LlamaForCausalLM", "GptForAll"); },
     "GptForAll"},
    {"a size of another type",
     [](const std::string& f) {
       ReplaceIn(f + "/config.json", "\"hidden_size\": 256", "\"hidden_size\": \"256\"");
     },
     "hidden_size"},
    {"a size of 2^63",
     [](const std::string& f) {
       ReplaceIn(f + "/config.json", "\"vocab_size\": 4096", "\"vocab_size\": 9223372036854775808");
     },
     "vocab_size"},
    {"another size than the weights'",
     [](const std::string& f) {
       ReplaceIn(f + "/config.json", "\"intermediate_size\": 768", "\"intermediate_size\": 700");
     },
     "wrong tensors: model.layers.0.mlp.gate_proj.weight must be [700, 256], got [768, 256]"},
    {"more layers than the weights have",
     [](const std::string& f) {
       ReplaceIn(f + "/config.json", "\"num_hidden_layers\": 6", "\"num_hidden_layers\": 4000");
     },
     "missing tensors: model.layers.6."},
    {"half the weights",
     [](const std::string& f) { std::filesystem::resize_file(f + "/model.safetensors", 6000000); },
     "model.safetensors"},
    {"a header that ends early",
     [](const std::string& f) { std::filesystem::resize_file(f + "/model.safetensors", 100); },
     "model.safetensors"},
    {"a header of 2^63 bytes",
     [](const std::string& f) {
       std::string content = ReadWholeFile(f + "/model.safetensors");
       content[7] = '\x80';
       WriteWholeFile(f + "/model.safetensors", content);
     },
     "model.safetensors"},
    {"a tensor of an unknown type",
     [](const std::string& f) {
       ReplaceInHeader(f + "/model.safetensors", "\"BF16\"", "\"BF15\"");
     },
     "BF15"},
    {"a tensor whose shape does not match its bytes",
     [](const std::string& f) { ReplaceInHeader(f + "/model.safetensors", "[4096,", "[4095,"); },
     "model.embed_tokens.weight"},
    {"a tensor that the model does not know",
     [](const std::string& f) {
       ReplaceInHeader(f + "/model.safetensors", "model.norm.weight", "model.norm.scale");
     },
     "unknown tensors: model.norm.scale"},
    {"half a tokenizer",
     [](const std::string& f) { std::filesystem::resize_file(f + "/tokenizer.json", 5000); },
     "tokenizer.json"},
    {"a tokenizer of another kind",
     [](const std::string& f) { WriteWholeFile(f + "/tokenizer.json", R"({"model": {}})"); },
     "tokenizer.json"},
};

TEST(DecodeRefusalsTest, ASpoiledModelIsRefusedWithASentence) {
  for (const Spoiling& spoiling : kSpoilings) {
    SCOPED_TRACE(spoiling.what);
    const std::string model = CopyDefaultModel("spoiled");
    spoiling.spoil(model);
    EXPECT_THAT(Problem({.model = model, .prompts = {{.content = "foo\n"}}}),
                HasSubstr(spoiling.expected));
  }
}

TEST(DecodeRefusalsTest, AFolderThatIsNoneIsRefused) {
  EXPECT_THAT(Problem({.model = "/no/such/model"}), HasSubstr("there is no such folder"));
  EXPECT_THAT(Problem({.model = "/dev/null"}), HasSubstr("/dev/null"));
}

}  // namespace
}  // namespace reprise
