// Any first line as a pattern, and what follows as a text to split: the pieces together are the
// text.

#include <glog/logging.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "reprise/hf/tokenizer/split_pattern.h"
#include "reprise/hf/utf8.h"

namespace reprise {
namespace {

// A hostile pattern may take its full number of steps at each character of a text.
constexpr size_t kMaxTextBytes = 64;

void Run(std::string_view input) {
  const size_t line = std::min(input.find('\n'), input.size());
  const std::string_view pattern = input.substr(0, line);
  const std::string_view text = input.substr(std::min(line + 1, input.size()));
  if (text.size() > kMaxTextBytes || FindInvalidUtf8(input)) return;
  const absl::StatusOr<SplitPattern> compiled = SplitPattern::Compile(pattern);
  if (!compiled.ok()) return;
  const absl::StatusOr<std::vector<TextPart>> parts = compiled->Split(text);
  if (!parts.ok()) return;
  std::string together;
  for (const TextPart& part : *parts) {
    CHECK(!part.text.empty());
    CHECK(!FindInvalidUtf8(part.text).has_value());
    together += part.text;
  }
  CHECK_EQ(together, std::string(text));
}

}  // namespace
}  // namespace reprise

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  reprise::Run(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
