// Models, requests and texts for tests of speculation. Each sequence first generates its text
// separately and without drafts. All sequences then generate together, with drafts.

#ifndef REPRISE_RUNNER_TESTING_SPECULATION_TEXTS_H_
#define REPRISE_RUNNER_TESTING_SPECULATION_TEXTS_H_

#include <c10/core/Device.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/runner/testing/layered_model.h"
#include "reprise/runner/testing/speculation_harness.h"

namespace reprise::speculation_tests {

inline constexpr int kVocab = 61;
inline constexpr int kMaxSeqLen = 96;
inline constexpr int kChainDrafts = 8;  // maximum per row
inline constexpr int kNumNew = 40;      // tokens after the prompt

// The kinds of DraftProposer, for tests that run with several of them.
enum class Proposer : int8_t { kNone, kNgram, kModel, kCustom, kHeads };

// SpeculationHarness::Create() replaces the model of kModel. For kNone, kCustom and kHeads, the
// result is NoProposer; for kCustom and kHeads, the caller then sets the proposer.
DraftProposer ProposerOf(Proposer proposer);

// Options of a runner with four slots whose proposed drafts are chains.
ModelRunnerOptions Options(Proposer proposer);

LayeredModelOptions TwoLayers(c10::Device device, uint64_t seed);
LayeredModelOptions Windows(c10::Device device, uint64_t seed);
// TwoLayers() with a short attention window. With the same seed, it often agrees with TwoLayers().
LayeredModelOptions ShortSighted(c10::Device device, uint64_t seed);
// MLA: one latent per token; V is a part of it.
LayeredModelOptions Latents(c10::Device device, uint64_t seed);
LayeredModelOptions WindowsAndChunks(c10::Device device, uint64_t seed);

struct Request {
  std::vector<int32_t> prompt;
  SamplingParams sampling = {};
};

std::vector<int32_t> RandomPrompt(std::mt19937& rng, int length);

// Returns four requests: greedy, with temperature, with top_k, with top_p.
std::vector<Request> SomeRequests(uint32_t seed);

// Return the texts of separate runs without drafts. Without `options`, the runner has no
// speculation.
std::vector<std::vector<int32_t>> PlainTexts(const LayeredModelOptions& model,
                                             const std::vector<Request>& requests,
                                             const ModelRunnerOptions& options);
std::vector<std::vector<int32_t>> PlainTexts(const LayeredModelOptions& model,
                                             const std::vector<Request>& requests);

#define ASSERT_STEP(expression)                    \
  do {                                             \
    const absl::Status step_status = (expression); \
    ASSERT_TRUE(step_status.ok()) << step_status;  \
  } while (false)

// Generates all texts together and expects them to equal `want`. After the step of the prompts,
// drafts_of(slot, room) returns the row of each slot that is not finished; `room`: number of tokens
// up to kMaxSeqLen.
template <typename DraftsOf>
void ExpectTexts(SpeculationHarness& harness, const std::vector<Request>& requests,
                 const std::vector<std::vector<int32_t>>& want, DraftsOf drafts_of) {
  const int num_slots = static_cast<int>(requests.size());
  std::vector<SpeculationRow> rows;
  for (int slot = 0; slot < num_slots; ++slot) {
    harness.Join(slot, requests[slot].prompt, requests[slot].sampling);
    rows.push_back({.slot = slot});
  }
  ASSERT_STEP(harness.Step(rows));
  for (int step = 0; !rows.empty(); ++step) {
    ASSERT_LT(step, kNumNew);
    rows.clear();
    for (int slot = 0; slot < num_slots; ++slot) {
      const int length = static_cast<int>(harness.text(slot).size());
      if (length >= static_cast<int>(want[slot].size())) continue;
      rows.push_back(drafts_of(slot, kMaxSeqLen - length));
    }
    if (rows.empty()) break;
    ASSERT_STEP(harness.Step(rows));
    const bool has_drafts = std::any_of(rows.begin(), rows.end(), [](const SpeculationRow& row) {
      return row.num_drafts > 0 || !row.drafts.empty();
    });
    ASSERT_EQ(harness.decision().kind, GraphDecision::Kind::kReplay) << harness.decision();
    ASSERT_EQ(harness.decision().key.num_drafts > 0, has_drafts);
  }
  for (int slot = 0; slot < num_slots; ++slot) {
    std::vector<int32_t> text = harness.text(slot);
    text.resize(want[slot].size());
    EXPECT_EQ(text, want[slot]) << "slot " << slot;
  }
}

}  // namespace reprise::speculation_tests

#endif  // REPRISE_RUNNER_TESTING_SPECULATION_TEXTS_H_
