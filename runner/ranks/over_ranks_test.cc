#include "reprise/runner/ranks/over_ranks.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/status_macros.h"
#include "reprise/distributed/testing/counting_collectives.h"
#include "reprise/distributed/testing/thread_ranks.h"
#include "reprise/runner/ops/linear_context.h"

namespace reprise {
namespace {

using testing::Each;

constexpr int64_t kHidden = 24;

std::unique_ptr<LinearContext> Context() {
  auto context = MakeLinearContext(c10::kCPU, {});
  EXPECT_TRUE(context.ok()) << context.status();
  return *std::move(context);
}

Linear Made(const at::Tensor& weight) {
  absl::StatusOr<Linear> linear = Linear::Create(weight, std::nullopt);
  EXPECT_TRUE(linear.ok()) << linear.status();
  return *std::move(linear);
}

TEST(OverRanksTest, OneRankComputesTheOperationItself) {
  at::Tensor x = at::randn({3, 4});
  const at::Tensor before = x.clone();
  EXPECT_TRUE(SumOverRanks(nullptr, x).ok());
  EXPECT_TRUE(x.equal(before));
  const at::Tensor table = at::randn({10, kHidden});
  const ShardedVocabulary vocabulary(10, nullptr);
  EXPECT_EQ(vocabulary.share(), (Share{0, 10}));
  const at::Tensor ids = at::arange(10, at::kInt);
  const at::Tensor out = at::empty({10, kHidden});
  ASSERT_TRUE(vocabulary.Embed(table, ids, out).ok());
  EXPECT_TRUE(out.equal(table));
  EXPECT_EQ(vocabulary.Embed(table.narrow(0, 0, 4), ids, out).code(),
            absl::StatusCode::kOutOfRange);
}

TEST(OverRanksTest, SumsTheRanks) {
  const std::vector<absl::Status> results = RunThreadRanks(3, [](Collectives& collectives) {
    const at::Tensor x = at::full({2, 5}, 1.0f + collectives.ranks().rank);
    const absl::Status status = SumOverRanks(&collectives, x);
    EXPECT_TRUE(x.equal(at::full({2, 5}, 6.0f)));
    return status;
  });
  EXPECT_THAT(results, Each(absl::OkStatus()));
}

// With more than two ranks and deterministic GEMMs, summands are added in rank order: 1e8 and -1e8
// come first.
TEST(OverRanksTest, SumsOfDeterministicGemmsUseRankOrder) {
  for (const bool deterministic : {false, true}) {
    for (const int world : {1, 2, 3}) {
      const std::vector<absl::Status> results =
          RunThreadRanks(world, [&](Collectives& collectives) -> absl::Status {
            CountingCollectives counting(collectives);
            REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<LinearContext> context,
                                     MakeLinearContext(at::kCPU, {.deterministic = deterministic}));
            const float summands[] = {1e8f, -1e8f, 1.0f};
            for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
              const at::Tensor x = at::full({2, 5}, summands[collectives.ranks().rank], dtype);
              REPRISE_RETURN_IF_ERROR(SumOverRanks(&counting, *context, x));
              EXPECT_TRUE(
                  x.to(at::kFloat)
                      .equal(at::full({2, 5}, world == 1 ? at::full({}, 1e8f, dtype).item<float>()
                                                         : static_cast<float>(world - 2))));
            }
            EXPECT_EQ(counting.num_gathers(), deterministic && world > 2 ? 2 : 0);
            return absl::OkStatus();
          });
      EXPECT_THAT(results, Each(absl::OkStatus()));
    }
  }
}

// Rank 0 of 2. Its AllReduce() does not communicate, and it has buffers of up to
// `max_buffer_bytes`.
class BufferCollectives final : public Collectives {
 public:
  explicit BufferCollectives(int64_t max_buffer_bytes)
      : Collectives({.rank = 0, .world = 2}), max_buffer_bytes_(max_buffer_bytes) {}
  int64_t max_buffer_bytes() const override { return max_buffer_bytes_; }
  std::string Fingerprint() const override { return "buffers"; }
  const std::vector<at::Tensor>& buffers() const { return buffers_; }
  absl::Status next_buffer;  // result of the next NewBuffer() if not OK

 protected:
  absl::Status DoAllReduce(at::Tensor&) override { return absl::OkStatus(); }
  absl::Status DoAllGather(const at::Tensor&, at::Tensor&) override { return absl::OkStatus(); }
  absl::Status DoReduceScatter(const at::Tensor&, at::Tensor&) override { return absl::OkStatus(); }
  absl::Status DoBroadcast(at::Tensor&, int) override { return absl::OkStatus(); }
  absl::Status DoBarrier() override { return absl::OkStatus(); }
  absl::StatusOr<at::Tensor> DoNewBuffer(at::IntArrayRef sizes, at::ScalarType dtype,
                                         at::Device) override {
    if (!next_buffer.ok()) return next_buffer;
    buffers_.push_back(at::zeros(sizes, dtype));
    return buffers_.back();
  }

 private:
  int64_t max_buffer_bytes_;
  std::vector<at::Tensor> buffers_;
};

at::Tensor RowsOf(SumBuffer& memory, int64_t num_rows) {
  absl::StatusOr<at::Tensor> rows = memory.Rows(num_rows);
  EXPECT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(rows->sizes(), (std::vector<int64_t>{num_rows, kHidden}));
  EXPECT_TRUE(rows->is_contiguous());
  return *std::move(rows);
}

TEST(SumBufferTest, RowsThatFitShareOneBuffer) {
  BufferCollectives collectives(/*max_buffer_bytes=*/5 * kHidden * 4 + 3);
  SumBuffer memory(&collectives, kHidden, at::TensorOptions(at::kFloat));
  EXPECT_TRUE(collectives.buffers().empty());
  // The first call allocates the buffer, although its own rows do not fit.
  const at::Tensor many = RowsOf(memory, 6);
  ASSERT_EQ(collectives.buffers().size(), 1u);
  const at::Tensor& buffer = collectives.buffers().front();
  EXPECT_EQ(buffer.sizes(), (std::vector<int64_t>{5, kHidden}));
  EXPECT_EQ(buffer.scalar_type(), at::kFloat);
  EXPECT_NE(many.const_data_ptr(), buffer.const_data_ptr());
  for (const int64_t num_rows : {1, 5}) {
    EXPECT_EQ(RowsOf(memory, num_rows).const_data_ptr(), buffer.const_data_ptr());
  }
  RowsOf(memory, 0);
  EXPECT_EQ(collectives.buffers().size(), 1u);
}

TEST(SumBufferTest, RowsAreNewWithoutBufferMemory) {
  BufferCollectives none(/*max_buffer_bytes=*/0), narrow(/*max_buffer_bytes=*/kHidden * 4 - 1);
  for (Collectives* collectives :
       {static_cast<Collectives*>(&none), static_cast<Collectives*>(&narrow),
        static_cast<Collectives*>(nullptr)}) {
    SumBuffer memory(collectives, kHidden, at::TensorOptions(at::kFloat));
    const at::Tensor first = RowsOf(memory, 2), second = RowsOf(memory, 2);
    EXPECT_NE(first.const_data_ptr(), second.const_data_ptr());
  }
  EXPECT_TRUE(none.buffers().empty());
  EXPECT_TRUE(narrow.buffers().empty());
}

TEST(SumBufferTest, RetriesAFailedBufferAllocation) {
  BufferCollectives collectives(/*max_buffer_bytes=*/1 << 20);
  SumBuffer memory(&collectives, kHidden, at::TensorOptions(at::kFloat));
  collectives.next_buffer = absl::UnavailableError("rank 1 has ended");
  EXPECT_EQ(memory.Rows(2).status(), collectives.next_buffer);
  collectives.next_buffer = absl::OkStatus();
  RowsOf(memory, 2);
  EXPECT_EQ(collectives.buffers().size(), 1u);
}

// Vocabulary sizes with shares of equal and of different sizes.
TEST(OverRanksTest, ShardedEmbeddingAndHeadMatchTheWholeVocabulary) {
  for (const int64_t vocab_size : {5, 8, 37, 128, 200, 257}) {
    const at::Tensor table = at::randn({vocab_size, kHidden});
    const at::Tensor ids = at::randint(vocab_size, {17}, at::kInt);
    const at::Tensor x = at::randn({6, kHidden});
    const at::Tensor logits = x.matmul(table.t());
    for (const int world : {2, 3, 4}) {
      SCOPED_TRACE(testing::Message() << vocab_size << " over " << world << " ranks");
      const auto run = [&](Collectives& collectives) -> absl::Status {
        const ShardedVocabulary vocabulary(vocab_size, &collectives);
        const Share share = vocabulary.share();
        const at::Tensor own = table.narrow(0, share.begin, share.size);
        const at::Tensor embedded = at::full({17, kHidden}, 9.0f);
        if (const auto status = vocabulary.Embed(own, ids, embedded); !status.ok()) return status;
        EXPECT_TRUE(embedded.equal(at::embedding(table, ids)));
        const at::Tensor got = at::full({6, vocab_size}, 9.0f);
        if (const auto status = vocabulary.Logits(Made(own), *Context(), x, {.whole = got});
            !status.ok()) {
          return status;
        }
        EXPECT_TRUE(got.allclose(logits, 1e-5, 1e-5));
        // Zero rows.
        return vocabulary.Logits(Made(own), *Context(), x.narrow(0, 0, 0),
                                 {.whole = got.narrow(0, 0, 0)});
      };
      EXPECT_THAT(RunThreadRanks(world, run), Each(absl::OkStatus()));
    }
  }
}

TEST(OverRanksTest, LogitsInMemoryThatIsWiderThanTheVocabulary) {
  const at::Tensor table = at::randn({128, kHidden});
  const at::Tensor x = at::randn({3, kHidden});
  const std::vector<absl::Status> results = RunThreadRanks(2, [&](Collectives& collectives) {
    const ShardedVocabulary vocabulary(128, &collectives);
    const at::Tensor wide = at::full({3, 140}, 7.0f);
    const absl::Status status =
        vocabulary.Logits(Made(table.narrow(0, vocabulary.share().begin, 64)), *Context(), x,
                          {.whole = wide.narrow(1, 0, 128)});
    EXPECT_TRUE(wide.narrow(1, 0, 128).allclose(x.matmul(table.t()), 1e-5, 1e-5));
    EXPECT_TRUE(wide.narrow(1, 128, 12).equal(at::full({3, 12}, 7.0f)));
    return status;
  });
  EXPECT_THAT(results, Each(absl::OkStatus()));
}

// A bias per token: each rank adds the biases of its share; a single rank adds all of them.
TEST(OverRanksTest, EachRankFinishesItsShareBeforeItIsGathered) {
  constexpr int64_t kVocabSize = 37;
  const at::Tensor table = at::randn({kVocabSize, kHidden});
  const at::Tensor bias = at::randn({kVocabSize});
  const at::Tensor x = at::randn({6, kHidden});
  for (const int world : {1, 2, 3}) {
    SCOPED_TRACE(testing::Message() << world << " ranks");
    const auto run = [&](Collectives& collectives) -> absl::Status {
      const ShardedVocabulary vocabulary(kVocabSize, &collectives);
      const Share share = vocabulary.share();
      const at::Tensor got = at::full({6, kVocabSize}, 9.0f);
      const absl::Status status = vocabulary.Logits(
          Made(table.narrow(0, share.begin, share.size)), *Context(), x, {.whole = got},
          [&](const at::Tensor& own) {
            EXPECT_EQ(own.size(0), 6);
            EXPECT_GE(own.size(1), share.size);
            own.narrow(1, 0, share.size).add_(bias.narrow(0, share.begin, share.size));
            return absl::OkStatus();
          });
      EXPECT_TRUE(got.allclose(x.matmul(table.t()).add(bias), 1e-5, 1e-5));
      return status;
    };
    EXPECT_THAT(RunThreadRanks(world, run), Each(absl::OkStatus()));
  }
}

TEST(OverRanksTest, LogitsReturnsTheErrorOfFinish) {
  const ShardedVocabulary vocabulary(8, nullptr);
  const at::Tensor logits = at::empty({3, 8});
  EXPECT_EQ(vocabulary.Logits(Made(at::randn({8, kHidden})), *Context(), at::randn({3, kHidden}),
                              {.whole = logits},
                              [](const at::Tensor&) { return absl::InternalError("no bias"); }),
            absl::InternalError("no bias"));
}

TEST(OverRanksTest, RejectsLogitsWithAnotherVocabularySize) {
  const std::vector<absl::Status> results = RunThreadRanks(2, [&](Collectives& collectives) {
    const ShardedVocabulary vocabulary(128, &collectives);
    return vocabulary.Logits(Made(at::randn({64, kHidden})), *Context(), at::randn({3, kHidden}),
                             {.whole = at::empty({3, 127})});
  });
  for (const absl::Status& status : results) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(), testing::HasSubstr("logits must be"));
  }
}

}  // namespace
}  // namespace reprise
