#include "examples/tokenizer/text_normalizer.h"

#include "examples/tokenizer/unicode_composition.h"

namespace reprise {
namespace {

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
