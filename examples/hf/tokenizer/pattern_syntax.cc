#include "reprise/hf/tokenizer/pattern_syntax.h"

#include <algorithm>
#include <array>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

class Translator {
 public:
  explicit Translator(std::string_view pattern) : rest_(pattern), size_(pattern.size()) {}

  absl::StatusOr<std::string> Run() {
    while (!rest_.empty()) {
      switch (rest_[0]) {
        case '\\':
          REPRISE_RETURN_IF_ERROR(Escape());
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

  void Replace(size_t length, std::string_view by) {
    result_ += by;
    rest_.remove_prefix(length);
  }

  absl::Status Refuse(std::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(what), " at byte ", size_ - rest_.size(), " is not supported"));
  }

  absl::Status Escape() {
    const char c = rest_.size() > 1 ? rest_[1] : '\0';
    if (c == 's' || c == 'S') {
      Replace(2, c == 's' ? "\\p{White_Space}" : "\\P{White_Space}");
    } else if (c == 'd' || c == 'D') {
      Replace(2, c == 'd' ? "\\p{Nd}" : "\\P{Nd}");
    } else if (c == 'p' || c == 'P' || c == 'x') {
      const size_t end = rest_.find('}');
      if (!StartsWith(std::string{'\\', c, '{'}) || end == std::string_view::npos) {
        return Refuse(absl::StrCat("\\", std::string(1, c), " without braces"));
      }
      Copy(end + 1);
    } else if (c == 'r' || c == 'n' || c == 't' || absl::ascii_ispunct(c)) {
      Copy(2);
    } else {
      // \w, \b, \h, \v, \R, \X, \K, \G, \1, ...: other meanings or reaches in PCRE2.
      return Refuse(absl::ascii_isgraph(c) ? absl::StrCat("\\", std::string(1, c)) : "an escape");
    }
    return absl::OkStatus();
  }

  absl::Status Class() {
    Copy(StartsWith("[^") ? 2 : 1);
    if (StartsWith("]")) return Refuse("a class that begins with ]");
    while (!rest_.empty() && rest_[0] != ']') {
      if (rest_[0] == '[') return Refuse("a class within a class");
      if (StartsWith("&&")) return Refuse("an intersection of classes");
      if (rest_[0] == '\\') {
        REPRISE_RETURN_IF_ERROR(Escape());
      } else {
        Copy(1);
      }
    }
    if (rest_.empty()) return Refuse("a class without end");
    Copy(1);
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
      Copy(known->size());
    } else {
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

  std::string_view rest_;
  const size_t size_;
  std::string result_;
};

}  // namespace

absl::StatusOr<std::string> ToPcre2Syntax(std::string_view pattern) {
  return Translator(pattern).Run();
}

}  // namespace reprise
