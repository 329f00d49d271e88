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
  // Returns the pending text. Afterwards the stage is as new.
  virtual void Finish(std::vector<std::string>&) {}
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
  explicit StageOf(const ByteTokenStep& step) : runs_(step.runs) {}

  std::unique_ptr<Stage> Clone() const override { return std::make_unique<StageOf>(*this); }

  void Push(std::string token, std::vector<std::string>& out) override {
    if (const std::optional<char> byte = ByteOfToken(token)) {
      waiting_.push_back(*byte);
      if (runs_ == ByteTokenStep::kByCharacter) ReturnSettled(out);
      return;
    }
    Finish(out);
    out.push_back(std::move(token));
  }

  void Finish(std::vector<std::string>& out) override {
    if (waiting_.empty()) return;
    if (FindInvalidUtf8(waiting_).has_value()) {
      Replace(waiting_.size(), out);
    } else {
      out.push_back(waiting_);
    }
    waiting_.clear();
  }

 private:
  // Returns the whole characters at the front, and the bytes that cannot become characters.
  void ReturnSettled(std::vector<std::string>& out) {
    while (!waiting_.empty()) {
      const Utf8Unit unit = FirstUtf8Unit(waiting_);
      if (unit.kind == Utf8Kind::kTruncated) return;
      if (unit.kind == Utf8Kind::kCharacter) {
        out.push_back(waiting_.substr(0, unit.length));
      } else {
        Replace(unit.length, out);
      }
      waiting_.erase(0, unit.length);
    }
  }

  static void Replace(size_t num_bytes, std::vector<std::string>& out) {
    out.insert(out.end(), num_bytes, std::string(kReplacement));
  }

  const ByteTokenStep::Runs runs_;
  std::string waiting_;  // the run so far; kByCharacter: its unfinished character, at most 3 bytes
};

template <>
class TextDecoder::StageOf<ByteLevelStep> : public Stage {
 public:
  explicit StageOf(const ByteLevelStep&) {}

  std::unique_ptr<Stage> Clone() const override { return std::make_unique<StageOf>(*this); }

  void Push(std::string token, std::vector<std::string>& out) override {
    waiting_ += BytesFromLevel(token).value_or(token);
    const int64_t settled = SettledUtf8Prefix(waiting_);
    out.push_back(ReplaceInvalidUtf8(std::string_view(waiting_).substr(0, settled)));
    waiting_.erase(0, settled);
  }

  void Finish(std::vector<std::string>& out) override {
    out.push_back(ReplaceInvalidUtf8(waiting_));
    waiting_.clear();
  }

 private:
  std::string waiting_;  // at most 3 bytes
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

std::string TextDecoder::Finish() {
  std::vector<std::string> tokens;
  for (const std::unique_ptr<Stage>& stage : stages_) {
    std::vector<std::string> out;
    for (std::string& t : tokens) stage->Push(std::move(t), out);
    stage->Finish(out);
    tokens = std::move(out);
  }
  std::string text;
  for (const std::string& t : tokens) text += t;
  return text;
}

}  // namespace reprise
