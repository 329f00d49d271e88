// Checks of a model's golden prompts on any device: gtest expectations for the tests of the CPU and
// of the GPU.

#ifndef TESTS_GOLDEN_GOLDEN_CHECKS_H_
#define TESTS_GOLDEN_GOLDEN_CHECKS_H_

#include <string>
#include <vector>

#include "reprise/runner/model.h"
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
