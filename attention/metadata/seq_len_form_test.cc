#include "attention/metadata/seq_len_form.h"

#include "gtest/gtest.h"

namespace reprise {
namespace {

constexpr SeqLenForm kForms[] = {SeqLenForm::kBeforeStep, SeqLenForm::kWithoutDrafts,
                                 SeqLenForm::kWithStep};

TEST(SeqLenFormTest, ARowOfTenTokensWithOneCertainAndThreeDraftsHasALengthInEachForm) {
  constexpr int64_t kLengths[] = {10, 11, 14};
  for (int from = 0; from < 3; ++from) {
    for (int to = 0; to < 3; ++to) {
      EXPECT_EQ(ConvertSeqLen(kLengths[from], kForms[from], kForms[to], 1, 3), kLengths[to])
          << from << " to " << to;
    }
  }
}

TEST(SeqLenFormTest, ARowWithoutTokensStaysInert) {
  for (SeqLenForm from : kForms) {
    for (SeqLenForm to : kForms) EXPECT_EQ(ConvertSeqLen(0, from, to, 0, 0), 0);
  }
}

TEST(SeqLenFormTest, ALengthTooSmallForItsFormBecomesNegative) {
  EXPECT_EQ(ConvertSeqLen(2, SeqLenForm::kWithStep, SeqLenForm::kBeforeStep, 1, 3), -2);
}

}  // namespace
}  // namespace reprise
