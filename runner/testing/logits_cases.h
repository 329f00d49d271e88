// Random arguments, valid or hostile, for tests of the operations between a model's logits and its
// tokens: slot state, logits processors, raw logits, log-probabilities.
//
//   const LogitsShape shape = DrawLogitsShape(random);
//   BuilderMemory<LogProbsArgs> memory(
//       [&](ArrayCarver& carver) { return CarveLogProbs(shape, carver); });
//   DrawLogProbs(random, shape, /*hostility=*/0.1, memory.args());
//   LogProbsOnHost(memory.args());
//
// CarveX() allocates the arguments of shape `shape` from a carver; DrawX() fills the inputs of the
// operation. `hostility` controls the probability of invalid inputs: NaN and infinite logits;
// slots, tokens, masks and lists out of range; parameters that CheckLogitsParams() rejects.
//
// Thread safety: pure functions of their arguments.

#ifndef REPRISE_RUNNER_TESTING_LOGITS_CASES_H_
#define REPRISE_RUNNER_TESTING_LOGITS_CASES_H_

#include <cstdint>
#include <ostream>
#include <random>

#include "reprise/base/dtype.h"
#include "reprise/base/testing/builder_memory.h"
#include "reprise/runner/sampling/log_probs_args.h"
#include "reprise/runner/sampling/logits_processors_args.h"
#include "reprise/runner/sampling/logits_state_args.h"
#include "reprise/runner/sampling/raw_logits_args.h"

namespace reprise {

struct LogitsShape {
  DType dtype = DType::kFloat32;
  int num_rows = 4;
  int num_slots = 6;
  int vocab_size = 100;
  int gap = 0;     // elements between rows of logits
  int offset = 0;  // elements before the first row; 1 misaligns it
  int max_biases = 8;
  bool has_counts = true;
  int num_masks = 3;
  bool has_mask_map = true;  // mask_of_row
  int max_top = 5;
  bool has_row_tokens = false;
  int num_joins = 3;
  int num_listed_biases = 20;
  int num_listed_tokens = 200;
};

std::ostream& operator<<(std::ostream& out, const LogitsShape& shape);

// Draws a shape with a vocabulary of up to about 10000, mostly not a multiple of 4, 8 or 32; any
// dtype; aligned or not.
LogitsShape DrawLogitsShape(std::mt19937& random);

JoinLogitsArgs CarveJoinLogits(const LogitsShape& shape, ArrayCarver& carver);
CountTokensArgs CarveCountTokens(const LogitsShape& shape, ArrayCarver& carver);
LogitsProcessorsArgs CarveLogitsProcessors(const LogitsShape& shape, ArrayCarver& carver);
RawLogitsArgs CarveRawLogits(const LogitsShape& shape, ArrayCarver& carver);
LogProbsArgs CarveLogProbs(const LogitsShape& shape, ArrayCarver& carver);

void DrawJoinLogits(std::mt19937& random, const LogitsShape& shape, double hostility,
                    JoinLogitsArgs& args);
void DrawCountTokens(std::mt19937& random, const LogitsShape& shape, double hostility,
                     CountTokensArgs& args);
void DrawLogitsProcessors(std::mt19937& random, const LogitsShape& shape, double hostility,
                          LogitsProcessorsArgs& args);
void DrawRawLogits(std::mt19937& random, const LogitsShape& shape, double hostility,
                   RawLogitsArgs& args);
void DrawLogProbs(std::mt19937& random, const LogitsShape& shape, double hostility,
                  LogProbsArgs& args);

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_LOGITS_CASES_H_
