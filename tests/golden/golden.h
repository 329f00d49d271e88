// A golden folder: the results of Hugging Face's transformers in float32 for a small model. Each of
// five prompts is continued greedily and with random tokens. Before each token, the golden has the
// logits of a part of the vocabulary.
//
//   REPRISE_ASSIGN_OR_RETURN(Golden golden, LoadGolden("llama-gqa5"));
//   const GoldenTrack& track = golden.prompts[2].greedy;
//   track.logits[17 * track.logit_tokens.size() + i];  // of token logit_tokens[i], before the 18th
//
// The files are in tests/goldens/<name>, which is also the model's folder: golden.safetensors, and
// bf16_error.json, which holds the error of transformers' own bfloat16 run against it.

#ifndef TESTS_GOLDEN_GOLDEN_H_
#define TESTS_GOLDEN_GOLDEN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/decode/prompt.h"

namespace reprise {

// Logits of some tokens, at some positions. A view of a GoldenTrack.
struct GoldenLogits {
  int vocab_size = 0;
  absl::Span<const int32_t> tokens = {};  // [c], ascending
  absl::Span<const float> values = {};    // [n, c]
};

// One way of continuing a prompt.
struct GoldenTrack {
  TokenList tokens = {};  // [n]
  int vocab_size = 0;
  TokenList logit_tokens = {};     // [c]: the tokens whose logits are kept, ascending
  std::vector<float> logits = {};  // [n, c]: before each token
  double bf16_rms = 0;             // of transformers' bfloat16 logits against all float32 logits
  // The median over positions of a position's rms error, in the same run. Set if
  // Golden::has_bf16_medians; both tracks of a prompt have that of the random one.
  std::optional<double> bf16_median = {};

  GoldenLogits AllLogits() const;
  // Logits before the tokens [begin, begin + count). REQUIRES: 0 <= begin, begin + count <= n.
  GoldenLogits LogitsBefore(int begin, int count) const;
};

struct GoldenPrompt {
  TokenList prompt = {};
  TokenList encoder_tokens = {};  // of models with an encoder, whose prompt is one token
  GoldenTrack greedy = {};
  GoldenTrack forced = {};          // random tokens
  std::vector<float> margins = {};  // [n] of greedy: the largest logit less the second
};

struct Golden {
  std::string name = {};
  std::string folder = {};
  int vocab_size = 0;
  // Whether errors in 16 bits are compared by medians. In folders of models that choose experts,
  // bfloat16 chooses other experts at some positions. These positions dominate an rms error over
  // all positions, but do not affect the median.
  bool has_bf16_medians = false;
  std::vector<GoldenPrompt> prompts = {};
};

// Errors: NotFound if the test's data files are missing (examples/hf/data_path.h); InvalidArgument
// if they are not as described above.
absl::StatusOr<Golden> LoadGolden(const std::string& name);

}  // namespace reprise

#endif  // TESTS_GOLDEN_GOLDEN_H_
