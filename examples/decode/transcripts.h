// Collects the generated tokens and texts of a run's requests, and prints the texts while they are
// made.
//
//   TextPrinter printer(std::cout, {"\"foo\"", "\"bar\""});
//   Transcripts transcripts(requests, tokenizer, stops, &printer);
//   Generate(*engine, requests, [&](int request, const TokenEvent& event) {
//     transcripts.Add(request, event);
//     return absl::OkStatus();
//   });
//   for (const Generation& generation : transcripts.generations()) std::cout << ToJson(generation);
//   // {"prompt_tokens":[0,17],"tokens":[5,1],"text":"n.","finish_reason":"stop"}
//
// Thread safety: none. Stream, tokenizer and printer must outlive the objects that use them.

#ifndef EXAMPLES_DECODE_TRANSCRIPTS_H_
#define EXAMPLES_DECODE_TRANSCRIPTS_H_

#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "examples/decode/prompt.h"
#include "examples/decode/text/answer_text.h"
#include "reprise/engine/request.h"
#include "reprise/hf/tokenizer/tokenizer.h"

namespace reprise {

// The reported result of a prompt.
struct Generation {
  TokenList prompt_tokens = {};  // or the encoder's input, if there is one
  TokenList tokens = {};
  // The text after the prompt, without special tokens, up to a stop (answer_text.h). nullopt: there
  // is no tokenizer.
  std::optional<std::string> text = {};
  FinishReason finish = FinishReason::kNone;
  std::vector<TokenLogProbs> log_probs = {};  // of `tokens`, if they were asked for
};

// One line without its end. An absent text is null; invalid UTF-8 in it becomes U+FFFD.
// Where there are log-probabilities, "log_probs" has an object a token:
// {"log_prob":-0.5,"rank":1,"top":[[16,-0.5],[9,-1.25]]}.
std::string ToJson(const Generation& generation);

// {"log_prob":-0.5,"rank":1,"top":[[16,-0.5],[9,-1.25]]}
std::string ToJson(const TokenLogProbs& token);

// Prints the texts of several prompts that are generated at the same time: one after the other, in
// the order of the prompts, each as early as possible. With one prompt, only its text and a line
// break are printed. With several, each text is below a line "--- <heading>". The stream is flushed
// after every call.
class TextPrinter {
 public:
  // One heading per prompt, of one line each.
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

  // The heading of the first text is printed by the first call, since a run may fail before it.
  void StartFirst();
  void Start(Text& text);

  std::ostream& out_;
  std::vector<Text> texts_;
  bool is_started_ = false;
  size_t current_ = 0;  // the text that is being printed; those before it are finished
};

class Transcripts {
 public:
  // Without a tokenizer (null), the printer shows token ids. Without a printer (null), nothing is
  // shown. `stops` must be the stops of the requests' matchers.
  Transcripts(absl::Span<const Request> requests, const Tokenizer* tokenizer,
              const StopTexts& stops, TextPrinter* printer);

  // Takes the next event of a request; its last event may have no token. REQUIRES: the request is
  // not finished.
  void Add(int request, const TokenEvent& event);

  // Adds and prints the text that is held back of requests that have not finished, because the
  // engine has failed. REQUIRES: the last call.
  void Finish();

  // One per request. Texts are whole once their request is finished.
  absl::Span<const Generation> generations() const { return generations_; }

 private:
  // Adds `piece` to the text of a request, and prints it.
  void Append(int request, std::string_view piece);

  std::vector<Generation> generations_;
  std::vector<AnswerText> texts_;  // one per request; empty without a tokenizer
  TextPrinter* printer_;
};

}  // namespace reprise

#endif  // EXAMPLES_DECODE_TRANSCRIPTS_H_
