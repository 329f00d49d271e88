#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/hf/safetensors.h"
#include "reprise/models/generate.h"

namespace reprise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// [[0, 1, 2], [3, 4, 5]]
at::Tensor TwoRows(at::ScalarType type) {
  return at::arange(6, at::TensorOptions().dtype(type)).view({2, 3});
}

TEST(LogitsRecorderTest, KeepsRowsByRequestInTheOrderOfTheirTokens) {
  LogitsRecorder recorder(3);
  ASSERT_TRUE(recorder.Record(2, TwoRows(at::kFloat)[1]).ok());
  ASSERT_TRUE(recorder.Record(0, TwoRows(at::kBFloat16)[0]).ok());
  ASSERT_TRUE(recorder.Record(2, TwoRows(at::kHalf)[0]).ok());
  EXPECT_THAT(recorder.rows(0), ElementsAre(0, 1, 2));
  EXPECT_THAT(recorder.rows(1), IsEmpty());
  EXPECT_THAT(recorder.rows(2), ElementsAre(3, 4, 5, 0, 1, 2));
  EXPECT_EQ(recorder.num_rows(2), 2);
}

TEST(LogitsRecorderTest, ARowIsCopiedNotReferredTo) {
  at::Tensor logits = TwoRows(at::kFloat);
  LogitsRecorder recorder(1);
  ASSERT_TRUE(recorder.Record(0, logits[0]).ok());
  logits.zero_();
  EXPECT_THAT(recorder.rows(0), ElementsAre(0, 1, 2));
}

TEST(LogitsRecorderTest, RefusesAnotherVocabulary) {
  LogitsRecorder recorder(1);
  ASSERT_TRUE(recorder.Record(0, TwoRows(at::kFloat)[0]).ok());
  const absl::Status status = recorder.Record(0, at::zeros({4}));
  EXPECT_THAT(std::string(status.message()), HasSubstr("got a vocabulary of 4"));
  EXPECT_EQ(recorder.Record(0, at::Tensor()).message(), "logits: expected some, got none");
}

TEST(LogitsRecorderTest, WritesATensorARequest) {
  LogitsRecorder recorder(2);
  ASSERT_TRUE(recorder.Record(1, TwoRows(at::kFloat)[1]).ok());
  const std::string path = testing::TempDir() + "/logits.safetensors";
  ASSERT_TRUE(recorder.Write(path).ok());
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->tensors().size(), 2u);
  const auto none = file->Find("logits_0");
  ASSERT_TRUE(none.ok());
  EXPECT_THAT(none->shape, ElementsAre(0, 3));
  const auto one = file->Find("logits_1");
  ASSERT_TRUE(one.ok());
  EXPECT_THAT(one->shape, ElementsAre(1, 3));
  EXPECT_THAT(*CopyElements<float>(*one), ElementsAre(3, 4, 5));
}

}  // namespace
}  // namespace reprise
