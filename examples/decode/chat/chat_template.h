// How a conversation is written for a model, in the formats of the common families of models.
//
//   REPRISE_ASSIGN_OR_RETURN(const ChatTemplate chat, ChatTemplateOf(folder));
//   std::string text = chat.Begin() + chat.UserTurn("Hi", "Be brief.", /*is_first=*/true);
//   // the model writes its answer, up to chat.end_marker, and then:
//   text += chat.AfterAnswer() + chat.UserTurn("Why?", "", false);
//
// A model's own chat_template is a program in Jinja. It is not run: its markers tell which of the
// formats it writes.
//
// Thread safety: values.

#ifndef EXAMPLES_DECODE_CHAT_CHAT_TEMPLATE_H_
#define EXAMPLES_DECODE_CHAT_CHAT_TEMPLATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace reprise {

enum class ChatFormat : int8_t {
  kNone,     // the text alone, line by line: for models that were not trained to chat
  kLlama3,   // <|start_header_id|>user<|end_header_id|>
  kChatMl,   // <|im_start|>user; Qwen and many others
  kMistral,  // [INST] ... [/INST]
  kLlama2,   // the same, with <<SYS>> around the system text, and the BOS before each turn
  kGemma,    // <start_of_turn>user
};

// "none", "llama3", "chatml", "mistral", "llama2", "gemma".
std::string_view ChatFormatName(ChatFormat format);
// Errors: InvalidArgument naming all, for another name.
absl::StatusOr<ChatFormat> ChatFormatOfName(std::string_view name);

// The format that a chat_template writes, by the texts that mark the beginning and the end of a
// turn. nullopt for another format, and for a template with the texts of two: a guess would give a
// worse model without a word.
std::optional<ChatFormat> ChatFormatOfJinja(std::string_view chat_template);

struct ChatTemplate {
  ChatFormat format = ChatFormat::kNone;
  // The text of the token that begins a text; empty: none. For kNone, decode chat takes the tokens
  // that the tokenizer puts before a text, as decode run does.
  std::string bos = {};
  // Around what the user says, of kMistral and kLlama2: the versions of Mistral differ in spaces.
  std::string inst_begin = "[INST] ";
  std::string inst_end = " [/INST]";
  // Around the system text, of kMistral: [SYSTEM_PROMPT], since version 7. Empty: the system text
  // begins the first turn.
  std::string system_begin = {};
  std::string system_end = {};

  // Before the first turn.
  std::string Begin() const;
  // What the user says, up to where the answer begins. `system`, of the first turn only: what the
  // model is told beforehand; empty: nothing. Spaces around both texts are dropped, but for kNone.
  std::string UserTurn(std::string_view text, std::string_view system, bool is_first) const;
  // The text of the token that ends an answer; empty: the model's own end-of-text token.
  std::string_view EndMarker() const;
  // Between the end marker and the next turn: for kNone and kLlama2 the beginning of another text.
  std::string AfterAnswer() const;
};

// Of a model's folder: the format of chat_template in tokenizer_config.json or of the file
// chat_template.jinja, with the spaces that it has around [INST], and the bos_token. A kChatMl has
// the bos_token only if the template has that variable. Without a template, kNone. `format`: in
// place of the folder's. Errors: those of ReadJsonFile(); InvalidArgument for a template of another
// format, naming --template and the formats.
absl::StatusOr<ChatTemplate> ChatTemplateOf(const std::string& folder,
                                            std::optional<ChatFormat> format);

}  // namespace reprise

#endif  // EXAMPLES_DECODE_CHAT_CHAT_TEMPLATE_H_
