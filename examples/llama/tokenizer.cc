#include "examples/llama/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "examples/llama/byte_level.h"
#include "examples/llama/strict_json.h"
#include "examples/llama/utf8.h"

namespace reprise {
namespace {

using nlohmann::json;

// The tokens that BPE can make. One with a character outside the alphabet is no sequence of bytes:
// it is only found as an added token.
ByteVocabulary MakeByteVocabulary(const TokenizerSpec& spec) {
  ByteVocabulary vocabulary;
  vocabulary.reserve(spec.vocabulary.size());
  for (const auto& [content, id] : spec.vocabulary) {
    if (std::optional<std::string> bytes = BytesFromLevel(content)) {
      vocabulary.emplace(*std::move(bytes), id);
    }
  }
  return vocabulary;
}

absl::StatusOr<std::vector<Merge>> MakeByteMerges(const TokenizerSpec& spec) {
  std::vector<Merge> merges;
  merges.reserve(spec.merges.size());
  for (const auto& [left, right] : spec.merges) {
    std::optional<std::string> left_bytes = BytesFromLevel(left);
    std::optional<std::string> right_bytes = BytesFromLevel(right);
    if (!left_bytes || !right_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("merges: number ", merges.size(), ": expected the byte-level alphabet, got ",
                       DescribeJson(json(left)), " and ", DescribeJson(json(right))));
    }
    merges.emplace_back(*std::move(left_bytes), *std::move(right_bytes));
  }
  return merges;
}

}  // namespace

absl::StatusOr<Tokenizer> Tokenizer::Load(const std::string& path) {
  REPRISE_ASSIGN_OR_RETURN(const json value, ReadJsonFile(path));
  REPRISE_ASSIGN_OR_RETURN(const TokenizerSpec spec, ParseTokenizerJson(value, path));
  absl::StatusOr<Tokenizer> tokenizer = Create(spec);
  if (!tokenizer.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", tokenizer.status().message()));
  }
  return tokenizer;
}

absl::StatusOr<Tokenizer::TokenTable> Tokenizer::MakeTable(const TokenizerSpec& spec) {
  TokenTable table;
  Ids ids;
  // Adds a token, or lets an added one stand for itself in the vocabulary.
  const auto add = [&](const std::string& content, int32_t id) -> absl::Status {
    if (id >= static_cast<int>(table.size())) table.resize(id + 1);
    const auto [entry, is_new] = ids.emplace(content, id);
    if (entry->second != id || (is_new && table[id])) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tokens: ", DescribeJson(json(content)), " has the id ", id, ", but ",
          entry->second != id ? absl::StrCat("the id ", entry->second, " as well")
                              : absl::StrCat("so has ", DescribeJson(json(table[id]->content)))));
    }
    if (is_new)
      table[id] = Token{.content = content, .bytes = BytesFromLevel(content).value_or(content)};
    return absl::OkStatus();
  };
  for (const auto& [content, id] : spec.vocabulary) REPRISE_RETURN_IF_ERROR(add(content, id));
  for (const AddedToken& token : spec.added_tokens) {
    REPRISE_RETURN_IF_ERROR(add(token.content, token.id));
    table[token.id]->is_special = token.is_special;
  }
  for (const std::vector<int32_t>& side : {spec.prefix, spec.suffix}) {
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
  REPRISE_ASSIGN_OR_RETURN(AddedTokens added_tokens, AddedTokens::Create(spec.added_tokens));
  REPRISE_ASSIGN_OR_RETURN(SplitPattern pattern, SplitPattern::Compile(spec.split_pattern));
  REPRISE_ASSIGN_OR_RETURN(const std::vector<Merge> merges, MakeByteMerges(spec));
  REPRISE_ASSIGN_OR_RETURN(
      BytePairEncoder encoder,
      BytePairEncoder::Create(MakeByteVocabulary(spec), merges, spec.whole_pieces));
  return Tokenizer(std::move(tokens), std::move(added_tokens), std::move(pattern),
                   std::move(encoder), spec.prefix, spec.suffix);
}

Tokenizer::Tokenizer(TokenTable tokens, AddedTokens added_tokens, SplitPattern pattern,
                     BytePairEncoder encoder, std::vector<int32_t> prefix,
                     std::vector<int32_t> suffix)
    : tokens_(std::move(tokens)),
      added_tokens_(std::move(added_tokens)),
      pattern_(std::move(pattern)),
      encoder_(std::move(encoder)),
      prefix_(std::move(prefix)),
      suffix_(std::move(suffix)) {
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
  if (options.adds_template) append(prefix_);
  for (const TextSegment& segment : added_tokens_.Split(text, options.special_tokens)) {
    if (segment.token) {
      tokens.push_back(*segment.token);
      continue;
    }
    REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string_view> pieces,
                             pattern_.Split(segment.text));
    for (const std::string_view piece : pieces) {
      REPRISE_ASSIGN_OR_RETURN(const std::vector<int32_t> piece_tokens, encoder_.Encode(piece));
      append(piece_tokens);
    }
  }
  if (options.adds_template) append(suffix_);
  return tokens;
}

std::string Tokenizer::Decode(absl::Span<const int32_t> tokens,
                              SpecialTokenText special_tokens) const {
  std::string bytes;
  for (const int32_t token : tokens) {
    if (special_tokens == SpecialTokenText::kSkip && IsSpecial(token)) continue;
    bytes += TokenBytes(token).value_or(std::string_view());
  }
  return ReplaceInvalidUtf8(bytes);
}

std::optional<std::string_view> Tokenizer::TokenBytes(int32_t token) const {
  if (token < 0 || token >= vocab_size() || !tokens_[token]) return std::nullopt;
  return tokens_[token]->bytes;
}

bool Tokenizer::IsSpecial(int32_t token) const {
  return token >= 0 && token < vocab_size() && tokens_[token] && tokens_[token]->is_special;
}

std::optional<int32_t> Tokenizer::FindToken(std::string_view content) const {
  const auto it = ids_.find(absl::string_view(content.data(), content.size()));
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

}  // namespace reprise
