#include "examples/decode/chat/chat_template.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/hf/strict_json.h"

namespace reprise {
namespace {

using nlohmann::json;

struct FormatSpec {
  ChatFormat format;
  const char* name;
  // A chat_template of this format has both texts, and has not the third. Null: no such text.
  const char* marker;
  const char* end_marker;
  const char* other_marker;
  const char* bos;  // written before the first turn, where a folder names none
};
constexpr std::array<FormatSpec, 6> kFormats = {
    {{ChatFormat::kNone, "none", nullptr, nullptr, nullptr, ""},
     // Functionary begins its answers with ">>>".
     {ChatFormat::kLlama3, "llama3", "<|start_header_id|>", "<|eot_id|>",
      R"(<|end_header_id|>\n\n>>>)", "<|begin_of_text|>"},
     // Phi-4 has <|im_sep|> after the role.
     {ChatFormat::kChatMl, "chatml", "<|im_start|>", "<|im_end|>", "<|im_sep|>", ""},
     {ChatFormat::kMistral, "mistral", "[INST]", "[/INST]", "<<SYS>>", "<s>"},
     {ChatFormat::kLlama2, "llama2", "<<SYS>>", "[/INST]", nullptr, "<s>"},
     {ChatFormat::kGemma, "gemma", "<start_of_turn>", "<end_of_turn>", nullptr, "<bos>"}}};

const FormatSpec& SpecOf(ChatFormat format) {
  return *std::find_if(kFormats.begin(), kFormats.end(),
                       [&](const FormatSpec& spec) { return spec.format == format; });
}

std::vector<std::string> FormatNames() {
  std::vector<std::string> names;
  for (const FormatSpec& spec : kFormats) names.push_back(spec.name);
  return names;
}

std::string Stripped(std::string_view text) {
  return std::string(absl::StripAsciiWhitespace(absl::string_view(text.data(), text.size())));
}

// A member that is a text, or an object with its "content", as tokens are.
std::string TextOf(const json& config, const char* name) {
  const auto it = config.find(name);
  if (it == config.end()) return "";
  if (it->is_string()) return it->get<std::string>();
  if (it->is_object() && it->contains("content") && it->at("content").is_string()) {
    return it->at("content").get<std::string>();
  }
  return "";
}

// A text, or a list of {"name": , "template": }, of which the one named default counts.
std::string JinjaOf(const json& config) {
  const auto it = config.find("chat_template");
  if (it == config.end() || !it->is_array()) return TextOf(config, "chat_template");
  for (const json& entry : *it) {
    if (entry.is_object() && TextOf(entry, "name") == "default") return TextOf(entry, "template");
  }
  return "";
}

// The marker with the spaces next to it, from the first text of a program in Jinja that is this
// alone: "[INST] " of `{{ '[INST] ' + content }}`. nullopt: there is none.
std::optional<std::string> SpacedMarker(std::string_view jinja, std::string_view marker) {
  const auto is_quote = [&](size_t i) {
    return i < jinja.size() && (jinja[i] == '\'' || jinja[i] == '"');
  };
  const auto is_space = [&](size_t i) { return i < jinja.size() && jinja[i] == ' '; };
  for (size_t at = jinja.find(marker); at != std::string_view::npos;
       at = jinja.find(marker, at + 1)) {
    size_t begin = at;
    size_t end = at + marker.size();
    if (begin > 0 && is_space(begin - 1)) --begin;
    if (is_space(end)) ++end;
    if (begin > 0 && is_quote(begin - 1) && is_quote(end)) {
      return std::string(jinja.substr(begin, end - begin));
    }
  }
  return std::nullopt;
}

}  // namespace

std::string_view ChatFormatName(ChatFormat format) { return SpecOf(format).name; }

absl::StatusOr<ChatFormat> ChatFormatOfName(std::string_view name) {
  for (const FormatSpec& spec : kFormats) {
    if (name == spec.name) return spec.format;
  }
  return absl::InvalidArgumentError(absl::StrCat("--template: expected ",
                                                 absl::StrJoin(FormatNames(), ", "), ", got ",
                                                 DescribeJson(std::string(name))));
}

std::optional<ChatFormat> ChatFormatOfJinja(std::string_view chat_template) {
  const auto has = [&](const char* text) {
    return text != nullptr && chat_template.find(text) != std::string_view::npos;
  };
  std::optional<ChatFormat> format;
  for (const FormatSpec& spec : kFormats) {
    if (!has(spec.marker) || !has(spec.end_marker) || has(spec.other_marker)) continue;
    if (format.has_value()) return std::nullopt;  // of two formats
    format = spec.format;
  }
  return format;
}

std::string ChatTemplate::Begin() const { return bos; }

std::string ChatTemplate::UserTurn(std::string_view text, std::string_view system,
                                   bool is_first) const {
  const std::string user = Stripped(text);
  const std::string told = is_first ? Stripped(system) : "";
  switch (format) {
    case ChatFormat::kNone:
      return absl::StrCat(is_first ? std::string(system) : "", std::string(text), "\n");
    case ChatFormat::kLlama3: {
      const auto turn = [](const char* role, const std::string& content) {
        return absl::StrCat("<|start_header_id|>", role, "<|end_header_id|>\n\n", content,
                            "<|eot_id|>");
      };
      return absl::StrCat(told.empty() ? "" : turn("system", told), turn("user", user),
                          "<|start_header_id|>assistant<|end_header_id|>\n\n");
    }
    case ChatFormat::kChatMl: {
      const auto turn = [](const char* role, const std::string& content) {
        return absl::StrCat("<|im_start|>", role, "\n", content, "<|im_end|>\n");
      };
      return absl::StrCat(told.empty() ? "" : turn("system", told), turn("user", user),
                          "<|im_start|>assistant\n");
    }
    case ChatFormat::kMistral:
      if (!system_begin.empty()) {
        return absl::StrCat(told.empty() ? "" : absl::StrCat(system_begin, told, system_end),
                            inst_begin, user, inst_end);
      }
      return absl::StrCat(inst_begin, told, told.empty() ? "" : "\n\n", user, inst_end);
    case ChatFormat::kLlama2:
      return absl::StrCat(inst_begin,
                          told.empty() ? "" : absl::StrCat("<<SYS>>\n", told, "\n<</SYS>>\n\n"),
                          user, inst_end);
    case ChatFormat::kGemma:
      return absl::StrCat("<start_of_turn>user\n", told, told.empty() ? "" : "\n\n", user,
                          "<end_of_turn>\n<start_of_turn>model\n");
  }
  return "";
}

std::string_view ChatTemplate::EndMarker() const {
  switch (format) {
    case ChatFormat::kLlama3:
      return "<|eot_id|>";
    case ChatFormat::kChatMl:
      return "<|im_end|>";
    case ChatFormat::kMistral:
    case ChatFormat::kLlama2:
      return "</s>";
    case ChatFormat::kGemma:
      return "<end_of_turn>";
    case ChatFormat::kNone:
      break;
  }
  return "";
}

std::string ChatTemplate::AfterAnswer() const {
  switch (format) {
    case ChatFormat::kChatMl:
    case ChatFormat::kGemma:
      return "\n";
    case ChatFormat::kNone:
    case ChatFormat::kLlama2:
      return bos;
    case ChatFormat::kLlama3:
    case ChatFormat::kMistral:
      break;
  }
  return "";
}

absl::StatusOr<ChatTemplate> ChatTemplateOf(const std::string& folder,
                                            std::optional<ChatFormat> format) {
  json config = json::object();
  const std::string path = folder + "/tokenizer_config.json";
  if (std::filesystem::exists(path)) {
    REPRISE_ASSIGN_OR_RETURN(config, ReadConfigFile(path));
    if (!config.is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": expected an object, got ", DescribeJson(config)));
    }
  }
  std::string jinja = JinjaOf(config);
  if (std::ifstream file(folder + "/chat_template.jinja", std::ios::binary); file.good()) {
    jinja.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  ChatTemplate made;
  if (!format.has_value()) {
    format = jinja.empty() ? ChatFormat::kNone : ChatFormatOfJinja(jinja);
    if (!format.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(folder, " has a chat_template of an unknown format: expected one of ",
                       absl::StrJoin(FormatNames(), ", "), "; --template names one in its place"));
    }
    made.inst_begin = SpacedMarker(jinja, "[INST]").value_or(made.inst_begin);
    made.inst_end = SpacedMarker(jinja, "[/INST]").value_or(made.inst_end);
    if (jinja.find("[SYSTEM_PROMPT]") != std::string::npos) {
      made.system_begin = SpacedMarker(jinja, "[SYSTEM_PROMPT]").value_or("[SYSTEM_PROMPT]");
      made.system_end = SpacedMarker(jinja, "[/SYSTEM_PROMPT]").value_or("[/SYSTEM_PROMPT]");
    }
  }
  made.format = *format;
  // ChatML is written with a BOS (Hermes) and without one (Qwen).
  if (made.format != ChatFormat::kChatMl || jinja.find("bos_token") != std::string::npos) {
    made.bos = TextOf(config, "bos_token");
    if (made.bos.empty()) made.bos = SpecOf(made.format).bos;
  }
  return made;
}

}  // namespace reprise
