// Checks of a model's golden prompts on any device: gtest expectations for the tests of the CPU and
// of the GPU.

#ifndef TESTS_GOLDEN_GOLDEN_CHECKS_H_
#define TESTS_GOLDEN_GOLDEN_CHECKS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runner/model.h"
#include "tests/golden/golden.h"
#include "tests/golden/golden_runner.h"

namespace reprise {

// Block sizes 1, 4, 16 x prompts whole and in chunks of 3 and 16 x graphs off and on.
std::vector<GoldenRunOptions> AllGoldenRunOptions();
// The smallest subset of these that has every value of each.
std::vector<GoldenRunOptions> SomeGoldenRunOptions();
std::string ToString(const GoldenRunOptions& options);

// Logits along both tracks of every prompt are within `tolerance` of the golden ones everywhere,
// and greedy tokens are the golden ones up to the first margin below 1e-3.
void ExpectGoldenLogits(Model& model, const Golden& golden, const GoldenRunOptions& options,
                        double tolerance);

// Of a track's logits in a 16-bit type.
struct SixteenBitError {
  double rms = 0;
  double allowed = 0;     // twice that of transformers' own bfloat16 run
  int num_positions = 0;  // that are judged: the track's first ones
};

// The experts that a model, in float32, chooses at each input of both tracks (TrackInputs()).
std::vector<at::Tensor> GoldenRouting(Model& model, const Golden& golden,
                                      const GoldenRunOptions& options);

// Of both tracks of every prompt, that of prompt i's greedy one at 2 i.
//
// `routing` of a model with experts: GoldenRouting() of the same in float32. Where rounding chooses other
// experts, the logits differ by more than rounding, and so do those of later positions, which attend to
// it. So only positions whose routing agrees are judged: in all layers, and so that of all inputs before
// them.
std::vector<SixteenBitError> SixteenBitErrors(Model& model, const Golden& golden,
                                              const GoldenRunOptions& options,
                                              const std::vector<at::Tensor>& routing = {});

// No error is larger than allowed, and half of all positions or more are judged.
void ExpectSmall(const std::vector<SixteenBitError>& errors, const Golden& golden);

// The prompt and the tokens of each track but the last, that of a prompt's greedy track before that
// of its random one: the inputs that have logits are the last of them, as many as the track has
// tokens.
std::vector<std::vector<int32_t>> TrackInputs(const Golden& golden);

// Graphs on and off give the same bits, at the same padded shapes.
void ExpectGraphsChangeNoBit(Model& model, const Golden& golden, GoldenRunOptions options);

// The logits are within `tolerance` for every composition and order of the batch: alone, in
// shuffled orders (seeds printed), and with the cache so small that sequences are preempted.
void ExpectBatchingDoesNotMatter(Model& model, const Golden& golden, double tolerance);

// 17 sequences that end one after the other, through graphs of 1, 2, 4, 8 and 16 rows: every count
// of live rows, with its padding, gives golden logits; the counters show whether each step was
// eager or a replay.
void ExpectEveryLiveCountIsServed(Model& model, const Golden& golden, double tolerance);

// The logits after a track's tokens are the same if those tokens are part of the prompt: whole, in
// chunks, graphs off and on.
void ExpectTracksContinuePrompts(Model& model, const Golden& golden, double tolerance);

// By the counters: the prompts are one eager step, unless each is one token, and every decode step
// is a replay.
void ExpectDecodeStepsAreReplays(Model& model, const Golden& golden);

}  // namespace reprise

#endif  // TESTS_GOLDEN_GOLDEN_CHECKS_H_
