#include "examples/decode/chat/input_lines.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

namespace reprise {

InputLines::Result InputLines::Next() {
  while (true) {
    if (const size_t end = read_.find('\n'); end != std::string::npos) {
      Result line = {.kind = Kind::kLine, .text = read_.substr(0, end)};
      read_.erase(0, end + 1);
      return line;
    }
    if (is_at_end_) {
      if (read_.empty()) return {.kind = Kind::kEnd};
      return {.kind = Kind::kLine, .text = std::exchange(read_, {})};
    }
    const InputWait::Event event = wait_.Next();
    if (!wait_.status().ok()) return {.kind = Kind::kFailed, .error = wait_.status()};
    if (event == InputWait::Event::kInterrupted) {
      read_.clear();
      return {.kind = Kind::kInterrupted};
    }
    if (event == InputWait::Event::kFailed) {
      is_at_end_ = true;
      continue;
    }
    std::array<char, 4096> buffer;
    const ssize_t count = read(descriptor_, buffer.data(), buffer.size());
    if (count > 0) {
      read_.append(buffer.data(), static_cast<size_t>(count));
    } else if (count == 0 || errno != EINTR) {
      is_at_end_ = true;
    }
  }
}

}  // namespace reprise
