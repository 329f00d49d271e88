// Cuts a stream of bytes into lines, of bounded length.
//
//   LineSplitter lines(kMaxLineBytes);
//   lines.Push(bytes, [&](const InputLine& line) { client.Take(line); });
//   lines.Finish([&](const InputLine& line) { client.Take(line); });
//
// Thread safety: none.

#ifndef EXAMPLES_DECODE_SERVE_LINE_SPLITTER_H_
#define EXAMPLES_DECODE_SERVE_LINE_SPLITTER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"

namespace reprise {

struct InputLine {
  int64_t number = 0;  // from 1
  // Without its end (\n). nullopt: longer than the most. Valid during the call.
  std::optional<std::string_view> text = {};
};

class LineSplitter {
 public:
  using Take = absl::FunctionRef<void(const InputLine&)>;

  // Keeps at most `max_bytes` of a line, and drops the rest of a longer one.
  explicit LineSplitter(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Calls `take` for each line that ends in `bytes`, and for one that has become too long, at once.
  void Push(std::string_view bytes, Take take);

  // Calls `take` for a last line without an end, if there is one.
  void Finish(Take take);

 private:
  const size_t max_bytes_;
  int64_t number_ = 1;
  std::string begun_;         // of the current line
  bool is_too_long_ = false;  // the current line; it has been reported
};

}  // namespace reprise

#endif  // EXAMPLES_DECODE_SERVE_LINE_SPLITTER_H_
