#include "tests/golden/golden_checks.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "reprise/graphs/graph_key.h"
#include "tests/golden/golden_measures.h"
#include "tests/golden/sixteen_bits.h"

namespace reprise {
namespace {

using Mode = GraphSetOptions::Mode;

GoldenRun Run(Model& model, const std::vector<Request>& requests, const GoldenRunOptions& options) {
  absl::StatusOr<GoldenRun> run = RunGolden(model, requests, options);
  EXPECT_TRUE(run.ok()) << run.status();
  if (!run.ok()) return {.tracks = std::vector<RunTrack>(requests.size()), .report = {}};
  return *std::move(run);
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Returns the number of tokens of each track, which is the same for all tracks of a golden.
int NumTokens(const Golden& golden) {
  return static_cast<int>(golden.prompts[0].greedy.tokens.size());
}

}  // namespace

std::vector<GoldenRunOptions> AllGoldenRunOptions() {
  std::vector<GoldenRunOptions> all;
  for (const int block_size : {1, 4, 16}) {
    for (const int chunk : {0, 3, 16}) {
      for (const Mode graphs : {Mode::kOff, Mode::kLazy}) {
        all.push_back({.graphs = graphs, .block_size = block_size, .prefill_chunk = chunk});
      }
    }
  }
  return all;
}

std::vector<GoldenRunOptions> SomeGoldenRunOptions() {
  return {{.graphs = Mode::kLazy, .block_size = 16, .prefill_chunk = 0},
          {.graphs = Mode::kOff, .block_size = 4, .prefill_chunk = 3},
          {.graphs = Mode::kLazy, .block_size = 1, .prefill_chunk = 16}};
}

std::string ToString(const GoldenRunOptions& options) {
  return absl::StrCat("block size ", options.block_size, ", prefill chunk ", options.prefill_chunk,
                      options.graphs == Mode::kOff ? ", graphs off" : ", graphs on");
}

void ExpectGoldenLogits(Model& model, const Golden& golden, const GoldenRunOptions& options,
                        double tolerance) {
  SCOPED_TRACE(ToString(options));
  std::vector<Request> requests = TrackRequests(golden);
  const int num_forced = static_cast<int>(requests.size());
  for (const GoldenPrompt& prompt : golden.prompts) requests.push_back(GreedyRequest(prompt));
  const GoldenRun run = Run(model, requests, options);
  for (int i = 0; i < num_forced; ++i) {
    EXPECT_EQ(run.tracks[i].tokens, TrackOf(golden, i).tokens) << TrackName(i);
    EXPECT_LE(MaxError(run.tracks[i].logits, TrackOf(golden, i).AllLogits()), tolerance)
        << TrackName(i);
  }
  for (size_t i = 0; i < golden.prompts.size(); ++i) {
    const GoldenPrompt& prompt = golden.prompts[i];
    EXPECT_GE(NumEqualTokens(run.tracks[num_forced + i].tokens, prompt.greedy),
              NumDecidedTokens(prompt, 1e-3f))
        << "prompt " << i;
  }
}

void ExpectGraphsChangeNoBit(Model& model, const Golden& golden, GoldenRunOptions options) {
  const std::vector<Request> requests = TrackRequests(golden);
  options.graphs = Mode::kOff;
  SCOPED_TRACE(ToString(options));
  const GoldenRun off = Run(model, requests, options);
  EXPECT_EQ(off.report.num_replays(), 0);
  options.graphs = Mode::kLazy;
  const GoldenRun lazy = Run(model, requests, options);
  options.graphs = Mode::kEager;
  const GoldenRun eager = Run(model, requests, options);
  EXPECT_GT(lazy.report.num_replays(), 0);
  EXPECT_EQ(lazy.report.num_steps(), off.report.num_steps());
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::string name = TrackName(static_cast<int>(i));
    EXPECT_TRUE(SameBits(off.tracks[i].logits, lazy.tracks[i].logits)) << name;
    EXPECT_TRUE(SameBits(off.tracks[i].logits, eager.tracks[i].logits)) << name << ", all captured";
  }
}

void ExpectBatchingDoesNotMatter(Model& model, const Golden& golden, double tolerance) {
  const std::vector<Request> requests = TrackRequests(golden);
  const auto expect_golden = [&](const GoldenRun& run, const std::vector<int>& order) {
    for (size_t i = 0; i < order.size(); ++i) {
      EXPECT_LE(MaxError(run.tracks[i].logits, TrackOf(golden, order[i]).AllLogits()), tolerance)
          << TrackName(order[i]);
    }
  };
  std::vector<int> order(requests.size());
  std::iota(order.begin(), order.end(), 0);
  // The blocks of the longest sequence alone, and of all together; in chunks, because windows
  // release what earlier chunks have computed.
  GoldenRunOptions alone = {
      .block_size = 5, .prefill_chunk = 16, .batching = GoldenRunOptions::Batching::kAlone};
  int alone_blocks = 0;
  {
    SCOPED_TRACE("alone");
    const GoldenRun run = Run(model, requests, alone);
    expect_golden(run, order);
    alone_blocks = run.peak_used_blocks;
  }
  const int all_blocks =
      Run(model, requests, {.block_size = 5, .prefill_chunk = 16}).peak_used_blocks;
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(testing::Message() << "shuffled by seed " << seed);
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    std::vector<Request> shuffled;
    for (const int request : order) shuffled.push_back(requests[request]);
    // Rows for only some requests: the others join when rows end.
    expect_golden(Run(model, shuffled, {.max_num_seqs = 3, .prefill_chunk = 7}), order);
    // Each sequence fits alone, with the null block, but not all together: some are preempted.
    const int num_blocks = std::max(alone_blocks + 2, all_blocks * 2 / 5);
    const GoldenRun crowded =
        Run(model, shuffled, {.block_size = 5, .num_blocks = num_blocks, .prefill_chunk = 16});
    EXPECT_GT(crowded.num_preemptions, 0);
    expect_golden(crowded, order);
  }
}

void ExpectEveryLiveCountIsServed(Model& model, const Golden& golden, double tolerance) {
  // Request i is of prompt i % 5 and ends after i + 2 tokens: the first decode step has 17 rows,
  // the last one.
  constexpr int kNumRequests = 17;
  std::vector<Request> requests;
  std::vector<const GoldenTrack*> tracks;
  for (int i = 0; i < kNumRequests; ++i) {
    const GoldenPrompt& prompt = golden.prompts[i % golden.prompts.size()];
    const GoldenTrack& track = i % 2 == 0 ? prompt.greedy : prompt.forced;
    requests.push_back(ForcedRequest(prompt, track, i + 2));
    requests.back().prefix_salt = std::to_string(i);  // else it would wait for an equal prompt
    tracks.push_back(&track);
  }
  const GoldenRunOptions options = {.graph_sizes = {1, 2, 4, 8, 16},
                                    .mixed_graphs = MixedGraphs::kOff,
                                    .max_num_seqs = kNumRequests};
  const GoldenRun run = Run(model, requests, options);
  for (int i = 0; i < kNumRequests; ++i) {
    EXPECT_LE(MaxError(run.tracks[i].logits, tracks[i]->LogitsBefore(0, i + 2)), tolerance)
        << "request " << i;
  }
  // 17 rows are too many in the step of the prompts and in the first decode step. Decode step s has
  // 18 - s rows: 16 to 9 are padded to 16, 8 to 5 to 8, 4 and 3 to 4.
  EXPECT_EQ(run.report.num_eager_steps(EagerReason::kTooManySeqs), 2);
  EXPECT_EQ(run.report.num_eager_steps(), 2);
  EXPECT_EQ(run.report.num_replays(), 16);
  const auto stats = [&](int size) {
    return run.report.Find({.padded_num_seqs = size, .padded_num_tokens = size});
  };
  for (const auto& [size, replays, padded] :
       std::vector<std::array<int, 3>>{{16, 8, 0 + 1 + 2 + 3 + 4 + 5 + 6 + 7},
                                       {8, 4, 0 + 1 + 2 + 3},
                                       {4, 2, 1},
                                       {2, 1, 0},
                                       {1, 1, 0}}) {
    ASSERT_NE(stats(size), nullptr) << size;
    EXPECT_EQ(stats(size)->num_replays, replays) << size;
    EXPECT_EQ(stats(size)->padded_rows, padded) << size;
  }
}

void ExpectTracksContinuePrompts(Model& model, const Golden& golden, double tolerance) {
  // As many tokens as blocks and chunks have, one fewer, one more; and all but the last.
  const int num_tokens = NumTokens(golden);
  const std::array<int, 5> num_prompted_of = {1, 15, 16, 17, num_tokens - 1};
  std::vector<Request> requests;
  for (size_t i = 0; i < 2 * golden.prompts.size(); ++i) {
    const int request = static_cast<int>(i);
    requests.push_back(PromptedRequest(golden.prompts[i / 2], TrackOf(golden, request),
                                       num_prompted_of[i % num_prompted_of.size()]));
  }
  for (const GoldenRunOptions& options : SomeGoldenRunOptions()) {
    SCOPED_TRACE(ToString(options));
    const GoldenRun run = Run(model, requests, options);
    for (size_t i = 0; i < requests.size(); ++i) {
      const int request = static_cast<int>(i);
      const int num_prompted = num_prompted_of[i % num_prompted_of.size()];
      const GoldenTrack& track = TrackOf(golden, request);
      const GoldenLogits expected = track.LogitsBefore(num_prompted, num_tokens - num_prompted);
      EXPECT_LE(MaxError(run.tracks[i].logits, expected), tolerance) << TrackName(request);
    }
  }
}

void ExpectDecodeStepsAreReplays(Model& model, const Golden& golden) {
  std::vector<Request> requests = TrackRequests(golden);
  // Else the second request of a prompt would wait for the first to compute it.
  for (size_t i = 0; i < requests.size(); ++i) requests[i].prefix_salt = std::to_string(i);
  const GoldenRun run = Run(model, requests, {.mixed_graphs = MixedGraphs::kOff});
  // Each of 10 sequences has num_tokens tokens. The prompts' step computes the first token. That
  // step is a decode step if each prompt has one token.
  const int num_tokens = NumTokens(golden);
  const bool are_single = std::all_of(requests.begin(), requests.end(), [](const Request& request) {
    return request.prompt.size() == 1;
  });
  const int num_eager = are_single ? 0 : 1;
  EXPECT_EQ(run.report.num_eager_steps(), num_eager) << run.report.ToString();
  EXPECT_EQ(run.report.num_eager_steps(EagerReason::kQueryTooLong), num_eager);
  EXPECT_EQ(run.report.num_replays(), num_tokens - num_eager);
  EXPECT_EQ(run.report.live_rows(), num_tokens * 10);
}

}  // namespace reprise
