#include "reprise/runner/testing/input_embeddings_suite.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/blocks/block_manager.h"
#include "reprise/runner/model_runner.h"
#include "reprise/runner/runner_shape.h"
#include "reprise/runner/testing/toy_model.h"

namespace reprise {

// A build without CUDA instantiates no test for a GPU.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(InputEmbeddingsSuite);

namespace {

using ::testing::HasSubstr;
using Mode = GraphSetOptions::Mode;

EmbeddingRows RowsOf(const at::Tensor& rows) {
  // The rows must be complete when a step is launched: item() waits for the stream that computes
  // them.
  if (rows.is_cuda()) static_cast<void>(rows.sum().item<float>());
  return {.data = rows.data_ptr(),
          .row_stride = rows.stride(0),
          .num_rows = static_cast<int>(rows.size(0)),
          .dim = static_cast<int>(rows.size(1)),
          .gpu = rows.is_cuda() ? rows.device().index() : kHostMemory};
}

// The embeddings of tokens [first, first + rows.size(0)) of a prompt.
struct Image {
  int first = 0;
  at::Tensor rows;
};

// A row of a step. A row without tokens decodes.
struct Row {
  int slot = 0;
  std::vector<int32_t> tokens = {};
  std::vector<Image> images = {};       // embeddings of the row's tokens
  std::vector<int32_t> positions = {};  // [dims, tokens]
  RowOutput output = RowOutput::kToken;
};

// A runner of a toy model whose prompts arrive in any chunks.
class Driver {
 public:
  Driver(const ToyModelOptions& model, ModelRunnerOptions options) : model_(model) {
    options.logits.step_logits = StepLogits::kOfEvery;
    auto runner = ModelRunner::Create(&model_, options);
    EXPECT_TRUE(runner.ok()) << runner.status();
    runner_ = *std::move(runner);
    auto blocks = BlockManager::Create(BlockOptionsOf(runner_->shape()));
    EXPECT_TRUE(blocks.ok()) << blocks.status();
    blocks_ = std::make_unique<BlockManager>(*std::move(blocks));
    const c10::StreamGuard guard(runner_->stream());
    EXPECT_TRUE(runner_->kv_cache().Fill(std::numeric_limits<float>::quiet_NaN()).ok());
  }

  void Join(int slot, int position_delta = 0) {
    // Prompts arrive in any number of chunks.
    joins_.push_back(
        {.slot = SlotId(slot), .seq_len = 0, .prompt_len = 0, .position_delta = position_delta});
    EXPECT_TRUE(blocks_->Add(SlotId(slot), 0).ok());
  }

  void Leave(int slot) {
    leaves_.emplace_back(slot);
    EXPECT_TRUE(blocks_->Free(SlotId(slot)).ok());
  }

  // The memory of the batch, except for the embeddings, is freed when Launch() returns.
  absl::StatusOr<int64_t> Launch(const std::vector<Row>& rows) {
    std::vector<ScheduledRow> scheduled;
    std::vector<ScheduledEmbeddings> embeddings;
    for (const Row& row : rows) {
      const int num_tokens = std::max<int>(1, static_cast<int>(row.tokens.size()));
      EXPECT_TRUE(blocks_->Append(SlotId(row.slot), num_tokens).ok());
      for (const Image& image : row.images) {
        embeddings.push_back({.row = static_cast<int>(scheduled.size()),
                              .first_token = image.first,
                              .rows = RowsOf(image.rows)});
      }
      scheduled.push_back({.slot = SlotId(row.slot), .tokens = row.tokens, .output = row.output});
      if (row.positions.empty()) continue;
      scheduled.back().positions = {.data = row.positions.data(),
                                    .dim_stride = num_tokens,
                                    .num_dims = static_cast<int>(row.positions.size()) / num_tokens,
                                    .count = num_tokens};
    }
    const absl::StatusOr<int64_t> ticket = runner_->Launch({.leaves = leaves_,
                                                            .joins = joins_,
                                                            .updates = blocks_->TakeUpdates(),
                                                            .rows = scheduled,
                                                            .embeddings = embeddings});
    leaves_.clear();
    joins_.clear();
    return ticket;
  }

  // Returns the logits [rows, vocab_size] of the step.
  at::Tensor Await(const absl::StatusOr<int64_t>& ticket) {
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    if (!ticket.ok()) return at::Tensor();
    const auto result = runner_->Await(*ticket);
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return at::Tensor();
    decision_ = result->decision;
    tokens_.assign(result->tokens.begin(), result->tokens.end());
    return runner_->logits(*ticket)->to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
  }

  at::Tensor Step(const std::vector<Row>& rows) { return Await(Launch(rows)); }

  const ToyModel& model() const { return model_; }
  ModelRunner& runner() { return *runner_; }
  const GraphDecision& decision() const { return decision_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }

 private:
  ToyModel model_;
  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<BlockManager> blocks_;
  std::vector<SlotId> leaves_;
  std::vector<SlotJoin> joins_;
  GraphDecision decision_;
  std::vector<int32_t> tokens_;
};

ToyModelOptions EmbeddingsModel(c10::Device device, int num_position_dims = 1) {
  return {.takes_embeddings = true, .num_position_dims = num_position_dims, .device = device};
}

ModelRunnerOptions SmallRunner() {
  return {.max_num_seqs = 4, .max_num_tokens = 64, .cache = {.block_size = 4}};
}

std::vector<int32_t> TextOf(int length, int seed) {
  std::vector<int32_t> text;
  for (int i = 0; i < length; ++i) text.push_back((seed * 17 + i * i * 5 + 3 * i) % 61);
  return text;
}

double Difference(const at::Tensor& got, const at::Tensor& want) {
  return (got - want.cpu()).abs().max().item<double>();
}

// How the tokens of a text are replaced by embeddings.
enum class Kind { kAll, kMiddle, kTwoRanges, kWideRows, kOfTheHost };

std::vector<Image> OwnEmbeddings(const ToyModel& model, const std::vector<int32_t>& tokens,
                                 Kind kind) {
  const int n = static_cast<int>(tokens.size());
  const at::Tensor rows = model.Embeddings(tokens);
  const auto part = [&](int first, int count) {
    return Image{.first = first, .rows = rows.narrow(0, first, count)};
  };
  switch (kind) {
    case Kind::kAll:
      return {part(0, n)};
    case Kind::kMiddle:
      return {part(n / 3, n - n / 3 - n / 4)};
    case Kind::kTwoRanges:
      if (n < 2) return {part(0, n)};
      return {part(0, n / 2), part(n / 2, n - n / 2)};
    case Kind::kWideRows:  // rows with gaps
      return {{.first = 0,
               .rows = at::cat({rows, at::full_like(rows, 99)}, 1).narrow(1, 0, rows.size(1))}};
    case Kind::kOfTheHost:
      return {{.first = 0, .rows = rows.cpu()}};
  }
  return {};
}

TEST_P(InputEmbeddingsSuite, EmbeddingsOfATextsTokensMatchTheTextBitwise) {
  const std::vector<std::vector<int>> all_chunks = {{23}, {1, 22}, {5, 9, 9}, {16, 6, 1}};
  for (const Mode mode : {Mode::kOff, Mode::kLazy, Mode::kEager}) {
    ModelRunnerOptions options = SmallRunner();
    options.graphs.mode = mode;
    options.graphs.mixed = MixedGraphs::kOn;
    options.graphs.mixed_tokens = {12, 32};
    options.debug.mixed_graph_sizes = {2, 4};
    Driver text(EmbeddingsModel(GetParam()), options);
    Driver embedded(EmbeddingsModel(GetParam()), options);
    // A neighbour that has only tokens decodes at the same time.
    for (Driver* driver : {&text, &embedded}) {
      driver->Join(3);
      driver->Step({{.slot = 3, .tokens = {1, 2, 3, 4, 5}}});
    }
    for (const std::vector<int>& chunks : all_chunks) {
      for (const Kind kind :
           {Kind::kAll, Kind::kMiddle, Kind::kTwoRanges, Kind::kWideRows, Kind::kOfTheHost}) {
        SCOPED_TRACE(testing::Message() << "mode " << static_cast<int>(mode) << ", first chunk "
                                        << chunks[0] << ", kind " << static_cast<int>(kind));
        const std::vector<int32_t> prompt = TextOf(23, 1);
        for (Driver* driver : {&text, &embedded}) driver->Join(0);
        int first = 0;
        for (const int count : chunks) {
          const std::vector<int32_t> chunk(prompt.begin() + first, prompt.begin() + first + count);
          first += count;
          const auto output = first == 23 ? RowOutput::kToken : RowOutput::kNone;
          const at::Tensor want =
              text.Step({{.slot = 3}, {.slot = 0, .tokens = chunk, .output = output}});
          // Tokens that have embeddings get other ids.
          Row row = {.slot = 0,
                     .tokens = chunk,
                     .images = OwnEmbeddings(embedded.model(), chunk, kind),
                     .output = output};
          for (const Image& image : row.images) {
            std::fill_n(row.tokens.begin() + image.first, image.rows.size(0), 60);
          }
          const at::Tensor got = embedded.Step({{.slot = 3}, row});
          ASSERT_TRUE(at::equal(got, want)) << "to token " << first;
          EXPECT_EQ(embedded.tokens(), text.tokens());
          // The step has the same padding. It uses a graph if the text's step does, except for rows
          // of one token.
          GraphKey key = text.decision().key;
          key.input = StepInput::kEmbeddings;
          EXPECT_EQ(embedded.decision().key, key);
          if (count > 1) {
            EXPECT_EQ(embedded.decision().kind, text.decision().kind);
          }
        }
        // Sampled tokens have no embeddings, so the graphs of token steps decode them.
        for (int i = 0; i < 4; ++i) {
          const std::vector<Row> decode = {{.slot = 0}, {.slot = 3}};
          const at::Tensor want = text.Step(decode);
          ASSERT_TRUE(at::equal(embedded.Step(decode), want)) << "decode step " << i;
          EXPECT_EQ(embedded.decision(), text.decision());
          EXPECT_EQ(embedded.decision().key.input, StepInput::kTokens);
        }
        for (Driver* driver : {&text, &embedded}) driver->Leave(0);
      }
    }
    // Graphs of embeddings replayed every chunk with several tokens, of each kind, and the
    // neighbour's prompt, which has only tokens.
    int64_t num_replays = 0;
    for (const GraphStats& graph : embedded.runner().graph_report().graphs()) {
      if (graph.key.input == StepInput::kEmbeddings) num_replays += graph.num_replays;
    }
    EXPECT_EQ(num_replays, mode == Mode::kOff ? 0 : 1 + 5 * (1 + 1 + 3 + 2));
  }
}

TEST_P(InputEmbeddingsSuite, EmbeddingsDoNotAffectLaterSteps) {
  Driver driver(EmbeddingsModel(GetParam()), SmallRunner());
  const std::vector<int32_t> prompt = TextOf(20, 2);
  const at::Tensor positions = at::arange(20, at::TensorOptions(GetParam()).dtype(at::kInt));
  at::Tensor own, strange;
  {
    // Both are computed on one stream, because `strange` is derived from `own`.
    const c10::StreamGuard guard(driver.runner().stream());
    own = driver.model().Embeddings(prompt);
    strange = at::full({20, own.size(1)}, 0.25, own.options()) + own.flip(0);
  }
  driver.Join(0);
  const at::Tensor all = driver.Step({{.slot = 0, .tokens = prompt, .images = {{0, strange}}}});
  EXPECT_LT(Difference(all[0], driver.model().DenseLogitsOf(strange, positions)), 1e-4);
  // For another prompt at the same rows of the step, only tokens 4 to 6 have embeddings.
  driver.Join(1);
  const at::Tensor some =
      driver.Step({{.slot = 1, .tokens = prompt, .images = {{4, strange.narrow(0, 4, 3)}}}});
  const at::Tensor mixed =
      at::cat({own.narrow(0, 0, 4), strange.narrow(0, 4, 3), own.narrow(0, 7, 13)});
  EXPECT_LT(Difference(some[0], driver.model().DenseLogitsOf(mixed, positions)), 1e-4);
  EXPECT_GT(Difference(some[0], driver.model().DenseLogits(prompt)), 1e-2);
  // A third prompt has no embeddings, but another row of its step has some.
  driver.Join(2);
  driver.Join(3);
  const at::Tensor third =
      driver.Step({{.slot = 2, .tokens = prompt},
                   {.slot = 3, .tokens = prompt, .images = {{19, strange.narrow(0, 0, 1)}}}});
  EXPECT_LT(Difference(third[0], driver.model().DenseLogits(prompt)), 1e-4);
  const at::Tensor last = at::cat({own.narrow(0, 0, 19), strange.narrow(0, 0, 1)});
  EXPECT_LT(Difference(third[1], driver.model().DenseLogitsOf(last, positions)), 1e-4);
}

// One graph of a mixed step serves both: marks of an earlier step must not remain in it.
TEST_P(InputEmbeddingsSuite, AMixedGraphServesTokensAfterEmbeddings) {
  for (const Mode mode : {Mode::kOff, Mode::kEager}) {
    ModelRunnerOptions options = SmallRunner();
    options.graphs.mode = mode;
    options.graphs.mixed = MixedGraphs::kOn;
    options.graphs.mixed_tokens = {12, 32};
    options.debug.mixed_graph_sizes = {2, 4};
    Driver driver(EmbeddingsModel(GetParam()), options);
    const std::vector<int32_t> prompt = TextOf(20, 4);
    const at::Tensor own = driver.model().Embeddings(prompt);
    at::Tensor strange;
    {
      const c10::StreamGuard guard(driver.runner().stream());
      strange = own.flip(0).contiguous();
    }
    for (const int num_given : {20, 3}) {
      SCOPED_TRACE(num_given);
      driver.Join(0);
      driver.Step({{.slot = 0,
                    .tokens = prompt,
                    .images = {{20 - num_given, strange.narrow(0, 0, num_given)}}}});
      EXPECT_EQ(driver.decision().key.input, StepInput::kEmbeddings);
      driver.Join(1);
      const at::Tensor text = driver.Step({{.slot = 1, .tokens = prompt}});
      EXPECT_EQ(driver.decision().key.input, StepInput::kEmbeddings);
      EXPECT_EQ(driver.decision().key.padded_num_tokens, 32);
      EXPECT_EQ(driver.decision().kind,
                mode == Mode::kOff ? GraphDecision::Kind::kEager : GraphDecision::Kind::kReplay);
      EXPECT_LT(Difference(text[0], driver.model().DenseLogits(prompt)), 1e-4);
      for (const int slot : {0, 1}) driver.Leave(slot);
    }
    int num_mixed = 0;
    for (const GraphStats& graph : driver.runner().graph_report().graphs()) {
      num_mixed += graph.key.max_query_len > 1 ? 1 : 0;
    }
    EXPECT_EQ(num_mixed, mode == Mode::kOff ? 0 : 4);  // {12, 32} x {2, 4}, each captured once
  }
}

TEST_P(InputEmbeddingsSuite, StepsInFlightReadSeparateEmbeddings) {
  ModelRunnerOptions options = SmallRunner();
  options.max_steps_in_flight = 2;
  Driver driver(EmbeddingsModel(GetParam()), options);
  const std::vector<int32_t> prompt = TextOf(20, 3);
  const at::Tensor own = driver.model().Embeddings(prompt);
  const at::Tensor positions = at::arange(20, at::TensorOptions(GetParam()).dtype(at::kInt));
  std::vector<at::Tensor> images;
  {
    const c10::StreamGuard guard(driver.runner().stream());
    for (int i = 0; i < 2; ++i) images.push_back(own.flip(0) * (i + 1));
  }
  std::vector<absl::StatusOr<int64_t>> tickets;
  for (int slot : {0, 1}) {
    driver.Join(slot);
    tickets.push_back(
        driver.Launch({{.slot = slot, .tokens = prompt, .images = {{0, images[slot]}}}}));
  }
  for (int slot : {0, 1}) {
    const at::Tensor logits = driver.Await(tickets[slot]);
    EXPECT_LT(Difference(logits[0], driver.model().DenseLogitsOf(images[slot], positions)), 1e-4)
        << slot;
  }
}

// ---- Positions with several dimensions.

// Returns M-RoPE's positions [3][n] of `num_text` tokens, an image of height x width tokens, and
// again `num_text` tokens. By the definition, text counts up in all dimensions, starting one beyond
// the largest position so far. An image has a single time, and counts rows and columns from there.
std::vector<std::vector<int32_t>> MropePositions(int num_text, int height, int width) {
  std::vector<std::vector<int32_t>> positions(3);
  int32_t next = 0;
  const auto text = [&] {
    for (int i = 0; i < num_text; ++i, ++next) {
      for (auto& dim : positions) dim.push_back(next);
    }
  };
  text();
  for (int i = 0; i < height * width; ++i) {
    positions[0].push_back(next);
    positions[1].push_back(next + i / width);
    positions[2].push_back(next + i % width);
  }
  next += std::max(height, width);
  text();
  return positions;
}

// Returns the positions of tokens [first, first + count), in the layout of a row.
std::vector<int32_t> Part(const std::vector<std::vector<int32_t>>& positions, int first,
                          int count) {
  std::vector<int32_t> part;
  for (const std::vector<int32_t>& dim : positions) {
    part.insert(part.end(), dim.begin() + first, dim.begin() + first + count);
  }
  return part;
}

at::Tensor TensorOf(const std::vector<std::vector<int32_t>>& positions, c10::Device device) {
  const int64_t n = static_cast<int64_t>(positions[0].size());
  return at::tensor(Part(positions, 0, static_cast<int>(n)), at::kInt).view({3, n}).to(device);
}

TEST_P(InputEmbeddingsSuite, MropePositionsMatchTheDefinition) {
  for (const Mode mode : {Mode::kOff, Mode::kLazy, Mode::kEager}) {
    for (const std::vector<int>& chunks : std::vector<std::vector<int>>{{22}, {7, 9, 6}, {21, 1}}) {
      SCOPED_TRACE(testing::Message()
                   << "mode " << static_cast<int>(mode) << ", first chunk " << chunks[0]);
      ModelRunnerOptions options = SmallRunner();
      options.graphs.mode = mode;
      Driver driver(EmbeddingsModel(GetParam(), /*num_position_dims=*/3), options);
      const std::vector<int32_t> prompt = TextOf(22, 4);
      std::vector<std::vector<int32_t>> positions = MropePositions(5, 3, 4);
      std::vector<int32_t> text = prompt;
      const int delta = positions[0].back() + 1 - 22;
      ASSERT_LT(delta, 0);
      driver.Join(0, delta);
      driver.Join(1);  // a neighbour without given positions
      std::vector<int32_t> other = TextOf(6, 5);
      driver.Step({{.slot = 1, .tokens = other}});
      other.push_back(driver.tokens()[0]);
      int first = 0;
      at::Tensor logits;
      for (const int count : chunks) {
        logits = driver.Step({{.slot = 1},
                              {.slot = 0,
                               .tokens = {prompt.begin() + first, prompt.begin() + first + count},
                               .positions = Part(positions, first, count)}});
        first += count;
        EXPECT_LT(Difference(logits[0], driver.model().DenseLogits(other)), 1e-4);
        other.push_back(driver.tokens()[0]);
        EXPECT_LT(
            Difference(logits[1], driver.model().DenseLogitsOf(
                                      driver.model().Embeddings({prompt.data(), size_t(first)}),
                                      TensorOf(positions, GetParam()).narrow(1, 0, first))),
            1e-4);
      }
      text.push_back(driver.tokens()[1]);
      for (int step = 0; step < 6; ++step) {
        for (auto& dim : positions) {
          dim.push_back(static_cast<int32_t>(text.size()) - 1 + delta);
        }
        logits = driver.Step({{.slot = 0}});
        EXPECT_LT(
            Difference(logits[0], driver.model().DenseLogitsOf(driver.model().Embeddings(text),
                                                               TensorOf(positions, GetParam()))),
            1e-4)
            << "decode step " << step;
        if (mode != Mode::kOff) {
          EXPECT_EQ(driver.decision().kind, GraphDecision::Kind::kReplay);
        }
        text.push_back(driver.tokens()[0]);
      }
      // After a preemption, the known tokens are computed again in another slot.
      driver.Leave(0);
      driver.Join(2, delta);
      std::vector<int32_t> known(text.begin(), text.end() - 1);
      Row row = {.slot = 2, .tokens = known};
      const int n = static_cast<int>(known.size());
      row.positions = Part(positions, 0, n);
      EXPECT_LT(Difference(driver.Step({row})[0], logits[0]), 1e-4);
    }
  }
}

TEST_P(InputEmbeddingsSuite, PositionsMayEndWithinARow) {
  Driver driver(EmbeddingsModel(GetParam(), /*num_position_dims=*/3), SmallRunner());
  const std::vector<int32_t> text = TextOf(24, 6);
  std::vector<std::vector<int32_t>> positions = MropePositions(5, 3, 4);
  const int delta = positions[0].back() + 1 - 22;
  const std::vector<int32_t> given = Part(positions, 0, 22);
  driver.Join(0, delta);
  const ScheduledRow row[] = {
      {.slot = SlotId(0),
       .tokens = text,
       .positions = {.data = given.data(), .dim_stride = 22, .num_dims = 3, .count = 22}}};
  std::vector<BlockTableUpdate> updates;
  for (int column = 0; column < 6; ++column)
    updates.push_back({.slot = SlotId(0), .column = column, .block = BlockId(1 + column)});
  const SlotJoin join[] = {
      {.slot = SlotId(0), .seq_len = 0, .prompt_len = 22, .position_delta = delta}};
  const auto result = driver.runner().Step({.joins = join, .updates = updates, .rows = row});
  ASSERT_TRUE(result.ok()) << result.status();
  for (int i : {22, 23}) {
    for (auto& dim : positions) dim.push_back(i + delta);
  }
  EXPECT_LT(Difference((*driver.runner().logits(result->step))[0].cpu(),
                       driver.model().DenseLogitsOf(driver.model().Embeddings(text),
                                                    TensorOf(positions, GetParam()))),
            1e-4);
}

// ---- Errors.

TEST_P(InputEmbeddingsSuite, RunnerStaysUsableAfterARejectedBatch) {
  Driver driver(EmbeddingsModel(GetParam()), SmallRunner());
  driver.Join(0);
  const std::vector<int32_t> prompt = TextOf(9, 7);
  driver.Step({{.slot = 0, .tokens = prompt}});
  const at::Tensor rows = driver.model().Embeddings(prompt);
  const std::vector<int32_t> more = {1, 2, 3};
  const ScheduledRow row[] = {{.slot = SlotId(0), .tokens = more}};
  const auto refused = [&](const EmbeddingRows& wrong) {
    const ScheduledEmbeddings range[] = {{.rows = wrong}};
    const absl::Status status = driver.runner().Launch({.rows = row, .embeddings = range}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refused(RowsOf(rows)), HasSubstr("tokens must lie within the 3 tokens of row 0"));
  EXPECT_THAT(refused(RowsOf(rows.narrow(0, 0, 2).narrow(1, 0, 47))),
              HasSubstr("dim must be 48: got 47"));
  EmbeddingRows elsewhere = RowsOf(rows.narrow(0, 0, 3));
  elsewhere.gpu = 7;
  EXPECT_THAT(refused(elsewhere), HasSubstr("got GPU 7"));
  EXPECT_THAT(std::string(driver.runner().CheckEmbeddings("image", elsewhere).message()),
              HasSubstr("image: rows must be in memory of"));
  EXPECT_TRUE(driver.runner().CheckEmbeddings("image", RowsOf(rows)).ok());
  std::vector<int32_t> text = prompt;
  text.push_back(driver.tokens()[0]);
  EXPECT_LT(Difference(driver.Step({{.slot = 0}})[0], driver.model().DenseLogits(text)), 1e-4);
}

// Requests its embeddings with another shape or dtype.
class CarelessModel : public ToyModel {
 public:
  explicit CarelessModel(c10::Device device) : ToyModel(EmbeddingsModel(device)) {}
  absl::StatusOr<at::Tensor> Forward(const Step& step) override {
    if (is_careless) {
      const at::Tensor ids = step.token_ids();
      REPRISE_RETURN_IF_ERROR(
          step.Embed(at::zeros({ids.size(0), width}, ids.options().dtype(dtype))).status());
    }
    return ToyModel::Forward(step);
  }
  bool is_careless = false;
  int64_t width = 48;
  at::ScalarType dtype = at::kFloat;
};

TEST_P(InputEmbeddingsSuite, ReportsModelsThatRequestTheWrongEmbeddings) {
  CarelessModel model(GetParam());
  // Without graphs, because a graph would already have requested the embeddings during its capture.
  auto runner = ModelRunner::Create(
      &model,
      {.max_num_seqs = 1, .max_num_tokens = 8, .graphs = {.mode = GraphSetOptions::Mode::kOff}});
  ASSERT_TRUE(runner.ok()) << runner.status();
  model.is_careless = true;
  const std::vector<int32_t> prompt = {1, 2, 3};
  const at::Tensor rows = model.Embeddings(prompt);
  const SlotId slot[] = {SlotId(0)};
  const SlotJoin join[] = {JoinOf(SlotId(0), {}, prompt.size())};
  const BlockTableUpdate update[] = {{.slot = SlotId(0), .column = 0, .block = BlockId(1)}};
  const ScheduledRow row[] = {{.slot = SlotId(0), .tokens = prompt}};
  const ScheduledEmbeddings range[] = {{.rows = RowsOf(rows)}};
  const auto step = [&] {
    const auto result = (*runner)->Step(
        {.leaves = slot, .joins = join, .updates = update, .rows = row, .embeddings = range});
    return std::string(result.status().message());
  };
  model.width = 47;
  EXPECT_THAT(step(), HasSubstr("from_ids"));
  model.width = 48;
  model.dtype = at::kHalf;
  EXPECT_THAT(step(), HasSubstr("float32: expected float32, got float16"));
  model.dtype = at::kFloat;
  EXPECT_EQ(step(), "");
}

}  // namespace
}  // namespace reprise
