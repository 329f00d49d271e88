#include "reprise/hf/tokenizer/text_normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "glog/logging.h"
#include "reprise/hf/utf8.h"

namespace reprise {
namespace {

// Characters below it have one form only, and compose with nothing before them.
constexpr char32_t kFirstToCompose = 0xC0;

// A vowel that utf8proc up to 2.8 takes for the absence of a trailing consonant of Hangul, and
// drops.
constexpr char32_t kNoTrail = 0x11A7;

int CombiningClass(utf8proc_int32_t character) {
  return utf8proc_get_property(character)->combining_class;
}

// Marks that follow a starter are put into the order of their classes. utf8proc does so too, in
// quadratic time, which a hostile text must not take.
void Reorder(std::vector<utf8proc_int32_t>& characters) {
  const auto is_starter = [](utf8proc_int32_t c) { return CombiningClass(c) == 0; };
  auto begin = characters.begin();
  while (begin != characters.end()) {
    begin = std::find_if_not(begin, characters.end(), is_starter);
    const auto end = std::find_if(begin, characters.end(), is_starter);
    std::stable_sort(begin, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return CombiningClass(a) < CombiningClass(b);
    });
    begin = end;
  }
}

std::string ComposeCanonically(std::string_view text) {
  std::string result;
  std::vector<utf8proc_int32_t> characters;  // taken apart; no later one belongs to them
  const auto flush = [&] {
    Reorder(characters);
    const auto count = static_cast<utf8proc_ssize_t>(characters.size());
    characters.push_back(0);  // utf8proc writes a terminator behind the bytes
    const utf8proc_ssize_t num_bytes =
        utf8proc_reencode(characters.data(), count,
                          static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    CHECK_GE(num_bytes, 0) << utf8proc_errmsg(num_bytes);
    result.append(reinterpret_cast<const char*>(characters.data()), num_bytes);
    characters.clear();
  };
  while (!text.empty()) {
    const Utf8Unit unit = FirstUtf8Unit(text);
    text.remove_prefix(unit.length);
    if (unit.code_point < kFirstToCompose || unit.code_point == kNoTrail) flush();
    std::array<utf8proc_int32_t, 8> parts;  // no character has more than four
    int ignored = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        static_cast<utf8proc_int32_t>(unit.code_point), parts.data(), parts.size(),
        static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), &ignored);
    CHECK(count >= 0 && count <= static_cast<utf8proc_ssize_t>(parts.size())) << count;
    characters.insert(characters.end(), parts.begin(), parts.begin() + count);
  }
  flush();
  return result;
}

std::string Apply(const PrependStep& step, std::string text) {
  return text.empty() ? text : step.text + text;
}

std::string Apply(const ReplaceStep& step, std::string text) { return Replaced(text, step); }

std::string Apply(const ComposeStep&, std::string text) { return ComposeCanonically(text); }

}  // namespace

std::string Normalize(absl::Span<const NormalizerStep> steps, std::string_view text) {
  std::string result(text);
  for (const NormalizerStep& step : steps) {
    result = std::visit([&](const auto& s) { return Apply(s, std::move(result)); }, step);
  }
  return result;
}

std::string Replaced(std::string_view text, const ReplaceStep& step) {
  std::string result;
  size_t done = 0;
  for (size_t at = text.find(step.what); at != std::string_view::npos;
       at = text.find(step.what, done)) {
    result += text.substr(done, at - done);
    result += step.by;
    done = at + step.what.size();
  }
  result += text.substr(done);
  return result;
}

}  // namespace reprise
