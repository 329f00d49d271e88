#include "examples/tokenizer/unicode_composition.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "examples/tokenizer/composition_tables.h"
#include "examples/tokenizer/utf8.h"

namespace reprise {
namespace {

// Characters below it have one form only, and belong to nothing that stands before.
constexpr char32_t kFirstToDecompose = 0xC0;

// Syllables of Hangul are numbered by their leading consonant, vowel and trailing consonant.
constexpr char32_t kSyllableBase = 0xAC00;
constexpr char32_t kLeadBase = 0x1100;
constexpr char32_t kVowelBase = 0x1161;
constexpr char32_t kTrailBase = 0x11A7;  // stands for none
constexpr char32_t kNumLeads = 19;
constexpr char32_t kNumVowels = 21;
constexpr char32_t kNumTrails = 28;
constexpr char32_t kNumSyllables = kNumLeads * kNumVowels * kNumTrails;

struct Character {
  char32_t code_point = 0;
  int combining_class = 0;
};

int CombiningClass(char32_t code_point) {
  const CombiningRange* const end = kCombining + kNumCombining;
  const CombiningRange* const range = std::partition_point(
      kCombining, end,
      [&](const CombiningRange& candidate) { return candidate.last < code_point; });
  return range != end && range->first <= code_point ? range->combining_class : 0;
}

const Decomposition* FindDecomposition(char32_t code_point) {
  for (const auto& table :
       {absl::MakeConstSpan(kPairs, kNumPairs), absl::MakeConstSpan(kOneWay, kNumOneWay)}) {
    const auto found = std::partition_point(
        table.begin(), table.end(),
        [&](const Decomposition& candidate) { return candidate.character < code_point; });
    if (found != table.end() && found->character == code_point) return &*found;
  }
  return nullptr;
}

void AppendDecomposed(char32_t code_point, std::vector<Character>& characters) {
  if (code_point >= kSyllableBase && code_point < kSyllableBase + kNumSyllables) {
    const char32_t index = code_point - kSyllableBase;
    characters.push_back({kLeadBase + index / (kNumVowels * kNumTrails)});
    characters.push_back({kVowelBase + index / kNumTrails % kNumVowels});
    if (index % kNumTrails != 0) characters.push_back({kTrailBase + index % kNumTrails});
    return;
  }
  if (const Decomposition* const found = FindDecomposition(code_point)) {
    AppendDecomposed(found->first, characters);  // no deeper than four
    if (found->second != 0) AppendDecomposed(found->second, characters);
    return;
  }
  characters.push_back({code_point, CombiningClass(code_point)});
}

// Marks that follow a starter stand in the order of their classes, else in that of the text.
void Reorder(std::vector<Character>& characters) {
  auto begin = characters.begin();
  while (begin != characters.end()) {
    const auto is_starter = [](const Character& c) { return c.combining_class == 0; };
    begin = std::find_if_not(begin, characters.end(), is_starter);
    const auto end = std::find_if(begin, characters.end(), is_starter);
    std::stable_sort(begin, end, [](const Character& a, const Character& b) {
      return a.combining_class < b.combining_class;
    });
    begin = end;
  }
}

std::optional<char32_t> Composed(char32_t first, char32_t second) {
  if (first >= kLeadBase && first < kLeadBase + kNumLeads && second >= kVowelBase &&
      second < kVowelBase + kNumVowels) {
    return kSyllableBase + ((first - kLeadBase) * kNumVowels + second - kVowelBase) * kNumTrails;
  }
  if (first >= kSyllableBase && first < kSyllableBase + kNumSyllables &&
      (first - kSyllableBase) % kNumTrails == 0 && second > kTrailBase &&
      second < kTrailBase + kNumTrails) {
    return first + second - kTrailBase;
  }
  using Pairs = absl::flat_hash_map<std::pair<uint32_t, uint32_t>, char32_t>;
  static const Pairs& pairs = *[] {
    auto* made = new Pairs;
    for (const Decomposition& pair : absl::MakeConstSpan(kPairs, kNumPairs)) {
      made->emplace(std::pair(pair.first, pair.second), pair.character);
    }
    return made;
  }();
  const auto found = pairs.find(std::pair<uint32_t, uint32_t>(first, second));
  if (found == pairs.end()) return std::nullopt;
  return found->second;
}

// Each character goes into the last starter before it if they compose and nothing of its class or a
// higher one stands between them.
void Compose(std::vector<Character>& characters) {
  std::vector<Character> result;
  std::optional<size_t> starter;  // its index in the result
  for (const Character& character : characters) {
    if (starter) {
      const int between = *starter + 1 == result.size() ? -1 : result.back().combining_class;
      if (between < character.combining_class) {
        Character& into = result[*starter];
        if (const auto composed = Composed(into.code_point, character.code_point)) {
          into.code_point = *composed;
          continue;
        }
      }
    }
    if (character.combining_class == 0) starter = result.size();
    result.push_back(character);
  }
  characters = std::move(result);
}

}  // namespace

std::string ComposeCanonically(std::string_view text) {
  std::string result;
  std::vector<Character> characters;
  // Appends `characters`, which no character of what follows belongs to.
  const auto flush = [&] {
    Reorder(characters);
    Compose(characters);
    for (const Character& character : characters) AppendUtf8(character.code_point, result);
    characters.clear();
  };
  while (!text.empty()) {
    const Utf8Unit unit = FirstUtf8Unit(text);
    if (unit.code_point < kFirstToDecompose) {
      flush();
      characters.push_back({unit.code_point});
    } else {
      AppendDecomposed(unit.code_point, characters);
    }
    text.remove_prefix(unit.length);
  }
  flush();
  return result;
}

}  // namespace reprise
