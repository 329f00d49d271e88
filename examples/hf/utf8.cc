#include "reprise/hf/utf8.h"

#include <algorithm>

namespace reprise {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// What may follow a leading byte: the length of the character and the range of its second byte.
// Only the second byte's range depends on the first; later ones are 0x80..0xBF.
struct Lead {
  int length = 0;  // 0: no character starts with this byte
  uint8_t second_min = 0x80;
  uint8_t second_max = 0xBF;
};

Lead LeadOf(uint8_t byte) {
  if (byte < 0x80) return {.length = 1};
  if (byte < 0xC2) return {};  // a continuation, or a longer form of ASCII
  if (byte < 0xE0) return {.length = 2};
  if (byte == 0xE0) return {.length = 3, .second_min = 0xA0};  // shorter forms exist below U+0800
  if (byte == 0xED) return {.length = 3, .second_max = 0x9F};  // surrogates
  if (byte < 0xF0) return {.length = 3};
  if (byte == 0xF0) return {.length = 4, .second_min = 0x90};  // shorter forms exist below U+10000
  if (byte < 0xF4) return {.length = 4};
  if (byte == 0xF4) return {.length = 4, .second_max = 0x8F};  // the last is U+10FFFF
  return {};
}

}  // namespace

Utf8Unit FirstUtf8Unit(std::string_view text) {
  const auto byte_at = [&](int i) { return static_cast<uint8_t>(text[i]); };
  const Lead lead = LeadOf(byte_at(0));
  if (lead.length == 0) return {.kind = Utf8Kind::kInvalid, .length = 1};
  if (lead.length == 1) {
    return {.kind = Utf8Kind::kCharacter, .length = 1, .code_point = byte_at(0)};
  }
  // 5, 4 or 3 payload bits in the first byte of 2, 3 or 4.
  char32_t code_point = byte_at(0) & (0xFF >> (lead.length + 1));
  for (int i = 1; i < lead.length; ++i) {
    if (i == static_cast<int>(text.size())) return {.kind = Utf8Kind::kTruncated, .length = i};
    const uint8_t min = i == 1 ? lead.second_min : 0x80;
    const uint8_t max = i == 1 ? lead.second_max : 0xBF;
    if (byte_at(i) < min || byte_at(i) > max) return {.kind = Utf8Kind::kInvalid, .length = i};
    code_point = code_point << 6 | (byte_at(i) & 0x3F);
  }
  return {.kind = Utf8Kind::kCharacter, .length = lead.length, .code_point = code_point};
}

std::optional<int64_t> FindInvalidUtf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Unit unit = FirstUtf8Unit(text.substr(at));
    if (unit.kind != Utf8Kind::kCharacter) return static_cast<int64_t>(at);
    at += unit.length;
  }
  return std::nullopt;
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Utf8Unit unit = FirstUtf8Unit(text);
    result += unit.kind == Utf8Kind::kCharacter ? text.substr(0, unit.length) : kReplacement;
    text.remove_prefix(unit.length);
  }
  return result;
}

int64_t SettledUtf8Prefix(std::string_view text) {
  // An incomplete character is at most 3 bytes, and no byte within it can start another unit: the
  // first byte that a truncated unit starts at is where the text is cut.
  for (size_t at = text.size() - std::min<size_t>(text.size(), 3); at < text.size(); ++at) {
    if (FirstUtf8Unit(text.substr(at)).kind == Utf8Kind::kTruncated)
      return static_cast<int64_t>(at);
  }
  return static_cast<int64_t>(text.size());
}

void AppendUtf8(char32_t code_point, std::string& text) {
  const auto append = [&](uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  const auto tail = [&](int shift) { append(0x80 | (code_point >> shift & 0x3F)); };
  if (code_point < 0x80) {
    append(code_point);
  } else if (code_point < 0x800) {
    append(0xC0 | code_point >> 6);
    tail(0);
  } else if (code_point < 0x10000) {
    append(0xE0 | code_point >> 12);
    tail(6);
    tail(0);
  } else {
    append(0xF0 | code_point >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace reprise
