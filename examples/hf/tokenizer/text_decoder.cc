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
  virtual void Push(std::string token, std::vector<std::string>& out) = 0;
  // Returns the pending text; afterwards as new.
  virtual void Finish(std::vector<std::string>&) {}
};

template <>
class TextDecoder::StageOf<ReplaceStep> : public Stage {
 public:
  explicit StageOf(const ReplaceStep& step) : step_(step) {}

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

  void Push(std::string token, std::vector<std::string>& out) override {
    if (const std::optional<char> byte = ByteOfToken(token)) {
      run_.push_back(*byte);
      return;
    }
    Finish(out);
    out.push_back(std::move(token));
  }

  void Finish(std::vector<std::string>& out) override {
    if (run_.empty()) return;
    if (FindInvalidUtf8(run_)) {
      out.insert(out.end(), run_.size(), std::string(kReplacement));
    } else {
      out.push_back(run_);
    }
    run_.clear();
  }

 private:
  std::string run_;  // bytes: one that comes later may spoil all of them
};

template <>
class TextDecoder::StageOf<ByteLevelStep> : public Stage {
 public:
  explicit StageOf(const ByteLevelStep&) {}

  void Push(std::string token, std::vector<std::string>& out) override {
    waiting_ += BytesFromLevel(token).value_or(token);
    const int64_t settled = SettledUtf8Prefix(waiting_);
    out.push_back(ReplaceInvalidUtf8(std::string_view(waiting_).substr(0, settled)));
    waiting_.erase(0, settled);
  }

  void Finish(std::vector<std::string>& out) override {
    out.push_back(ReplaceInvalidUtf8(std::exchange(waiting_, "")));
  }

 private:
  std::string waiting_;  // at most 3 bytes
};

template <>
class TextDecoder::StageOf<MetaspaceStep> : public Stage {
 public:
  explicit StageOf(const MetaspaceStep& step) : step_(step) {}

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
