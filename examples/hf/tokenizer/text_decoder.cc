#include "reprise/hf/tokenizer/text_decoder.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "reprise/hf/tokenizer/byte_level.h"
#include "reprise/hf/utf8.h"

namespace reprise {
namespace {

constexpr std::string_view kReplacement = "\uFFFD";

std::optional<int> HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char upper = absl::ascii_toupper(c);
  if (upper >= 'A' && upper <= 'F') return upper - 'A' + 10;
  return std::nullopt;
}

// Of "<0x0A>", in either case.
std::optional<char> ByteOfToken(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return std::nullopt;
  const std::optional<int> high = HexDigit(token[3]);
  const std::optional<int> low = HexDigit(token[4]);
  if (!high || !low) return std::nullopt;
  return static_cast<char>(*high * 16 + *low);
}

}  // namespace

// One step: tokens in, tokens out.
class TextDecoder::Stage {
 public:
  virtual ~Stage() = default;
  virtual std::unique_ptr<Stage> Clone() const = 0;
  virtual void Push(std::string token, std::vector<std::string>& out) = 0;
  // Returns the pending text; afterwards as new.
  virtual void Finish(std::vector<std::string>&) {}
  // Returns what Finish() would return, except for an unfinished character.
  virtual void Preview(std::vector<std::string>&) const {}
  virtual bool has_pending() const { return false; }
  // Returns what Finish() would return. The stage then continues after that text (MarkKnown()).
  virtual void MarkKnown(std::vector<std::string>&) {}
};

template <>
class TextDecoder::StageOf<ReplaceStep> : public Stage {
 public:
  explicit StageOf(const ReplaceStep& step) : step_(step) {}

  std::unique_ptr<Stage> Clone() const override { return std::make_unique<StageOf>(*this); }

  void Push(std::string token, std::vector<std::string>& out) override {
    out.push_back(Replaced(token, step_));
  }

 private:
  const ReplaceStep step_;
};

template <>
class TextDecoder::StageOf<ByteTokenStep> : public Stage {
 public:
  explicit StageOf(const ByteTokenStep&) {}

  std::unique_ptr<Stage> Clone() const override { return std::make_unique<StageOf>(*this); }

  void Push(std::string token, std::vector<std::string>& out) override {
    if (const std::optional<char> byte = ByteOfToken(token)) {
      run_.push_back(*byte);
      Check();
      return;
    }
    Finish(out);
    out.push_back(std::move(token));
  }

  void Finish(std::vector<std::string>& out) override {
    Append(run_.size(), out);
    run_.clear();
    num_whole_ = 0;
    num_known_ = 0;
    is_spoiled_ = false;
  }

  void Preview(std::vector<std::string>& out) const override {
    Append(is_spoiled_ ? run_.size() : num_whole_, out);
  }

  bool has_pending() const override { return !run_.empty(); }

  void MarkKnown(std::vector<std::string>& out) override {
    Append(run_.size(), out);
    run_.erase(0, is_spoiled_ ? run_.size() : num_whole_);
    num_whole_ = 0;
    num_known_ = run_.size();
  }

 private:
  // Finds the characters at the end of the run.
  void Check() {
    while (!is_spoiled_ && num_whole_ < run_.size()) {
      const Utf8Unit unit = FirstUtf8Unit(std::string_view(run_).substr(num_whole_));
      if (unit.kind == Utf8Kind::kTruncated) return;
      is_spoiled_ = unit.kind == Utf8Kind::kInvalid;
      if (!is_spoiled_) num_whole_ += unit.length;
    }
  }

  // The text of the run's first `size` bytes, if the run ended there.
  void Append(size_t size, std::vector<std::string>& out) const {
    if (size == 0) return;
    if (is_spoiled_ || num_whole_ < size) {
      out.insert(out.end(), size - num_known_, std::string(kReplacement));
    } else {
      out.push_back(run_.substr(0, size));
    }
  }

  std::string run_;          // bytes: one that comes later may spoil all of them
  size_t num_whole_ = 0;     // bytes at the front that are whole characters
  size_t num_known_ = 0;     // bytes at the front whose U+FFFD belongs to the known text
  bool is_spoiled_ = false;  // a byte of the run, or of its known part, is not UTF-8
};

template <>
class TextDecoder::StageOf<ByteLevelStep> : public Stage {
 public:
  explicit StageOf(const ByteLevelStep&) {}

  std::unique_ptr<Stage> Clone() const override { return std::make_unique<StageOf>(*this); }

  void Push(std::string token, std::vector<std::string>& out) override {
    waiting_ += BytesFromLevel(token).value_or(token);
    DropKnown();
    const int64_t settled = SettledUtf8Prefix(waiting_);
    out.push_back(ReplaceInvalidUtf8(std::string_view(waiting_).substr(0, settled)));
    waiting_.erase(0, settled);
  }

  void Finish(std::vector<std::string>& out) override {
    if (!is_known_) out.push_back(ReplaceInvalidUtf8(waiting_));
    waiting_.clear();
    is_known_ = false;
  }

  void MarkKnown(std::vector<std::string>& out) override {
    out.push_back(ReplaceInvalidUtf8(waiting_));
    is_known_ = !waiting_.empty();
  }

 private:
  // Drops the character that the known text began if it will not be completed.
  void DropKnown() {
    if (!is_known_) return;
    const Utf8Unit unit = FirstUtf8Unit(waiting_);
    if (unit.kind == Utf8Kind::kTruncated) return;
    if (unit.kind == Utf8Kind::kInvalid) waiting_.erase(0, unit.length);
    is_known_ = false;
  }

  std::string waiting_;    // at most 3 bytes
  bool is_known_ = false;  // waiting_ begins with a character that the known text began
};

template <>
class TextDecoder::StageOf<MetaspaceStep> : public Stage {
 public:
  explicit StageOf(const MetaspaceStep& step) : step_(step) {}

  std::unique_ptr<Stage> Clone() const override { return std::make_unique<StageOf>(*this); }

  void Push(std::string token, std::vector<std::string>& out) override {
    const bool drops = std::exchange(is_first_, false) && step_.drops_first;
    out.push_back(Replaced(token, {.what = step_.symbol, .by = drops ? "" : " "}));
  }

  void Finish(std::vector<std::string>&) override { is_first_ = true; }

 private:
  const MetaspaceStep step_;
  bool is_first_ = true;
};

template <>
class TextDecoder::StageOf<StripStep> : public Stage {
 public:
  explicit StageOf(const StripStep& step) : step_(step), left_(step.count) {}

  std::unique_ptr<Stage> Clone() const override { return std::make_unique<StageOf>(*this); }

  void Push(std::string token, std::vector<std::string>& out) override {
    if (step_.of == StripStep::kEachToken) left_ = step_.count;
    std::string_view rest = token;
    while (left_ > 0 && rest.substr(0, step_.character.size()) == step_.character) {
      rest.remove_prefix(step_.character.size());
      --left_;
    }
    if (!rest.empty()) left_ = 0;
    out.emplace_back(rest);
  }

  void Finish(std::vector<std::string>&) override { left_ = step_.count; }

 private:
  const StripStep step_;
  int left_;
};

TextDecoder::TextDecoder(absl::Span<const DecoderStep> steps) {
  for (const DecoderStep& step : steps) {
    std::visit([&]<typename Step>(
                   const Step& s) { stages_.push_back(std::make_unique<StageOf<Step>>(s)); },
               step);
  }
}

TextDecoder::TextDecoder(const TextDecoder& other) {
  for (const std::unique_ptr<Stage>& stage : other.stages_) stages_.push_back(stage->Clone());
}

TextDecoder& TextDecoder::operator=(const TextDecoder& other) { return *this = TextDecoder(other); }

TextDecoder::TextDecoder(TextDecoder&&) = default;
TextDecoder& TextDecoder::operator=(TextDecoder&&) = default;
TextDecoder::~TextDecoder() = default;

std::string TextDecoder::Push(std::string_view token) {
  std::vector<std::string> tokens = {std::string(token)};
  for (const std::unique_ptr<Stage>& stage : stages_) {
    std::vector<std::string> out;
    for (std::string& t : tokens) stage->Push(std::move(t), out);
    tokens = std::move(out);
  }
  std::string text;
  for (const std::string& t : tokens) text += t;
  return text;
}

template <typename Flush>
std::string TextDecoder::FlushAll(absl::Span<const std::unique_ptr<Stage>> stages, Flush flush) {
  std::vector<std::string> tokens;
  for (const std::unique_ptr<Stage>& stage : stages) {
    std::vector<std::string> out;
    for (std::string& t : tokens) stage->Push(std::move(t), out);
    flush(*stage, out);
    tokens = std::move(out);
  }
  std::string text;
  for (const std::string& t : tokens) text += t;
  return text;
}

std::string TextDecoder::Finish() {
  return FlushAll(stages_, [](Stage& stage, std::vector<std::string>& out) { stage.Finish(out); });
}

std::string TextDecoder::Pending() const {
  bool has_pending = false;
  for (const std::unique_ptr<Stage>& stage : stages_) has_pending |= stage->has_pending();
  if (!has_pending) return "";
  const TextDecoder copy = *this;  // later stages change with the text that they get
  return FlushAll(copy.stages_,
                  [](Stage& stage, std::vector<std::string>& out) { stage.Preview(out); });
}

void TextDecoder::MarkKnown() {
  FlushAll(stages_, [](Stage& stage, std::vector<std::string>& out) { stage.MarkKnown(out); });
}

}  // namespace reprise
