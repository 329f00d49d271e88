// Prompts with embeddings and positions: the contents of their chunks, and their prefix hits.

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/engine/engine.h"
#include "reprise/engine/scheduler.h"
#include "reprise/engine/testing/borrowed_runner.h"
#include "reprise/engine/testing/puppet_device.h"
#include "reprise/engine/testing/puppet_runner.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

// Returns the 9 rows of an image. A range may use fewer of them.
const std::vector<float>& Image(int number) {
  static const auto* const images = [] {
    auto* made = new std::vector<std::vector<float>>(4);
    for (int image = 0; image < 4; ++image) {
      for (int i = 0; i < 9; ++i) (*made)[image].push_back(static_cast<float>(100 * image + i));
    }
    return made;
  }();
  return (*images)[number];
}

RequestEmbeddings Range(int first_token, int image, int num_tokens = 9) {
  return {.first_token = first_token,
          .rows = {.data = Image(image).data(), .row_stride = 1, .num_rows = num_tokens, .dim = 1}};
}

// Returns the greedy text of a request without other requests.
std::vector<int32_t> TextAlone(const Request& request, int num_dims) {
  const int num_prompt = static_cast<int>(request.prompt.size());
  std::vector<const float*> given(num_prompt, nullptr);
  for (const RequestEmbeddings& range : request.embeddings) {
    for (int i = 0; i < range.rows.num_rows; ++i) {
      given[range.first_token + i] = static_cast<const float*>(range.rows.row(i));
    }
  }
  const int32_t last = request.positions.empty()
                           ? num_prompt - 1
                           : *std::max_element(request.positions.begin(), request.positions.end());
  std::vector<int32_t> text;
  const auto push = [&](int32_t token) {
    const int i = static_cast<int>(text.size());
    std::vector<int32_t> positions;
    for (int dim = 0; num_dims > 1 && dim < num_dims; ++dim) {
      positions.push_back(i >= num_prompt             ? last + 1 + i - num_prompt
                          : request.positions.empty() ? i
                                                      : request.positions[dim * num_prompt + i]);
    }
    text.push_back(PuppetContent(token, i < num_prompt ? given[i] : nullptr, positions));
  };
  for (const int32_t token : request.prompt) push(token);
  std::vector<int32_t> tokens;
  while (static_cast<int>(tokens.size()) < request.max_new_tokens) {
    tokens.push_back(PuppetToken({}, text, {}, static_cast<int64_t>(tokens.size())).value());
    push(tokens.back());
  }
  return tokens;
}

// Runs a scheduler over a PuppetDevice. Collects the texts by request and sample.
class SchedulerRun {
 public:
  explicit SchedulerRun(const SchedulerOptions& options) : device_(options) {
    auto scheduler = Scheduler::Create(options);
    EXPECT_TRUE(scheduler.ok()) << scheduler.status();
    scheduler_ = *std::move(scheduler);
  }

  int64_t Add(const Request& request) {
    const auto id = scheduler_->Add(request);
    EXPECT_TRUE(id.ok()) << id.status();
    return id.ok() ? id->value() : -1;
  }

  void Step() {
    if (scheduler_->can_schedule()) {
      const ScheduledBatch& batch = scheduler_->Schedule();
      if (!batch.rows.empty()) device_.Launch(batch);
    }
    if (scheduler_->num_in_flight() > 0) {
      std::vector<TokenEvent> events;
      scheduler_->Commit(*device_.Await(), events);
      for (const TokenEvent& event : events) {
        texts_[{event.sequence.value(), event.sample}].push_back(event.token.value_or(-1));
        if (event.finish != FinishReason::kNone) finish_[event.sequence.value()] = event.finish;
      }
    }
    scheduler_->CheckInvariants();
  }

  void Finish() {
    while (scheduler_->has_work() && !testing::Test::HasFatalFailure()) Step();
  }

  Scheduler& scheduler() { return *scheduler_; }
  const std::vector<int32_t>& text(int64_t id, int sample = 0) { return texts_[{id, sample}]; }
  FinishReason finish(int64_t id) { return finish_[id]; }
  int64_t num_hit() const { return scheduler_->prefix_statistics().num_tokens_hit; }

 private:
  PuppetDevice device_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<std::pair<int64_t, int>, std::vector<int32_t>> texts_;
  std::map<int64_t, FinishReason> finish_;
};

constexpr SchedulerOptions Roomy() {
  return {.shape = {.max_num_seqs = 4,
                    .max_num_tokens = 64,
                    .max_seq_len = 64,
                    .num_blocks = 60,
                    .block_size = 4}};
}

Request Placeholders(std::vector<RequestEmbeddings> embeddings) {
  return {.prompt = std::vector<int32_t>(18, 7),
          .embeddings = std::move(embeddings),
          .max_new_tokens = 3};
}

TEST(SchedulerEmbeddingsTest, PromptsShareKeysOnlyIfTheirImagesAreEqual) {
  struct Case {
    Request second;
    int num_found;  // tokens; the prompt has 4 full blocks
  };
  // The first prompt has image 0 at tokens 5 to 13, after 5 tokens of text.
  const std::vector<Case> cases = {{Placeholders({Range(5, 0)}), 16},
                                   {Placeholders({Range(5, 1)}), 4},
                                   {Placeholders({}), 4},
                                   {Placeholders({Range(6, 0)}), 4},
                                   {Placeholders({Range(5, 0, 8)}), 4},
                                   {Placeholders({Range(5, 0), Range(14, 0, 1)}), 12},
                                   {Placeholders({Range(5, 0), Range(16, 0, 1)}), 16},
                                   {Placeholders({Range(4, 0)}), 4},
                                   {Placeholders({Range(3, 0)}), 0}};
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "case " << i);
    SchedulerRun run(Roomy());
    const Request first = Placeholders({Range(5, 0)});
    const int64_t a = run.Add(first);
    run.Finish();
    const int64_t b = run.Add(cases[i].second);
    run.Finish();
    EXPECT_EQ(run.text(a), TextAlone(first, 1));
    EXPECT_EQ(run.text(b), TextAlone(cases[i].second, 1));
    EXPECT_EQ(run.num_hit(), cases[i].num_found);
  }
}

TEST(SchedulerEmbeddingsTest, PrefixHitMayEndWithinAnImage) {
  SchedulerOptions options = Roomy();
  options.policy.prefill_chunk = 3;
  SchedulerRun run(options);
  const Request first = Placeholders({Range(5, 2)});
  run.Add(first);
  run.Finish();
  Request other = first;
  other.prompt[15] = 8;  // text after the image
  EXPECT_EQ(run.num_hit(), 0);
  const int64_t id = run.Add(other);
  const int64_t shorter = [&] {
    Request cut = first;
    cut.prompt.resize(14);  // at most 13 tokens can be hit: 3 blocks, which end within the image
    return run.Add(cut);
  }();
  run.Finish();
  EXPECT_EQ(run.num_hit(), 12 + 12);
  EXPECT_EQ(run.text(id), TextAlone(other, 1));
  EXPECT_THAT(run.text(shorter), SizeIs(3));
}

TEST(SchedulerEmbeddingsTest, PromptsWaitOnlyForEqualContent) {
  SchedulerOptions options = Roomy();
  options.policy.prefill_chunk = 8;
  const auto num_first_rows = [&](const Request& second) {
    SchedulerRun run(options);
    run.Add(Placeholders({Range(0, 0)}));
    run.Add(second);
    const size_t num_rows = run.scheduler().Schedule().rows.size();
    return num_rows;
  };
  EXPECT_EQ(num_first_rows(Placeholders({Range(0, 0)})), 1u);
  EXPECT_EQ(num_first_rows(Placeholders({Range(0, 1)})), 2u);
  EXPECT_EQ(num_first_rows(Placeholders({Range(0, 0, 8)})), 2u);
  EXPECT_EQ(num_first_rows(Placeholders({Range(0, 0), Range(12, 1, 2)})), 1u);
}

// Returns a random request with text, a few different images and, for several dimensions, often
// M-RoPE positions. Shared prefixes end anywhere. Used with chunks, forks, preemption and several
// steps in flight.
Request RandomRequest(std::mt19937& random, int num_dims) {
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  Request request = {.max_new_tokens = 1 + below(8), .num_sequences = below(5) == 0 ? 3 : 1};
  std::vector<std::vector<int32_t>> dims(num_dims);
  int32_t next = 0;
  const bool has_grid = below(2) == 0;
  for (int part = 1 + below(4); part > 0; --part) {
    const bool is_image = below(2) == 0;
    const int length = is_image ? (below(2) == 0 ? 9 : 4) : 1 + below(7);
    const int width = length == 9 ? 3 : 2;
    const int first = static_cast<int>(request.prompt.size());
    if (is_image) request.embeddings.push_back(Range(first, below(3), length));
    for (int i = 0; i < length; ++i) {
      request.prompt.push_back(is_image ? 7 : below(2));
      for (int dim = 0; dim < num_dims; ++dim) {
        const int in_grid = dim == 0 ? 0 : dim == 1 ? i / width : i % width;
        dims[dim].push_back(next + (is_image && has_grid ? in_grid : i));
      }
    }
    next += is_image && has_grid ? width : length;
  }
  if (num_dims > 1 && below(4) != 0) {
    for (const auto& dim : dims) {
      request.positions.insert(request.positions.end(), dim.begin(), dim.end());
    }
  }
  return request;
}

TEST(SchedulerEmbeddingsTest, TextsDoNotDependOnOtherRequests) {
  struct Case {
    int num_dims;
    int max_num_seqs;
    int prefill_chunk;
    int num_blocks;
    int max_steps_in_flight;
    PartialHits partial_hits;
  };
  const Case cases[] = {
      {1, 4, 0, 200, 1, PartialHits::kNone},  {1, 4, 5, 24, 2, PartialHits::kNone},
      {1, 3, 3, 24, 1, PartialHits::kCopied}, {3, 4, 0, 200, 1, PartialHits::kCopied},
      {3, 4, 4, 24, 3, PartialHits::kNone},   {3, 5, 7, 26, 2, PartialHits::kCopied}};
  int64_t num_preemptions = 0;
  int64_t num_forks = 0;
  for (const Case& c : cases) {
    const int seed = 31 + c.num_dims + c.num_blocks;
    SCOPED_TRACE(testing::Message()
                 << c.num_dims << " dimensions, " << c.num_blocks << " blocks, seed " << seed);
    std::mt19937 random(seed);
    SchedulerRun run(
        {.shape = {.max_num_seqs = c.max_num_seqs,
                   .max_num_tokens = 40,
                   .max_seq_len = 60,
                   .max_steps_in_flight = c.max_steps_in_flight,
                   .num_blocks = c.num_blocks,
                   .block_size = 3,
                   .num_position_dims = c.num_dims,
                   .max_position = 100},
         .policy = {.prefill_chunk = c.prefill_chunk, .partial_hits = c.partial_hits}});
    std::map<int64_t, Request> requests;
    for (int i = 0; i < 120; ++i) {
      Request request = RandomRequest(random, c.num_dims);
      const int64_t id = run.Add(request);
      requests[id] = std::move(request);
      for (int step = static_cast<int>(random() % 4); step > 0; --step) run.Step();
      ASSERT_FALSE(testing::Test::HasFailure());
    }
    run.Finish();
    for (const auto& [id, request] : requests) {
      for (int sample = 0; sample < request.num_sequences; ++sample) {
        ASSERT_EQ(run.text(id, sample), TextAlone(request, c.num_dims)) << "request " << id;
      }
    }
    EXPECT_GT(run.num_hit(), 100);
    num_preemptions += run.scheduler().num_preemptions();
    num_forks += run.scheduler().num_forks();
  }
  EXPECT_GT(num_preemptions, 20);
  EXPECT_GT(num_forks, 20);
}

// ---- Positions.

// Returns positions [2, n] of text. Tokens from 5 are `jump` further in the second dimension.
std::vector<int32_t> JumpAt5(int n, int jump) {
  std::vector<int32_t> positions;
  for (int dim = 0; dim < 2; ++dim) {
    for (int i = 0; i < n; ++i) positions.push_back(i + (dim == 1 && i >= 5 ? jump : 0));
  }
  return positions;
}

TEST(SchedulerEmbeddingsTest, EqualTokensAtDifferentPositionsDoNotShareKeys) {
  SchedulerOptions options = Roomy();
  options.shape.num_position_dims = 2;
  options.shape.max_position = 64;
  SchedulerRun run(options);
  Request request = {.prompt = std::vector<int32_t>(18, 7), .max_new_tokens = 2};
  const std::vector<int> found = {0, 16, 4, 16, 16};
  const std::vector<std::vector<int32_t>> positions = {
      {}, JumpAt5(18, 0), JumpAt5(18, 3), JumpAt5(18, 3), {}};
  int64_t num_hit = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "request " << i);
    request.positions = positions[i];
    const int64_t id = run.Add(request);
    run.Finish();
    EXPECT_EQ(run.text(id), TextAlone(request, 2));
    EXPECT_EQ(run.num_hit() - num_hit, found[i]);
    num_hit = run.num_hit();
  }
}

TEST(SchedulerEmbeddingsTest, SequenceEndsAtTheMaximumPosition) {
  SchedulerOptions options = Roomy();
  options.shape.num_position_dims = 2;
  options.shape.max_seq_len = 40;
  options.shape.max_position = 40;
  SchedulerRun run(options);
  // Generated tokens continue at 31. 9 of them have a position; the last token needs none.
  Request request = {
      .prompt = std::vector<int32_t>(18, 7), .positions = JumpAt5(18, 13), .max_new_tokens = 100};
  const int64_t id = run.Add(request);
  run.Finish();
  EXPECT_THAT(run.text(id), SizeIs(10));
  EXPECT_EQ(run.finish(id), FinishReason::kLength);
  request.max_new_tokens = 10;
  EXPECT_EQ(run.text(id), TextAlone(request, 2));
}

TEST(SchedulerEmbeddingsTest, ForcedTokensInChunksEndAtTheMaximumPosition) {
  SchedulerOptions options = Roomy();
  options.shape.num_position_dims = 2;
  options.shape.max_seq_len = 40;
  options.shape.max_position = 40;
  options.shape.max_earlier_logits = 16;
  SchedulerRun run(options);
  const int64_t id = run.Add({.prompt = std::vector<int32_t>(18, 7),
                              .positions = JumpAt5(18, 13),
                              .forced_tokens = std::vector<int32_t>(20, 3)});
  run.Finish();
  EXPECT_EQ(run.text(id), std::vector<int32_t>(10, 3));
  EXPECT_EQ(run.finish(id), FinishReason::kLength);
}

TEST(SchedulerEmbeddingsTest, RejectsInvalidEmbeddingsPositionsAndOptions) {
  SchedulerRun run(Roomy());
  const auto refused = [&](const Request& request) {
    const auto id = run.scheduler().Add(request);
    EXPECT_EQ(id.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(id.status().message());
  };
  EXPECT_THAT(refused(Placeholders({Range(10, 0)})), HasSubstr("embeddings[0]"));
  EXPECT_THAT(refused({.prompt = {1}, .positions = {1}}), HasSubstr("positions"));
  EXPECT_FALSE(run.scheduler().has_work());
  SchedulerOptions options = Roomy();
  options.shape.num_position_dims = 0;
  EXPECT_THAT(std::string(Scheduler::Create(options).status().message()),
              HasSubstr("num_position_dims"));
  options.shape.num_position_dims = 3;
  EXPECT_THAT(std::string(Scheduler::Create(options).status().message()),
              HasSubstr("max_position must be at least 64: got 0"));
}

// ---- The engine.

TEST(SchedulerEmbeddingsTest, AddRejectsEmbeddingsIfTheRunnerTakesNone) {
  PuppetRunner runner(Roomy());
  auto engine = Engine::Create(Borrowed(runner), {.scheduler = Roomy().policy});
  ASSERT_TRUE(engine.ok()) << engine.status();
  const auto id = (*engine)->Add(Placeholders({Range(5, 0)}));
  EXPECT_EQ(id.status().message(),
            "embeddings[0]: the model takes token ids only: expected none, got 9 rows");
  EXPECT_FALSE((*engine)->has_work());
}

TEST(SchedulerEmbeddingsTest, OwnerIsReleasedAfterTheLastStepThatReadsTheRows) {
  SchedulerOptions options = Roomy();
  options.shape.max_steps_in_flight = 2;
  auto scheduler = Scheduler::Create(options);
  ASSERT_TRUE(scheduler.ok()) << scheduler.status();
  PuppetDevice device(options);
  auto owner = std::make_shared<int>(1);
  const std::weak_ptr<int> alive = owner;
  Request request = Placeholders({Range(5, 0)});
  request.embeddings[0].owner = std::move(owner);
  const auto id = (*scheduler)->Add(std::move(request));
  ASSERT_TRUE(id.ok()) << id.status();
  device.Launch((*scheduler)->Schedule());
  std::vector<TokenEvent> events;
  ASSERT_TRUE((*scheduler)->Cancel(*id, events).ok());
  EXPECT_FALSE(alive.expired());  // the step reads them
  (*scheduler)->Commit(*device.Await(), events);
  EXPECT_TRUE(alive.expired());
}

}  // namespace
}  // namespace reprise
