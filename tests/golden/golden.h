// What Hugging Face's transformers computed in float32 for a small model: five prompts, each
// continued greedily and with tokens drawn at random, and the logits before each token.
//
//   REPRISE_ASSIGN_OR_RETURN(Golden golden, LoadGolden("llama-gqa5"));
//   golden.prompts[2].logits[17 * golden.vocab_size + token];
//
// The files stand in tests/goldens/<name>, which is also the model's folder: golden.safetensors,
// and bf16_error.json, which says how far transformers' own bfloat16 run is from that.

#ifndef TESTS_GOLDEN_GOLDEN_H_
#define TESTS_GOLDEN_GOLDEN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "examples/llama/prompt.h"

namespace reprise {

// One way of continuing a prompt.
struct GoldenTrack {
  TokenList tokens = {};  // [n]
  std::vector<float> logits =
      {};               // [n, vocab_size]: what each token was, or would have been, chosen from
  double bf16_rms = 0;  // of transformers' bfloat16 logits against these
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
  std::vector<GoldenPrompt> prompts = {};
};

// Errors: NotFound if the data is not beside the test (examples/llama/data_path.h); InvalidArgument
// if it is not as described above.
absl::StatusOr<Golden> LoadGolden(const std::string& name);

}  // namespace reprise

#endif  // TESTS_GOLDEN_GOLDEN_H_
