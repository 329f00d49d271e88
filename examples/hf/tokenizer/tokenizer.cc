#include "reprise/hf/tokenizer/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/hf/strict_json.h"
#include "reprise/hf/tokenizer/byte_level.h"
#include "reprise/hf/tokenizer/tokenizer_config.h"
#include "reprise/hf/utf8.h"

namespace reprise {
namespace {

using nlohmann::json;

// Tokens and merges as sequences of bytes.
struct ByteModel {
  ByteVocabulary vocabulary;
  std::vector<Merge> merges;
};

// Of units of bytes, contents are written in an alphabet. A token with a character outside of it is
// no sequence of bytes: it is only found as an added token.
absl::StatusOr<ByteModel> FromByteLevel(const BpeSpec& spec) {
  ByteModel model;
  model.vocabulary.reserve(spec.vocabulary.size());
  for (const auto& [content, id] : spec.vocabulary) {
    if (std::optional<std::string> bytes = BytesFromLevel(content)) {
      model.vocabulary.emplace(*std::move(bytes), id);
    }
  }
  model.merges.reserve(spec.merges.size());
  for (const auto& [left, right] : spec.merges) {
    std::optional<std::string> left_bytes = BytesFromLevel(left);
    std::optional<std::string> right_bytes = BytesFromLevel(right);
    if (!left_bytes || !right_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "merges: number ", model.merges.size(), ": expected the byte-level alphabet, got ",
          DescribeJson(json(left)), " and ", DescribeJson(json(right))));
    }
    model.merges.emplace_back(*std::move(left_bytes), *std::move(right_bytes));
  }
  return model;
}

absl::StatusOr<BytePairEncoder> MakeEncoder(const BpeSpec& spec) {
  ByteModel model;
  if (spec.symbols.units == SymbolUnits::kBytes) {
    REPRISE_ASSIGN_OR_RETURN(model, FromByteLevel(spec));
  } else {
    model.vocabulary.insert(spec.vocabulary.begin(), spec.vocabulary.end());
    model.merges = spec.merges;
  }
  return BytePairEncoder::Create(std::move(model.vocabulary), model.merges, spec.whole_pieces,
                                 spec.symbols);
}

// Those that are looked for before (or after) texts are normalized; the latter as the normalizer
// writes them.
absl::StatusOr<AddedTokens> MakeAddedTokens(const TokenizerSpec& spec, bool is_normalized) {
  std::vector<AddedToken> tokens;
  for (const AddedToken& token : spec.added_tokens) {
    if (token.is_normalized != is_normalized) continue;
    tokens.push_back(token);
    if (is_normalized) tokens.back().content = Normalize(spec.normalizer, token.content);
  }
  return AddedTokens::Create(std::move(tokens));
}

}  // namespace

absl::StatusOr<Tokenizer> Tokenizer::Load(const std::string& path) {
  REPRISE_ASSIGN_OR_RETURN(const json value, ReadJsonFile(path));
  REPRISE_ASSIGN_OR_RETURN(const TokenizerSpec spec, ParseTokenizerJson(value, path));
  return CreateNaming(path, spec);
}

absl::StatusOr<Tokenizer> Tokenizer::LoadFolder(const std::string& folder) {
  const std::string path = folder + "/tokenizer.json";
  REPRISE_ASSIGN_OR_RETURN(const json value, ReadJsonFile(path));
  REPRISE_ASSIGN_OR_RETURN(TokenizerSpec spec, ParseTokenizerJson(value, path));
  const std::string config_path = folder + "/tokenizer_config.json";
  std::error_code ignored;
  if (std::filesystem::exists(std::filesystem::symlink_status(config_path, ignored))) {
    REPRISE_ASSIGN_OR_RETURN(const json config, ReadConfigFile(config_path));
    REPRISE_RETURN_IF_ERROR(ApplyTokenizerConfig(config, config_path, spec));
  }
  return CreateNaming(path, spec);
}

absl::StatusOr<Tokenizer> Tokenizer::CreateNaming(const std::string& path,
                                                  const TokenizerSpec& spec) {
  absl::StatusOr<Tokenizer> tokenizer = Create(spec);
  if (!tokenizer.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", tokenizer.status().message()));
  }
  return tokenizer;
}

absl::StatusOr<Tokenizer::TokenTable> Tokenizer::MakeTable(const TokenizerSpec& spec) {
  TokenTable table;
  Ids ids;
  // Adds a token, or accepts an added token that is in the vocabulary too.
  const auto add = [&](const std::string& content, int32_t id) -> absl::Status {
    if (id >= static_cast<int>(table.size())) table.resize(id + 1);
    const auto [entry, is_new] = ids.emplace(content, id);
    if (entry->second != id || (is_new && table[id])) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tokens: ", DescribeJson(json(content)), " has the id ", id, ", but ",
          entry->second != id ? absl::StrCat("the id ", entry->second, " as well")
                              : absl::StrCat("so has ", DescribeJson(json(table[id]->content)))));
    }
    if (is_new) table[id] = Token{.content = content};
    return absl::OkStatus();
  };
  for (const auto& [content, id] : spec.model.vocabulary) REPRISE_RETURN_IF_ERROR(add(content, id));
  for (const AddedToken& token : spec.added_tokens) {
    REPRISE_RETURN_IF_ERROR(add(token.content, token.id));
    table[token.id]->is_special = token.is_special;
  }
  for (const std::vector<int32_t>& side : {spec.text_template.prefix, spec.text_template.suffix}) {
    for (const int32_t id : side) {
      if (id >= static_cast<int>(table.size()) || !table[id]) {
        return absl::InvalidArgumentError(
            absl::StrCat("template: there is no token with the id ", id));
      }
    }
  }
  return table;
}

absl::StatusOr<Tokenizer> Tokenizer::Create(const TokenizerSpec& spec) {
  REPRISE_ASSIGN_OR_RETURN(TokenTable tokens, MakeTable(spec));
  REPRISE_ASSIGN_OR_RETURN(AddedTokens added_tokens, MakeAddedTokens(spec, false));
  REPRISE_ASSIGN_OR_RETURN(AddedTokens normalized_tokens, MakeAddedTokens(spec, true));
  REPRISE_ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer, PreTokenizer::Create(spec.pre_tokenizer));
  REPRISE_ASSIGN_OR_RETURN(BytePairEncoder encoder, MakeEncoder(spec.model));
  return Tokenizer(std::move(tokens), std::move(added_tokens), std::move(normalized_tokens),
                   std::move(pre_tokenizer), std::move(encoder), spec);
}

Tokenizer::Tokenizer(TokenTable tokens, AddedTokens added_tokens, AddedTokens normalized_tokens,
                     PreTokenizer pre_tokenizer, BytePairEncoder encoder, const TokenizerSpec& spec)
    : tokens_(std::move(tokens)),
      added_tokens_(std::move(added_tokens)),
      normalized_tokens_(std::move(normalized_tokens)),
      normalizer_(spec.normalizer),
      pre_tokenizer_(std::move(pre_tokenizer)),
      encoder_(std::move(encoder)),
      text_template_(spec.text_template),
      decoder_(spec.decoder) {
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (tokens_[id]) ids_.emplace(tokens_[id]->content, static_cast<int32_t>(id));
  }
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text,
                                                       const EncodeOptions& options) const {
  if (const std::optional<int64_t> offset = FindInvalidUtf8(text)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "text: expected UTF-8, got the byte 0x",
        absl::Hex(static_cast<uint8_t>(text[*offset]), absl::kZeroPad2), " at byte ", *offset));
  }
  std::vector<int32_t> tokens;
  const auto append = [&](const std::vector<int32_t>& more) {
    tokens.insert(tokens.end(), more.begin(), more.end());
  };
  if (options.adds_template) append(text_template_.prefix);
  for (const TextSegment& segment : added_tokens_.Split(text, options.special_tokens)) {
    if (segment.token) {
      tokens.push_back(*segment.token);
      continue;
    }
    const auto place = segment.text.data() == text.data() ? PreTokenizer::Place::kBeginning
                                                          : PreTokenizer::Place::kLater;
    REPRISE_RETURN_IF_ERROR(EncodeSegment(segment.text, place, options.special_tokens, tokens));
  }
  if (options.adds_template) append(text_template_.suffix);
  return tokens;
}

absl::Status Tokenizer::EncodeSegment(std::string_view text, PreTokenizer::Place place,
                                      SpecialTokens special_tokens,
                                      std::vector<int32_t>& tokens) const {
  const std::string normalized = Normalize(normalizer_, text);
  for (const TextSegment& segment : normalized_tokens_.Split(normalized, special_tokens)) {
    if (segment.token) {
      tokens.push_back(*segment.token);
      place = PreTokenizer::Place::kLater;
      continue;
    }
    REPRISE_ASSIGN_OR_RETURN(const PreTokenized pieces, pre_tokenizer_.Run(segment.text, place));
    for (size_t i = 0; i < pieces.ranges.size(); ++i) {
      REPRISE_ASSIGN_OR_RETURN(const std::vector<int32_t> more, encoder_.Encode(pieces.piece(i)));
      tokens.insert(tokens.end(), more.begin(), more.end());
    }
  }
  return absl::OkStatus();
}

std::string Tokenizer::Decode(absl::Span<const int32_t> tokens,
                              SpecialTokenText special_tokens) const {
  std::vector<DecoderStep> steps = decoder_;
  for (DecoderStep& step : steps) {
    if (auto* bytes = std::get_if<ByteTokenStep>(&step)) bytes->runs = ByteTokenStep::kWhole;
  }
  TextDecoder decoder(steps);
  std::string text;
  for (const int32_t token : tokens) {
    if (special_tokens == SpecialTokenText::kSkip && IsSpecial(token)) continue;
    if (const std::optional<std::string_view> content = TokenContent(token)) {
      text += decoder.Push(*content);
    }
  }
  return text + decoder.Finish();
}

std::optional<std::string_view> Tokenizer::TokenContent(int32_t token) const {
  if (token < 0 || token >= vocab_size() || !tokens_[token]) return std::nullopt;
  return tokens_[token]->content;
}

bool Tokenizer::IsSpecial(int32_t token) const {
  return token >= 0 && token < vocab_size() && tokens_[token] && tokens_[token]->is_special;
}

std::optional<int32_t> Tokenizer::FindToken(std::string_view content) const {
  const auto it = ids_.find(absl::string_view(content.data(), content.size()));
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

StreamingDecoder::StreamingDecoder(const Tokenizer& tokenizer, SpecialTokenText special_tokens)
    : tokenizer_(&tokenizer), special_tokens_(special_tokens), decoder_(tokenizer.MakeDecoder()) {}

void StreamingDecoder::Begin(absl::Span<const int32_t> tokens) {
  for (const int32_t token : tokens) Push(token);
  TextDecoder ended = decoder_;
  begun_ = ended.Finish();
}

std::string StreamingDecoder::Push(int32_t token) {
  if (special_tokens_ == SpecialTokenText::kSkip && tokenizer_->IsSpecial(token)) return "";
  const std::optional<std::string_view> content = tokenizer_->TokenContent(token);
  return content.has_value() ? WithoutBegun(decoder_.Push(*content)) : "";
}

std::string StreamingDecoder::Finish() {
  std::string text = WithoutBegun(decoder_.Finish());
  begun_.clear();
  return text;
}

std::string StreamingDecoder::WithoutBegun(std::string text) {
  if (begun_.empty() || text.empty()) return text;
  if (text.starts_with(begun_)) text.erase(0, begun_.size());
  begun_.clear();
  return text;
}

}  // namespace reprise
