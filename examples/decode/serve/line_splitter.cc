#include "examples/decode/serve/line_splitter.h"

#include <utility>

namespace reprise {

void LineSplitter::Push(std::string_view bytes, Take take) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const std::string_view piece = bytes.substr(0, end);
    if (!is_too_long_ && begun_.size() + piece.size() > max_bytes_) {
      is_too_long_ = true;
      begun_ = {};
      take({.number = number_});
    }
    const bool is_whole = end != std::string_view::npos;
    if (!is_too_long_ && is_whole && begun_.empty()) {
      take({.number = number_, .text = piece});
    } else if (!is_too_long_) {
      begun_ += piece;
      if (is_whole) take({.number = number_, .text = begun_});
    }
    if (!is_whole) return;
    begun_.clear();
    is_too_long_ = false;
    ++number_;
    bytes.remove_prefix(end + 1);
  }
}

void LineSplitter::Finish(Take take) {
  if (!begun_.empty()) take({.number = number_, .text = begun_});
  begun_.clear();
  is_too_long_ = false;
}

}  // namespace reprise
