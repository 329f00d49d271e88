#include "examples/decode/chat/line_editor.h"

#ifdef REPRISE_WITH_LIBEDIT
#include <histedit.h>
#include <langinfo.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#endif

namespace reprise {

#ifndef REPRISE_WITH_LIBEDIT

std::unique_ptr<LineEditor> LineEditor::Create(int, std::FILE*, SignalEvent&, IdleCall) {
  return nullptr;
}

#else

namespace {

constexpr wchar_t kReplacement = 0xfffd;

void AppendUtf8(char32_t code, std::string& text) {
  const auto tail = [&](int shift) {
    text.push_back(static_cast<char>(0x80 | ((code >> shift) & 0x3f)));
  };
  if (code < 0x80) {
    text.push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    text.push_back(static_cast<char>(0xc0 | (code >> 6)));
    tail(0);
  } else if (code < 0x10000) {
    text.push_back(static_cast<char>(0xe0 | (code >> 12)));
    tail(6);
    tail(0);
  } else {
    text.push_back(static_cast<char>(0xf0 | (code >> 18)));
    tail(12);
    tail(6);
    tail(0);
  }
}

class LibeditEditor final : public LineEditor {
 public:
  LibeditEditor(std::FILE* in, std::FILE* out, SignalEvent& interrupt, IdleCall idle)
      : in_(in),
        wait_(fileno(in), interrupt, std::move(idle)),
        editor_(el_init("decode", in, out, out)),
        history_(history_winit()) {
    HistEventW event;
    history_w(history_, &event, H_SETSIZE, kHistoryLines);
    history_w(history_, &event, H_SETUNIQUE, 1);
    el_wset(editor_, EL_CLIENTDATA, this);
    el_wset(editor_, EL_EDITOR, L"emacs");
    el_wset(editor_, EL_PROMPT, Prompt);
    el_wset(editor_, EL_HIST, history_w, history_);
    el_wset(editor_, EL_GETCFN, Read);
    el_wset(editor_, EL_BIND, L"^W", L"ed-delete-prev-word", nullptr);
    el_wset(editor_, EL_BIND, L"^R", L"em-inc-search-prev", nullptr);
    el_source(editor_, nullptr);
  }
  ~LibeditEditor() override {
    el_end(editor_);
    history_wend(history_);
    std::fclose(in_);
  }
  LibeditEditor(const LibeditEditor&) = delete;
  LibeditEditor& operator=(const LibeditEditor&) = delete;

  InputLines::Result Next() override {
    is_interrupted_ = false;
    is_first_ = true;
    int count = 0;
    const wchar_t* const line = el_wgets(editor_, &count);
    if (!wait_.status().ok()) {
      return {.kind = InputLines::Kind::kFailed, .error = wait_.status()};
    }
    if (is_interrupted_) return {.kind = InputLines::Kind::kInterrupted};
    if (line == nullptr || count <= 0) return {.kind = InputLines::Kind::kEnd};
    std::wstring_view typed(line, static_cast<size_t>(count));
    if (typed.back() == L'\n') typed.remove_suffix(1);
    InputLines::Result result = {.kind = InputLines::Kind::kLine};
    for (const wchar_t code : typed) AppendUtf8(static_cast<char32_t>(code), result.text);
    if (!typed.empty()) {
      HistEventW event;
      history_w(history_, &event, H_ENTER, std::wstring(typed).c_str());
    }
    return result;
  }

 private:
  static constexpr int kHistoryLines = 500;
  static constexpr unsigned char kCtrlD = 4;

  static wchar_t* Prompt(EditLine*) {
    static wchar_t prompt[] = L"> ";
    return prompt;
  }

  // As el_rfunc_t: 1 and a character; 0 at the end; -1: a signal, or a failure.
  static int Read(EditLine* editor, wchar_t* character) {
    LibeditEditor* self = nullptr;
    el_wget(editor, EL_CLIENTDATA, &self);
    return self->ReadCharacter(*character);
  }

  int ReadCharacter(wchar_t& character) {
    unsigned char first = 0;
    if (const int count = ReadByte(first); count != 1) return count;
    // What a terminal that still edits lines itself makes of a Ctrl-D that was typed early.
    if (std::exchange(is_first_, false) && first == 0) first = kCtrlD;
    character = first < 0x80 ? first : kReplacement;
    if (first < 0xc2 || first >= 0xf5) return 1;
    const int num_more = first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
    char32_t code = first & (0x3f >> num_more);
    for (int i = 0; i < num_more; ++i) {
      unsigned char next = 0;
      if (const int count = ReadByte(next); count != 1) return count;
      if ((next & 0xc0) != 0x80) {
        unread_ = next;
        return 1;
      }
      code = code << 6 | (next & 0x3f);
    }
    const bool is_valid = code >= (num_more == 1   ? 0x80u
                                   : num_more == 2 ? 0x800u
                                                   : 0x10000u) &&
                          code < 0x110000 && (code < 0xd800 || code > 0xdfff);
    if (is_valid) character = static_cast<wchar_t>(code);
    return 1;
  }

  int ReadByte(unsigned char& byte) {
    if (unread_) {
      byte = *std::exchange(unread_, std::nullopt);
      return 1;
    }
    while (true) {
      const InputWait::Event event = wait_.Next();
      if (event == InputWait::Event::kInterrupted) {
        is_interrupted_ = true;
        errno = EINTR;
        return -1;
      }
      if (event == InputWait::Event::kFailed) {
        errno = EIO;
        return -1;
      }
      const ssize_t count = read(fileno(in_), &byte, 1);
      if (count >= 0) return static_cast<int>(count);
      if (errno != EINTR) return -1;
    }
  }

  std::FILE* const in_;
  InputWait wait_;
  EditLine* const editor_;
  HistoryW* const history_;
  bool is_interrupted_ = false;
  bool is_first_ = false;                // the next character is the first of a line
  std::optional<unsigned char> unread_;  // ended a character too early, and begins the next
};

}  // namespace

std::unique_ptr<LineEditor> LineEditor::Create(int in, std::FILE* out, SignalEvent& interrupt,
                                               IdleCall idle) {
  const char* const terminal = std::getenv("TERM");
  if (terminal == nullptr || std::strcmp(terminal, "") == 0 || std::strcmp(terminal, "dumb") == 0 ||
      isatty(in) == 0 || isatty(fileno(out)) == 0) {
    return nullptr;
  }
  std::setlocale(LC_CTYPE, "");
  if (std::string_view(nl_langinfo(CODESET)) != "UTF-8") std::setlocale(LC_CTYPE, "C.UTF-8");
  const int descriptor = dup(in);
  std::FILE* const file = descriptor >= 0 ? fdopen(descriptor, "r") : nullptr;
  if (file == nullptr) {
    if (descriptor >= 0) close(descriptor);
    return nullptr;
  }
  return std::make_unique<LibeditEditor>(file, out, interrupt, std::move(idle));
}

#endif

}  // namespace reprise
