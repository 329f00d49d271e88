#include "reprise/hf/tokenizer/pattern_syntax.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

constexpr int kMaxClassDepth = 16;

// One side of && in a class, or a whole class without &&: the union of its members.
struct ClassSide {
  std::string items = {};  // characters, ranges and escapes, as between [ and ]
  // Expressions that match one character each, for inner classes that items cannot express.
  std::vector<std::string> others = {};
  bool is_behind_class = false;  // whether the last member is an inner class

  bool is_empty() const { return items.empty() && others.empty(); }
};

// A class: the intersection of its sides, or the complement of that.
struct ClassParts {
  bool is_negated = false;
  std::vector<ClassSide> sides = {};
};

// An expression that matches one character of `side`. The group is atomic: a character that two
// members contain must not be tried twice.
std::string ExpressionOf(const ClassSide& side) {
  const std::string items = side.items.empty() ? "" : absl::StrCat("[", side.items, "]");
  if (side.others.empty()) return items;
  return absl::StrCat("(?>", items, items.empty() ? "" : "|", absl::StrJoin(side.others, "|"), ")");
}

// An expression that matches one character of the class.
std::string ExpressionOf(const ClassParts& parts) {
  const ClassSide& last = parts.sides.back();
  if (parts.sides.size() == 1 && last.others.empty()) {
    return absl::StrCat(parts.is_negated ? "[^" : "[", last.items, "]");
  }
  std::string positive;
  for (const ClassSide& side : parts.sides) {
    const std::string expression = ExpressionOf(side);
    absl::StrAppend(&positive, &side == &last ? expression : absl::StrCat("(?=", expression, ")"));
  }
  if (parts.is_negated) return absl::StrCat("(?:(?!", positive, ")(?s:.))");
  return parts.sides.size() == 1 ? positive : absl::StrCat("(?:", positive, ")");
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : rest_(pattern), size_(pattern.size()) {}

  absl::StatusOr<std::string> Run() {
    while (!rest_.empty()) {
      switch (rest_[0]) {
        case '\\':
          REPRISE_RETURN_IF_ERROR(Escape(result_));
          break;
        case '[':
          REPRISE_RETURN_IF_ERROR(Class());
          break;
        case '(':
          REPRISE_RETURN_IF_ERROR(Group());
          break;
        case '{':
          REPRISE_RETURN_IF_ERROR(Repetition());
          break;
        case ')':
          if (!groups_.empty()) groups_.pop_back();
          Copy(1);
          break;
        default:
          Copy(1);
      }
    }
    return result_;
  }

 private:
  bool StartsWith(std::string_view prefix) const {
    return rest_.substr(0, prefix.size()) == prefix;
  }

  void Copy(size_t length) {
    result_ += rest_.substr(0, length);
    rest_.remove_prefix(length);
  }

  absl::Status Refuse(std::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(what), " at byte ", size_ - rest_.size(), " is not supported"));
  }

  // Appends the escape that `rest_` begins with to `out`.
  absl::Status Escape(std::string& out) {
    const char c = rest_.size() > 1 ? rest_[1] : '\0';
    size_t length = 2;
    if (c == 's' || c == 'S') {
      out += c == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
    } else if (c == 'd' || c == 'D') {
      out += c == 'd' ? "\\p{Nd}" : "\\P{Nd}";
    } else if (c == 'p' || c == 'P' || c == 'x') {
      const size_t end = rest_.find('}');
      if (!StartsWith(std::string{'\\', c, '{'}) || end == std::string_view::npos) {
        return Refuse(absl::StrCat("\\", std::string(1, c), " without braces"));
      }
      if (c != 'x' && is_caseless()) {
        return Refuse(absl::StrCat("\\", std::string(1, c), " within (?i:)"));
      }
      length = end + 1;
      out += rest_.substr(0, length);
    } else if (c == 'r' || c == 'n' || c == 't' || absl::ascii_ispunct(c)) {
      out += rest_.substr(0, length);
    } else {
      // \w, \b, \h, \v, \R, \X, \K, \G, \1, ...: other meanings or reaches in PCRE2.
      return Refuse(absl::ascii_isgraph(c) ? absl::StrCat("\\", std::string(1, c)) : "an escape");
    }
    rest_.remove_prefix(length);
    return absl::OkStatus();
  }

  // Appends the expression of the class that `rest_` begins with.
  absl::Status Class() {
    REPRISE_ASSIGN_OR_RETURN(const ClassParts parts, ReadClass(1));
    result_ += ExpressionOf(parts);
    return absl::OkStatus();
  }

  // Reads the class that `rest_` begins with. `depth`: 1 for a class that is in no other.
  absl::StatusOr<ClassParts> ReadClass(int depth) {
    if (depth > kMaxClassDepth) {
      return Refuse(absl::StrCat("more than ", kMaxClassDepth, " classes within each other"));
    }
    ClassParts parts;
    parts.is_negated = StartsWith("[^");
    rest_.remove_prefix(parts.is_negated ? 2 : 1);
    if (StartsWith("]")) return Refuse("a class that begins with ]");
    parts.sides.emplace_back();
    while (!rest_.empty() && rest_[0] != ']') {
      ClassSide& side = parts.sides.back();
      if (StartsWith("&&")) {
        if (is_caseless()) return Refuse("an intersection of classes within (?i:)");
        if (side.is_empty()) return Refuse("&& with nothing before");
        rest_.remove_prefix(2);
        parts.sides.emplace_back();
      } else if (rest_[0] == '[') {
        REPRISE_RETURN_IF_ERROR(ReadInnerClass(depth, side));
      } else {
        REPRISE_RETURN_IF_ERROR(ReadClassItem(side));
      }
    }
    if (rest_.empty()) return Refuse("a class without end");
    if (parts.sides.back().is_empty()) return Refuse("&& with nothing after");
    rest_.remove_prefix(1);
    return parts;
  }

  // Adds the class within a class that `rest_` begins with to `side`: their union.
  absl::Status ReadInnerClass(int depth, ClassSide& side) {
    if (StartsWith("[:")) return Refuse("a class of POSIX");
    const std::string_view begin = rest_;
    REPRISE_ASSIGN_OR_RETURN(const ClassParts inner, ReadClass(depth + 1));
    if (!inner.is_negated && inner.sides.size() == 1) {
      const ClassSide& part = inner.sides.front();
      side.items += part.items;
      side.others.insert(side.others.end(), part.others.begin(), part.others.end());
    } else if (is_caseless()) {
      // Oniguruma ignores case after it has complemented the inner class, PCRE2 before.
      rest_ = begin;
      return Refuse("a negated class within a class within (?i:)");
    } else {
      side.others.push_back(ExpressionOf(inner));
    }
    side.is_behind_class = true;
    return absl::OkStatus();
  }

  // Adds a character, an escape or a part of a range to `side`.
  absl::Status ReadClassItem(ClassSide& side) {
    const bool is_behind_class = std::exchange(side.is_behind_class, false);
    if (rest_[0] == '\\') return Escape(side.items);
    if (rest_[0] == '-') {
      // Escapes a hyphen that is in no range: the items of an inner class may follow.
      if (side.is_empty() || is_behind_class || StartsWith("-]")) {
        side.items += "\\-";
        rest_.remove_prefix(1);
        return absl::OkStatus();
      }
      if (StartsWith("-[") || StartsWith("-&&")) return Refuse("- before [ or && in a class");
    }
    // Items of an inner class may come to stand at the beginning, where these have a meaning.
    constexpr std::string_view kSpecialAtBegin = "^.:=";
    if (side.items.empty() && kSpecialAtBegin.find(rest_[0]) != std::string_view::npos) {
      side.items += '\\';
    }
    side.items += rest_[0];
    rest_.remove_prefix(1);
    return absl::OkStatus();
  }

  absl::Status Group() {
    if (StartsWith("(*")) return Refuse("(*");
    if (StartsWith("(?")) {
      constexpr std::array<std::string_view, 7> kKnown = {"(?:",  "(?i:", "(?=", "(?!",
                                                          "(?<=", "(?<!", "(?>"};
      const auto known = std::find_if(kKnown.begin(), kKnown.end(),
                                      [&](std::string_view prefix) { return StartsWith(prefix); });
      if (known == kKnown.end()) return Refuse("a (? of this kind");
      groups_.push_back(is_caseless() || *known == "(?i:");
      Copy(known->size());
    } else {
      groups_.push_back(is_caseless());
      Copy(1);
    }
    return absl::OkStatus();
  }

  // {n}, {n,} or {n,m}. Behind them ? and + mean something else in Oniguruma than behind *.
  absl::Status Repetition() {
    const size_t end = rest_.find('}');
    if (end == std::string_view::npos || !IsRepetition(rest_.substr(1, end - 1))) {
      return Refuse("{ that is no {n}, {n,} or {n,m}");
    }
    Copy(end + 1);
    if (StartsWith("+") || StartsWith("?")) return Refuse("+ or ? behind {}");
    return absl::OkStatus();
  }

  static bool IsRepetition(std::string_view text) {
    const size_t comma = std::min(text.find(','), text.size());
    const auto is_number = [](std::string_view t) {
      return std::all_of(t.begin(), t.end(), [](char c) { return absl::ascii_isdigit(c); });
    };
    return comma > 0 && is_number(text.substr(0, comma)) &&
           (comma == text.size() || is_number(text.substr(comma + 1)));
  }

  bool is_caseless() const { return !groups_.empty() && groups_.back(); }

  std::string_view rest_;
  const size_t size_;
  std::string result_;
  std::vector<bool> groups_;  // the open groups: whether each ignores case
};

}  // namespace

absl::StatusOr<std::string> ToPcre2Syntax(std::string_view pattern) {
  return Translator(pattern).Run();
}

}  // namespace reprise
