// The command bench: how many tokens a second a model computes, of prompts and of texts.

#ifndef EXAMPLES_DECODE_BENCH_BENCH_H_
#define EXAMPLES_DECODE_BENCH_BENCH_H_

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "examples/decode/loaded_model.h"
#include "examples/decode/options.h"
#include "examples/decode/progress_line.h"
#include "reprise/engine/engine.h"

namespace reprise {

struct BenchPoint {
  int batch = 1;       // sequences at a time
  int context = 1;     // tokens of each one's prompt
  int num_tokens = 1;  // to decode, each
};

struct BenchResult {
  BenchPoint point = {};
  int64_t num_prompt_tokens = 0;
  double prompt_seconds = 0;  // from the first step to the first token of the last sequence
  int64_t num_decoded = 0;    // tokens after that, while all sequences run
  double decode_seconds = 0;
  int64_t num_drafts = 0;  // meanwhile, of rows that proposed some
  int64_t num_accepted = 0;

  double prompt_tokens_per_second() const;
  double tokens_per_second() const;
  double ms_per_token() const;  // of each sequence
};

// The least number of prompt tokens in a step while prompts remain, beside decodes of `batch`
// sequences.
int MinPromptTokens(const ModelEngineOptions& engine, int batch);

// The most steps that the prompts of a point take. In these steps the first sequences decode
// already. `prompt_tokens`: MinPromptTokens().
int PromptSteps(const BenchPoint& point, int prompt_tokens);

// The most new tokens of a sequence of a point, in those steps and until it has been measured. A
// step gives a sequence up to 1 + num_drafts tokens.
int MaxNewTokens(const BenchPoint& point, int prompt_tokens, int num_drafts);

// Measures one point, with prompts of random tokens below `vocab_size`, which are the same for the
// same point, and sequences of up to `max_new_tokens`: MaxNewTokens().
// REQUIRES: the engine has no work, point.batch rows, and no prefix reuse.
// Errors: those of the engine; why a sequence failed; Internal if sequences end before they should.
absl::StatusOr<BenchResult> MeasurePoint(Engine& engine, const BenchPoint& point, int vocab_size,
                                         int max_new_tokens,
                                         const std::function<absl::Time()>& clock = absl::Now);

// Lines of a table, with their ends.
std::string BenchHeading();
std::string BenchRow(const BenchResult& result);
// One line without its end: {"batch":8,"context":128,"prompt_tokens_per_s":...,...}.
std::string ToJson(const BenchResult& result);

struct BenchStreams {
  std::ostream& out;  // the table, a row as soon as it is measured; or JSON
  std::ostream& err;  // progress
  ProgressLine::Mode progress = ProgressLine::Mode::kSilent;
};

// Measures each batch with each context, the largest batch once before, to warm up. All ranks call
// it with the same options; rank 0 prints. Errors: those of loading, of CreateEngine() and
// MeasurePoint(); InvalidArgument for contexts beyond the model's positions and for a model with an
// encoder.
absl::Status RunBench(const DecodeOptions& options, const BenchStreams& streams, RankOfRun rank);

}  // namespace reprise

#endif  // EXAMPLES_DECODE_BENCH_BENCH_H_
