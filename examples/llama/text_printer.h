// Prints the texts of several prompts that are generated at the same time: one after the other, in
// the order of the prompts, each as early as it can be.
//
//   TextPrinter printer(std::cout, {"\"foo\"", "\"bar\""});
//   printer.Append(1, "second");   // kept
//   printer.Append(0, "first");    // printed
//   printer.Finish(0);             // now "second" is printed, and the rest of it as it comes
//
// With one prompt its text is all that is printed, and a line break. With several, each text stands
// below a line "--- <heading>".
//
// Thread safety: none. The stream must outlive the printer; it is flushed after every call.

#ifndef EXAMPLES_LLAMA_TEXT_PRINTER_H_
#define EXAMPLES_LLAMA_TEXT_PRINTER_H_

#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace reprise {

class TextPrinter {
 public:
  // One heading a prompt, a line each.
  TextPrinter(std::ostream& out, std::vector<std::string> headings);

  // The next piece of a text. REQUIRES, both: the prompt exists and is not finished.
  void Append(int prompt, std::string_view piece);
  void Finish(int prompt);

 private:
  struct Text {
    std::string heading;
    std::string kept = {};  // not printed yet
    bool is_finished = false;
  };

  // The heading of the first text waits for a first call, since a run may fail before.
  void StartFirst();
  void Start(Text& text);

  std::ostream& out_;
  std::vector<Text> texts_;
  bool is_started_ = false;
  size_t current_ = 0;  // the text that is being printed; those before it are finished
};

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_TEXT_PRINTER_H_
