// Embeddings and positions of requests, from Add() to the tokens, over a model.

#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/engine/create_engine.h"
#include "reprise/engine/testing/run_all.h"
#include "reprise/runner/testing/toy_model.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

int64_t Add(Engine& engine, const Request& request) {
  const auto id = engine.Add(request);
  EXPECT_TRUE(id.ok()) << id.status();
  return id.ok() ? id->value() : -1;
}

RequestEmbeddings Embeddings(int first_token, const at::Tensor& rows, std::string content = "") {
  auto embeddings = RequestEmbeddingsOf(first_token, rows, std::move(content));
  EXPECT_TRUE(embeddings.ok()) << embeddings.status();
  return *std::move(embeddings);
}

// Returns the greedy text after n tokens with these embeddings and positions [dims][n].
std::vector<int32_t> DenseGreedy(const ToyModel& model, at::Tensor embeddings,
                                 std::vector<std::vector<int32_t>> positions, int num_new) {
  std::vector<int32_t> tokens;
  int32_t next = 0;
  for (const auto& dim : positions) {
    next = std::max(next, *std::max_element(dim.begin(), dim.end()) + 1);
  }
  for (int i = 0; i < num_new; ++i) {
    std::vector<int32_t> all;
    for (auto& dim : positions) all.insert(all.end(), dim.begin(), dim.end());
    const at::Tensor where = at::tensor(all, at::kInt).view({int64_t(positions.size()), -1});
    tokens.push_back(
        static_cast<int32_t>(model.DenseLogitsOf(embeddings, where).argmax().item<int64_t>()));
    embeddings = at::cat({embeddings, model.Embeddings({&tokens.back(), 1})});
    for (auto& dim : positions) dim.push_back(next);
    ++next;
  }
  return tokens;
}

std::vector<int32_t> Counting(int n) {
  std::vector<int32_t> positions;
  for (int i = 0; i < n; ++i) positions.push_back(i);
  return positions;
}

std::vector<int32_t> SomeText(int n, int seed) {
  std::vector<int32_t> text;
  for (int i = 0; i < n; ++i) text.push_back((seed * 23 + i * i * 7 + i) % 61);
  return text;
}

ModelEngineOptions Small(int prefill_chunk = 0) {
  return {.runner = {.max_num_seqs = 3, .max_num_tokens = 32, .cache = {.block_size = 4}},
          .scheduler = {.prefill_chunk = prefill_chunk}};
}

TEST(EngineEmbeddingsTest, EmbeddingsOfTokensMatchTheirTokenIds) {
  ToyModel model({.takes_embeddings = true});
  for (const int chunk : {0, 1, 5, 7}) {
    SCOPED_TRACE(testing::Message() << "chunks of " << chunk);
    auto engine = CreateEngine(&model, Small(chunk));
    ASSERT_TRUE(engine.ok()) << engine.status();
    const std::vector<int32_t> text = SomeText(21, 1);
    const Request plain = {.prompt = text, .max_new_tokens = 9};
    Request embedded = plain;
    std::fill(embedded.prompt.begin() + 3, embedded.prompt.end() - 2, 0);
    embedded.embeddings = {Embeddings(3, model.Embeddings(text).narrow(0, 3, 16), "its own")};
    const int64_t a = Add(**engine, plain);
    const int64_t b = Add(**engine, embedded);
    const auto texts = RunAll(**engine);
    EXPECT_EQ(texts.at(a), texts.at(b));
    EXPECT_EQ(texts.at(a), DenseGreedy(model, model.Embeddings(text), {Counting(21)}, 9));
  }
}

// All images have the same placeholder ids. Only their rows differ.
TEST(EngineEmbeddingsTest, ImagesWithEqualPlaceholdersAreKeptApart) {
  ToyModel model({.takes_embeddings = true});
  const std::vector<int32_t> prompt(19, 7);
  const at::Tensor own = model.Embeddings(prompt);
  std::vector<at::Tensor> images;
  for (int i = 0; i < 3; ++i) images.push_back(model.Embeddings(SomeText(9, 40 + i)));
  // The second case has too few blocks for all sequences, which causes preemptions.
  for (const int num_blocks : {60, 16}) {
    SCOPED_TRACE(testing::Message() << num_blocks << " blocks");
    ModelEngineOptions options = Small(/*prefill_chunk=*/6);
    options.runner.cache.size = NumBlocks{num_blocks};
    auto engine = CreateEngine(&model, options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    std::map<int64_t, int> image_of;
    for (int round = 0; round < 3; ++round) {
      for (int i = 0; i < 3; ++i) {
        const Request request = {.prompt = prompt,
                                 // Identified by name in the second round, and by bytes
                                 // otherwise.
                                 .embeddings = {Embeddings(
                                     6, images[i], round == 1 ? "image " + std::to_string(i) : "")},
                                 .max_new_tokens = 12};
        image_of[Add(**engine, request)] = i;
      }
    }
    const auto texts = RunAll(**engine);
    for (const auto& [id, image] : image_of) {
      const at::Tensor rows = at::cat({own.narrow(0, 0, 6), images[image], own.narrow(0, 15, 4)});
      EXPECT_EQ(texts.at(id), DenseGreedy(model, rows, {Counting(19)}, 12)) << "image " << image;
    }
    EXPECT_GT((*engine)->scheduler().prefix_statistics().num_tokens_hit, 0);
    if (num_blocks == 16) {
      EXPECT_GT((*engine)->metrics().num_preemptions, 0);
    }
  }
}

TEST(EngineEmbeddingsTest, MropePositionsContinueAfterThePromptAndAPreemption) {
  ToyModel model({.takes_embeddings = true, .num_position_dims = 3});
  // 4 tokens of text, an image of 3 x 3, 5 tokens of text.
  std::vector<std::vector<int32_t>> positions(3);
  for (int dim = 0; dim < 3; ++dim) {
    positions[dim] = Counting(4);
    for (int i = 0; i < 9; ++i) {
      positions[dim].push_back(4 + (dim == 0 ? 0 : dim == 1 ? i / 3 : i % 3));
    }
    for (int i = 0; i < 5; ++i) positions[dim].push_back(7 + i);
  }
  std::vector<int32_t> flat;
  for (const auto& dim : positions) flat.insert(flat.end(), dim.begin(), dim.end());
  const at::Tensor image = model.Embeddings(SomeText(9, 3));
  for (const int num_blocks : {60, 14}) {
    SCOPED_TRACE(testing::Message() << num_blocks << " blocks");
    ModelEngineOptions options = Small(/*prefill_chunk=*/7);
    options.runner.cache.size = NumBlocks{num_blocks};
    auto engine = CreateEngine(&model, options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    std::map<int64_t, std::vector<int32_t>> expected;
    for (int i = 0; i < 4; ++i) {
      const std::vector<int32_t> prompt = SomeText(18, i / 2);
      const bool is_placed = i % 2 == 0;  // equal tokens, with and without positions
      const Request request = {.prompt = prompt,
                               .embeddings = {Embeddings(4, image)},
                               .positions = is_placed ? flat : std::vector<int32_t>(),
                               .max_new_tokens = 14};
      at::Tensor rows = model.Embeddings(prompt);
      rows.narrow(0, 4, 9).copy_(image);
      const std::vector<std::vector<int32_t>> counting(3, Counting(18));
      expected[Add(**engine, request)] =
          DenseGreedy(model, rows, is_placed ? positions : counting, 14);
    }
    const auto texts = RunAll(**engine);
    for (const auto& [id, text] : expected) EXPECT_EQ(texts.at(id), text) << "sequence " << id;
    EXPECT_NE(texts.at(0), texts.at(1));
    if (num_blocks == 14) {
      EXPECT_GT((*engine)->metrics().num_preemptions, 0);
    }
  }
}

TEST(EngineEmbeddingsTest, RejectsUnsupportedEmbeddingRows) {
  ToyModel model({.takes_embeddings = true});
  auto engine = CreateEngine(&model, Small());
  ASSERT_TRUE(engine.ok()) << engine.status();
  const auto refused = [&](const RequestEmbeddings& embeddings) {
    const auto id = (*engine)->Add({.prompt = SomeText(9, 0), .embeddings = {embeddings}});
    EXPECT_EQ(id.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_FALSE((*engine)->has_work());
    return std::string(id.status().message());
  };
  const at::Tensor rows = model.Embeddings(SomeText(3, 0));
  EXPECT_THAT(refused(Embeddings(0, rows.narrow(1, 0, 40))), HasSubstr("dim must be 48: got 40"));
  EXPECT_THAT(refused(Embeddings(0, rows.to(at::kHalf))), HasSubstr("dtype must be float32"));
  EXPECT_THAT(refused(Embeddings(7, rows)), HasSubstr("got [7, 10)"));
  RequestEmbeddings elsewhere = Embeddings(0, rows);
  elsewhere.rows.gpu = 0;
  EXPECT_THAT(refused(elsewhere), HasSubstr("memory of the host: got GPU 0"));
  ToyModel plain({});
  auto plain_engine = CreateEngine(&plain, Small());
  ASSERT_TRUE(plain_engine.ok()) << plain_engine.status();
  EXPECT_THAT(std::string((*plain_engine)
                              ->Add({.prompt = SomeText(9, 0), .embeddings = {Embeddings(0, rows)}})
                              .status()
                              .message()),
              HasSubstr("the model takes token ids only"));

  EXPECT_FALSE(RequestEmbeddingsOf(0, rows[0]).ok());
  EXPECT_FALSE(RequestEmbeddingsOf(0, rows.t()).ok());
  EXPECT_FALSE(RequestEmbeddingsOf(0, rows.to(at::kInt)).ok());
  EXPECT_FALSE(RequestEmbeddingsOf(0, at::Tensor()).ok());
  // All rows of an expanded tensor are the same memory: reading them with a stride would leave it.
  EXPECT_THAT(RequestEmbeddingsOf(0, rows[0].unsqueeze(0).expand({4, -1})).status().message(),
              HasSubstr("rows must not overlap"));
  EXPECT_TRUE(RequestEmbeddingsOf(0, rows[0].unsqueeze(0).expand({1, -1})).ok());
}

}  // namespace
}  // namespace reprise
