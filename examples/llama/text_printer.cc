#include "examples/llama/text_printer.h"

#include <utility>

#include "glog/logging.h"

namespace reprise {

TextPrinter::TextPrinter(std::ostream& out, std::vector<std::string> headings) : out_(out) {
  for (std::string& heading : headings) texts_.push_back({.heading = std::move(heading)});
}

void TextPrinter::Append(int prompt, std::string_view piece) {
  CHECK_LT(static_cast<size_t>(prompt), texts_.size());
  Text& text = texts_[prompt];
  CHECK(!text.is_finished) << "prompt " << prompt;
  StartFirst();
  if (static_cast<size_t>(prompt) == current_) {
    out_ << piece << std::flush;
  } else {
    text.kept += piece;
  }
}

void TextPrinter::Finish(int prompt) {
  CHECK_LT(static_cast<size_t>(prompt), texts_.size());
  CHECK(!texts_[prompt].is_finished) << "prompt " << prompt;
  StartFirst();
  texts_[prompt].is_finished = true;
  while (current_ < texts_.size() && texts_[current_].is_finished) {
    out_ << '\n';
    if (++current_ < texts_.size()) Start(texts_[current_]);
  }
  out_.flush();
}

void TextPrinter::StartFirst() {
  if (!std::exchange(is_started_, true)) Start(texts_.front());
}

void TextPrinter::Start(Text& text) {
  if (texts_.size() > 1) out_ << "--- " << text.heading << '\n';
  out_ << std::exchange(text.kept, {});
}

}  // namespace reprise
