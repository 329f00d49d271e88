#include "examples/decode/chat/chat_template.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace reprise {
namespace {

// What a model reads before its second answer.
std::string Conversation(const ChatTemplate& chat, const std::string& system,
                         const std::string& answer = "Hello.") {
  return chat.Begin() + chat.UserTurn(" Hi\n", system, true) + answer +
         std::string(chat.EndMarker()) + chat.AfterAnswer() + chat.UserTurn("Why?", system, false);
}

// The expected texts are the output of apply_chat_template() of transformers 5.23.0 for the same
// turns, without the spaces around them, and the templates of Meta-Llama-3-8B-Instruct,
// OpenHermes-2.5-Mistral-7B (chatml), Mistral-7B-Instruct-v0.2 and gemma-7b-it.
TEST(ChatTemplateTest, WritesTheFormatsOfTheFamilies) {
  EXPECT_EQ(Conversation({.format = ChatFormat::kLlama3, .bos = "<|begin_of_text|>"}, "Be brief."),
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(Conversation({.format = ChatFormat::kLlama3, .bos = "<|begin_of_text|>"}, ""),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(Conversation({.format = ChatFormat::kChatMl}, "Be brief."),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(Conversation({.format = ChatFormat::kChatMl}, ""),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n"
            "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(Conversation({.format = ChatFormat::kMistral, .bos = "<s>"}, ""),
            "<s>[INST] Hi [/INST]Hello.</s>[INST] Why? [/INST]");
  EXPECT_EQ(Conversation({.format = ChatFormat::kGemma, .bos = "<bos>"}, ""),
            "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nHello.<end_of_turn>\n"
            "<start_of_turn>user\nWhy?<end_of_turn>\n<start_of_turn>model\n");
}

TEST(ChatTemplateTest, WithoutASystemTextThereIsNoSuchTurn) {
  const ChatTemplate chat = {.format = ChatFormat::kChatMl};
  EXPECT_EQ(chat.UserTurn("Hi", " ", true),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  const ChatTemplate mistral = {.format = ChatFormat::kMistral};
  EXPECT_EQ(mistral.UserTurn("Hi", "Be brief.", true), "[INST] Be brief.\n\nHi [/INST]");
}

TEST(ChatTemplateTest, NoneIsTheTextAlone) {
  const ChatTemplate chat = {.format = ChatFormat::kNone, .bos = "<s>"};
  EXPECT_EQ(Conversation(chat, ""), "<s> Hi\n\nHello.<s>Why?\n");
}

TEST(ChatTemplateTest, FormatsHaveNames) {
  for (const char* const name : {"none", "llama3", "chatml", "mistral", "llama2", "gemma"}) {
    const auto format = ChatFormatOfName(name);
    ASSERT_TRUE(format.ok()) << format.status();
    EXPECT_EQ(ChatFormatName(*format), name);
  }
  EXPECT_EQ(std::string(ChatFormatOfName("alpaca").status().message()),
            "--template: expected none, llama3, chatml, mistral, llama2, gemma, got \"alpaca\"");
}

class ChatTemplateFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name) << text;
  }
  const std::string folder_ = testing::TempDir() + "/chat_template";
};

TEST_F(ChatTemplateFolderTest, TheFolderTellsTheFormat) {
  const struct {
    const char* jinja;
    ChatFormat format;
  } cases[] = {
      {"{{ '<|start_header_id|>' + message['role'] + '<|eot_id|>' }}", ChatFormat::kLlama3},
      {"{{'<|im_start|>' + message['role'] + '<|im_end|>'}}", ChatFormat::kChatMl},
      {"{{ '[INST] ' + content + ' [/INST]' }}", ChatFormat::kMistral},
      {"{{ '[INST] ' + '<<SYS>>\\n' + content + ' [/INST]' }}", ChatFormat::kLlama2},
      {"{{ '<start_of_turn>' + role + '<end_of_turn>' }}", ChatFormat::kGemma}};
  for (const auto& [jinja, format] : cases) {
    Write("tokenizer_config.json", nlohmann::json{{"chat_template", jinja}}.dump());
    const auto chat = ChatTemplateOf(folder_, std::nullopt);
    ASSERT_TRUE(chat.ok()) << chat.status();
    EXPECT_EQ(chat->format, format) << jinja;
  }
  // A list of templates, tokens that are objects, and a file of its own.
  Write("tokenizer_config.json",
        R"({"bos_token":{"content":"<b>"},"chat_template":[{"name":"tools","template":"x"},)"
        R"({"name":"default","template":"[INST][/INST]"}]})");
  auto chat = ChatTemplateOf(folder_, std::nullopt);
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->format, ChatFormat::kMistral);
  EXPECT_EQ(chat->bos, "<b>");
  Write("chat_template.jinja", "<|im_start|><|im_end|>");
  chat = ChatTemplateOf(folder_, std::nullopt);
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->format, ChatFormat::kChatMl);
  EXPECT_EQ(chat->bos, "");
}

// Texts by apply_chat_template(), as above, for the templates of Mistral's tokenizers v1, v3 and
// v3-tekken (Mistral-7B-Instruct-v0.1, Mistral-Large-Instruct-2407, Mistral-Nemo-Instruct-2407), of
// which these are the lines with [INST]. The models write the space that begins an answer. The last
// two templates put the system text before the newest turn, which then is not the beginning of the
// next: so here it is in the first.
TEST_F(ChatTemplateFolderTest, TheVersionsOfMistralDifferInSpaces) {
  const struct {
    const char* jinja;
    const char* system;
    const char* answer;
    const char* text;
  } cases[] = {
      {"{{- ' [INST] ' + message['content'] + ' [/INST]' }}", "Be brief.", " Hello.",
       "<s> [INST] Be brief.\n\nHi [/INST] Hello.</s> [INST] Why? [/INST]"},
      {"{{- ' [INST] ' + message['content'] + ' [/INST]' }}", "", " Hello.",
       "<s> [INST] Hi [/INST] Hello.</s> [INST] Why? [/INST]"},
      {R"({{- "[INST] " + message["content"] + "[/INST]" }})", "", " Hello.",
       "<s>[INST] Hi[/INST] Hello.</s>[INST] Why?[/INST]"},
      {R"({{- "[INST]" + message["content"] + "[/INST]" }})", "", "Hello.",
       "<s>[INST]Hi[/INST]Hello.</s>[INST]Why?[/INST]"},
      // Markers within longer texts say nothing of spaces.
      {R"({# [INST] #}{{ "x [INST] y" }}{{ "[INST]" + content + "[/INST]" }})", "", "Hello.",
       "<s>[INST]Hi[/INST]Hello.</s>[INST]Why?[/INST]"},
      {"[INST][/INST]", "", "Hello.", "<s>[INST] Hi [/INST]Hello.</s>[INST] Why? [/INST]"}};
  for (const auto& [jinja, system, answer, text] : cases) {
    Write("chat_template.jinja", jinja);
    const auto chat = ChatTemplateOf(folder_, std::nullopt);
    ASSERT_TRUE(chat.ok()) << chat.status();
    EXPECT_EQ(Conversation(*chat, system, answer), text) << jinja;
  }
}

// Texts by apply_chat_template(), for the template of Mistral-Small-3.2-24B-Instruct-2506. If the
// conversation has no system text, the template writes a default text, which is left out here.
TEST_F(ChatTemplateFolderTest, NewerMistralsHaveAMarkedSystemText) {
  Write("chat_template.jinja",
        "{{- bos_token }}{{- '[SYSTEM_PROMPT]' + system_prompt + '[/SYSTEM_PROMPT]' }}"
        "{{- '[INST]' + message['content'] + '[/INST]' }}");
  const auto chat = ChatTemplateOf(folder_, std::nullopt);
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->format, ChatFormat::kMistral);
  EXPECT_EQ(
      Conversation(*chat, "Be brief."),
      "<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST]Hi[/INST]Hello.</s>[INST]Why?[/INST]");
  EXPECT_EQ(Conversation(*chat, ""), "<s>[INST]Hi[/INST]Hello.</s>[INST]Why?[/INST]");
}

// The template of Llama-2-7b-chat, and its text by Jinja2. The model writes the spaces around an
// answer.
TEST_F(ChatTemplateFolderTest, Llama2IsNotTakenForMistral) {
  Write("chat_template.jinja",
        "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
        "{% set system_message = messages[0]['content'] %}{% else %}"
        "{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
        "{% for message in loop_messages %}"
        "{% if loop.index0 == 0 and system_message != false %}"
        "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + "
        "message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}"
        "{% if message['role'] == 'user' %}"
        "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
        "{% elif message['role'] == 'assistant' %}"
        "{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}");
  const auto chat = ChatTemplateOf(folder_, std::nullopt);
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->format, ChatFormat::kLlama2);
  EXPECT_EQ(Conversation(*chat, "Be brief.", " Hello. "),
            "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello. </s>"
            "<s>[INST] Why? [/INST]");
  EXPECT_EQ(Conversation(*chat, "", " Hello. "),
            "<s>[INST] Hi [/INST] Hello. </s><s>[INST] Why? [/INST]");
}

// Shortened templates. Hermes-2-Pro, LFM2, Bielik, MiniCPM5 and Step-3.5 write the BOS; Qwen and
// SmolLM2 do not.
TEST_F(ChatTemplateFolderTest, ChatMlHasTheBosOfItsTemplate) {
  constexpr char kTurns[] = "{{'<|im_start|>' + message['role'] + '<|im_end|>'}}";
  const auto begin_of = [&](const std::string& jinja, const std::string& bos,
                            std::optional<ChatFormat> format) {
    Write("tokenizer_config.json",
          nlohmann::json{{"bos_token", bos}, {"chat_template", jinja}}.dump());
    const auto chat = ChatTemplateOf(folder_, format);
    EXPECT_TRUE(chat.ok()) << chat.status();
    return chat.ok() ? chat->Begin() : "";
  };
  const std::string with_bos = std::string("{{bos_token}}") + kTurns;
  EXPECT_EQ(begin_of(with_bos, "<s>", std::nullopt), "<s>");
  EXPECT_EQ(begin_of(with_bos, "<s>", ChatFormat::kChatMl), "<s>");
  EXPECT_EQ(begin_of(with_bos, "", std::nullopt), "");
  EXPECT_EQ(begin_of(kTurns, "<s>", std::nullopt), "");
  EXPECT_EQ(begin_of(kTurns, "<|im_start|>", std::nullopt), "");
}

TEST_F(ChatTemplateFolderTest, RejectsTemplatesThatOnlyResembleAFormat) {
  for (const char* const jinja :
       {"<|im_start|>user<|im_sep|>Hi<|im_end|>",                              // Phi-4
        "'<|start_header_id|>assistant<|end_header_id|>\\n\\n>>>'<|eot_id|>",  // Functionary
        "'<|im_start|>' + role + '\\n' + content + '</s>'",                    // SeaLLM
        "<|im_start|><|im_end|>[INST][/INST]",                                 // two formats
        "<|User|>Hi<|Assistant|>", "<|user|>\nHi<|end|>\n<|assistant|>\n", "[INST]"}) {
    EXPECT_FALSE(ChatFormatOfJinja(jinja).has_value()) << jinja;
  }
}

TEST_F(ChatTemplateFolderTest, WithoutATemplateItIsNoneAndAFlagTakesPrecedence) {
  auto chat = ChatTemplateOf(folder_, std::nullopt);
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->format, ChatFormat::kNone);
  chat = ChatTemplateOf(folder_, ChatFormat::kLlama3);
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->format, ChatFormat::kLlama3);
  EXPECT_EQ(chat->bos, "<|begin_of_text|>");
}

TEST_F(ChatTemplateFolderTest, ATemplateOfAnotherFormatIsRefused) {
  Write("chat_template.jinja", "### Instruction:");
  EXPECT_EQ(std::string(ChatTemplateOf(folder_, std::nullopt).status().message()),
            folder_ +
                " has a chat_template of an unknown format: expected one of none, llama3, chatml, "
                "mistral, llama2, gemma; --template names one in its place");
  EXPECT_TRUE(ChatTemplateOf(folder_, ChatFormat::kNone).ok());
  Write("tokenizer_config.json", R"({"bos_token": "<s>", "model_max_length": Infinity})");
  EXPECT_EQ(ChatTemplateOf(folder_, ChatFormat::kNone)->bos, "<s>");
  Write("tokenizer_config.json", "[1]");
  EXPECT_FALSE(ChatTemplateOf(folder_, ChatFormat::kNone).ok());
}

}  // namespace
}  // namespace reprise
