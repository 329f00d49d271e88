#include "reprise/hf/tokenizer/split_pattern.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"
#include "reprise/hf/tokenizer/pattern_syntax.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace reprise {
namespace {

constexpr size_t kMaxPatternBytes = 16384;
constexpr uint32_t kMatchLimit = 10'000'000;              // PCRE2's default
constexpr uint32_t kHeapLimitKb = 64 * 1024;              // of the interpreter
constexpr size_t kJitStackBytes[] = {32 << 10, 8 << 20};  // first and last

template <auto kFree>
struct Freer {
  template <typename T>
  void operator()(T* pointer) const {
    kFree(pointer);
  }
};
using CompileContext = std::unique_ptr<pcre2_compile_context, Freer<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Freer<pcre2_jit_stack_free>>;

std::string ErrorText(int error) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(error, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

absl::Status Refusal(const std::string& message) {
  return absl::InvalidArgumentError(absl::StrCat("split pattern: ", message));
}

absl::Status CheckSize(std::string_view pattern) {
  if (pattern.size() <= kMaxPatternBytes) return absl::OkStatus();
  return Refusal(
      absl::StrCat("expected at most ", kMaxPatternBytes, " bytes, got ", pattern.size()));
}

// The state of one call of Split(), apart from the compiled pattern.
class Matcher {
 public:
  Matcher(const pcre2_code* code, std::string_view text)
      : code_(code),
        text_(text),
        data_(pcre2_match_data_create_from_pattern(code, nullptr)),
        context_(pcre2_match_context_create(nullptr)) {
    pcre2_set_match_limit(context_.get(), kMatchLimit);
    pcre2_set_heap_limit(context_.get(), kHeapLimitKb);
  }

  // Searches from `begin`: 1 if found, else an error of PCRE2, of which PCRE2_ERROR_NOMATCH is an
  // ordinary one.
  int Search(size_t begin) {
    int result = Match(begin, PCRE2_NO_UTF_CHECK);
    // The compiled form has 32 KB of the thread's stack, which sound patterns on short pieces do
    // with. A stack of its own is not made before it is needed, as pieces may be a few bytes.
    if (result == PCRE2_ERROR_JIT_STACKLIMIT && stack_ == nullptr) {
      stack_.reset(pcre2_jit_stack_create(kJitStackBytes[0], kJitStackBytes[1], nullptr));
      pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
      result = Match(begin, PCRE2_NO_UTF_CHECK);
    }
    // The interpreter keeps its state on the heap and goes deeper than the compiled form.
    if (result != PCRE2_ERROR_JIT_STACKLIMIT) return result;
    return Match(begin, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT);
  }

  size_t match_begin() const { return pcre2_get_ovector_pointer(data_.get())[0]; }
  size_t match_end() const { return pcre2_get_ovector_pointer(data_.get())[1]; }

 private:
  int Match(size_t begin, uint32_t options) {
    const int result = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(),
                                   begin, options, data_.get(), context_.get());
    return result > 0 ? 1 : result;
  }

  const pcre2_code* const code_;
  const std::string_view text_;
  const MatchData data_;
  const MatchContext context_;
  JitStack stack_;
};

// Whether a part goes to the piece that the part before it ended.
bool JoinsPrevious(const TextPart& previous, const TextPart& part, SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::kIsolated:
    case SplitBehavior::kRemoved:
      return false;
    case SplitBehavior::kMergedWithPrevious:
      return part.is_match && !previous.is_match;
    case SplitBehavior::kMergedWithNext:
      return previous.is_match && !part.is_match;
    case SplitBehavior::kContiguous:
      return previous.is_match == part.is_match;
  }
  return false;
}

}  // namespace

void SplitPattern::FreeCode::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

SplitPattern::SplitPattern(Code code) : code_(std::move(code)) {}

absl::StatusOr<SplitPattern> SplitPattern::Compile(std::string_view pattern) {
  REPRISE_RETURN_IF_ERROR(CheckSize(pattern));
  const absl::StatusOr<std::string> translated = ToPcre2Syntax(pattern);
  if (!translated.ok()) return Refusal(std::string(translated.status().message()));
  return CompileAs(*translated, PCRE2_MULTILINE);
}

absl::StatusOr<SplitPattern> SplitPattern::Literal(std::string_view text) {
  REPRISE_RETURN_IF_ERROR(CheckSize(text));
  return CompileAs(text, PCRE2_LITERAL);
}

absl::StatusOr<SplitPattern> SplitPattern::CompileAs(std::string_view pattern, uint32_t options) {
  const CompileContext context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                          PCRE2_UTF | options, &error, &error_offset, context.get()));
  if (code == nullptr) return Refusal(ErrorText(error));
  uint32_t may_match_empty = 0;
  pcre2_pattern_info(code.get(), PCRE2_INFO_MATCHEMPTY, &may_match_empty);
  if (may_match_empty != 0) return Refusal("it may match nothing at all");
  // If PCRE2 has no compiler for this machine, its interpreter matches.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return SplitPattern(std::move(code));
}

absl::StatusOr<std::vector<TextPart>> SplitPattern::Split(std::string_view text) const {
  std::vector<TextPart> parts;
  if (text.empty()) return parts;
  Matcher matcher(code_.get(), text);
  size_t end = 0;  // of the last part
  while (end < text.size()) {
    const int result = matcher.Search(end);
    if (result == PCRE2_ERROR_NOMATCH) {
      parts.push_back({text.substr(end)});
      break;
    }
    if (result < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "split pattern: cannot split the text at byte ", end, ": ", ErrorText(result)));
    }
    if (matcher.match_begin() > end) {
      parts.push_back({text.substr(end, matcher.match_begin() - end)});
    }
    parts.push_back(
        {text.substr(matcher.match_begin(), matcher.match_end() - matcher.match_begin()), true});
    end = matcher.match_end();
  }
  return parts;
}

std::vector<std::string_view> Pieces(absl::Span<const TextPart> parts, SplitBehavior behavior) {
  std::vector<std::string_view> pieces;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string_view text = parts[i].text;
    if (behavior == SplitBehavior::kRemoved && parts[i].is_match) continue;
    if (i > 0 && JoinsPrevious(parts[i - 1], parts[i], behavior)) {
      pieces.back() = {pieces.back().data(), pieces.back().size() + text.size()};
    } else {
      pieces.push_back(text);
    }
  }
  return pieces;
}

}  // namespace reprise
