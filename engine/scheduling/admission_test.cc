// Requests on their way to a slot, without a scheduler.

#include "reprise/engine/scheduling/admission.h"

#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/engine/testing/waiting_requests.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int32_t> Tokens(int n, int first = 1) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(first + i);
  return tokens;
}

// 4 slots, 16 tokens per step, sequences of up to 40 tokens, 20 blocks of 4 tokens.
class AdmissionTest : public ::testing::Test {
 protected:
  Admission& Make(PrefixReuse prefix_reuse = PrefixReuse::kOff) {
    blocks_ = std::make_unique<BlockManager>(MakeBlocks(shape_, prefix_reuse));
    limits_ = std::make_unique<CacheLimits>(shape_, *blocks_);
    table_ = std::make_unique<SequenceTable>(shape_.max_num_seqs);
    batch_ = std::make_unique<BatchInProgress>(shape_, policy_);
    preemptor_ = *Preemptor::Create(shape_, policy_, blocks_.get(), limits_.get(), table_.get());
    admission_ = std::make_unique<Admission>(shape_, policy_, blocks_.get(), limits_.get(),
                                             table_.get(), preemptor_.get());
    batch_->Begin();
    return *admission_;
  }

  RequestState& Add(Request request) {
    const auto added = admission_->Add(std::move(request));
    CHECK(added.ok()) << added.status();
    return **added;
  }

  // Admits the next sequence, and adds the rest of its prompt to the batch.
  std::optional<Admitted> Next() {
    const std::optional<Admitted> admitted = admission_->Next(*batch_);
    if (!admitted.has_value()) return std::nullopt;
    SequenceState& sequence = *admitted->sequence;
    batch_->AddRow(BatchRowKind::kPrompt,
                   {.slot = *sequence.slot,
                    .tokens = absl::MakeConstSpan(sequence.tokens)
                                  .subspan(sequence.num_scheduled,
                                           sequence.num_known - sequence.num_scheduled)},
                   {.sequence = &sequence});
    table_->CheckInvariants();
    return admitted;
  }

  // Commits the rest of a sequence's prompt.
  void Commit(const SequenceState& sequence) {
    const SlotId slot = *sequence.slot;
    ASSERT_TRUE(blocks_
                    ->Commit(slot, absl::MakeConstSpan(sequence.tokens)
                                       .subspan(blocks_->num_committed(slot),
                                                sequence.num_known - blocks_->num_committed(slot)))
                    .ok());
  }

  void BeginBatch() {
    batch_->Begin();
    admission_->BeginBatch();
  }

  RunnerShape shape_ = SmallShape();
  SchedulerPolicy policy_ = SmallPolicy();
  std::unique_ptr<BlockManager> blocks_;
  std::unique_ptr<CacheLimits> limits_;
  std::unique_ptr<SequenceTable> table_;
  std::unique_ptr<BatchInProgress> batch_;
  std::unique_ptr<Preemptor> preemptor_;
  std::unique_ptr<Admission> admission_;
};

// ---- Requests.

TEST_F(AdmissionTest, RejectsRequestsThatCanNeverRun) {
  shape_.num_blocks = 9;  // 32 tokens
  policy_.max_waiting = 3;
  Admission& admission = Make();
  const auto error = [&](Request request) {
    const absl::Status status = admission.Add(std::move(request)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(error({}), HasSubstr("prompt must have at least one token"));
  EXPECT_THAT(error({.prompt = {1}, .max_new_tokens = 0}), HasSubstr("max_new_tokens"));
  EXPECT_THAT(error({.prompt = {1}, .max_new_tokens = -1, .num_prompt_log_probs = 0}),
              HasSubstr("at least 0"));
  EXPECT_THAT(error({.prompt = Tokens(41)}), HasSubstr("max_seq_len: expected at most 40"));
  EXPECT_THAT(error({.prompt = Tokens(33)}), HasSubstr("KV cache: expected at most 32"));
  EXPECT_THAT(error({.prompt = {1}, .encoder_tokens = {1}}), HasSubstr("no encoder"));
  EXPECT_THAT(error({.prompt = {1}, .num_sequences = 0}), HasSubstr("num_sequences"));
  EXPECT_THAT(error({.prompt = {1}, .num_sequences = 5}), HasSubstr("[1, 4]"));
  EXPECT_THAT(error({.prompt = {1}, .num_sequences = 4}), HasSubstr("max_waiting"));
  EXPECT_THAT(error({.prompt = {1}, .max_drafts = -2}), HasSubstr("max_drafts"));
  EXPECT_THAT(
      error({.prompt = {1}, .sampling = {.temperature = std::numeric_limits<float>::quiet_NaN()}}),
      HasSubstr("temperature"));
  EXPECT_THAT(error({.prompt = {1}, .positions = {0}}), HasSubstr("positions"));
  EXPECT_THAT(error({.prompt = {1}, .new_token_masker = [] { return nullptr; }}),
              HasSubstr("new_token_masker"));
  EXPECT_EQ(table_->num_waiting(), 0);
  EXPECT_EQ(table_->next_id(), SequenceId(0)) << "nothing has changed";
}

TEST_F(AdmissionTest, RefusesWhileTooManySequencesWait) {
  policy_.max_waiting = 3;
  Admission& admission = Make();
  Add({.prompt = {1}, .num_sequences = 2});
  EXPECT_TRUE(
      absl::IsResourceExhausted(admission.Add({.prompt = {1}, .num_sequences = 2}).status()));
  Add({.prompt = {1}});
  EXPECT_TRUE(absl::IsResourceExhausted(admission.Add({.prompt = {1}}).status()));
  ASSERT_TRUE(Next().has_value());
  EXPECT_TRUE(admission.Add({.prompt = {1}}).ok());
}

TEST_F(AdmissionTest, ThrowingFactoryAddsNoRequest) {
  Admission& admission = Make();
  const auto added =
      admission.Add({.prompt = {1}, .new_stop_matcher = []() -> std::unique_ptr<StopMatcher> {
                       throw std::runtime_error("burnt");
                     }});
  EXPECT_TRUE(absl::IsInternal(added.status())) << added.status();
  EXPECT_EQ(table_->num_waiting(), 0);
}

TEST_F(AdmissionTest, EachSequenceHasASeparateSeedAndTokens) {
  Make();
  const RequestState& seeded =
      Add({.prompt = {1, 2}, .sampling = {.seed = 5}, .forced_tokens = {8, 9}, .num_sequences = 2});
  EXPECT_EQ(seeded.sequences[0].seed, 5u);
  EXPECT_EQ(seeded.sequences[1].seed, 6u);
  EXPECT_THAT(seeded.sequences[1].tokens, ElementsAre(1, 2, 8, 9));
  EXPECT_EQ(seeded.sequences[1].num_known, 2);
  const RequestState& drawn = Add({.prompt = {1}, .num_sequences = 2});
  EXPECT_NE(drawn.sequences[0].seed, drawn.sequences[1].seed);
  const uint64_t first = drawn.sequences[0].seed;
  Make();
  EXPECT_EQ(Add({.prompt = {1}}).sequences[0].seed, first) << "by the policy's seed";
}

// ---- Slots.

TEST_F(AdmissionTest, AdmitsInOrderWithTheirJoins) {
  Make();
  Add({.prompt = Tokens(5), .sampling = {.temperature = 1, .seed = 3}});
  Add({.prompt = Tokens(3), .priority = 1});
  const auto first = Next();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->sequence->request().priority, 1);
  EXPECT_EQ(first->join.slot, SlotId(0));
  const auto second = Next();
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->join.slot, SlotId(1));
  EXPECT_EQ(second->join.seq_len, 0);
  EXPECT_EQ(second->join.sample_index, 0);
  EXPECT_EQ(second->join.sampling.seed, 3u);
  EXPECT_FALSE(second->swapped_in);
  EXPECT_EQ(second->sequence->prefill_end, 5);
  EXPECT_EQ(second->sequence->num_cached_tokens, 0);
  EXPECT_EQ(blocks_->num_tokens(SlotId(1)), 5);
  EXPECT_EQ(Next(), std::nullopt);
}

TEST_F(AdmissionTest, AdmitsWhileTheBatchHasTokensAndBlocksAreNotLacking) {
  Make();
  for (int i = 0; i < 3; ++i) Add({.prompt = Tokens(8)});
  EXPECT_TRUE(Next().has_value());
  EXPECT_TRUE(Next().has_value());
  EXPECT_EQ(Next(), std::nullopt) << "16 tokens are used";
  BeginBatch();
  batch_->NoteLackOfBlocks();
  EXPECT_EQ(Next(), std::nullopt);
  BeginBatch();
  EXPECT_TRUE(Next().has_value());
}

TEST_F(AdmissionTest, SequenceWithoutBlocksBlocksLaterSequences) {
  shape_.num_blocks = 6;  // 5 blocks
  Make();
  Add({.prompt = Tokens(9)});
  Add({.prompt = Tokens(12)});
  Add({.prompt = Tokens(1)});
  const auto first = Next();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(Next(), std::nullopt) << "3 blocks are needed, 2 are free";
  EXPECT_EQ(table_->num_waiting(), 2);
  EXPECT_FALSE(blocks_->contains(SlotId(1)));
  EXPECT_EQ(blocks_->pool().num_allocatable(), 2);
}

TEST_F(AdmissionTest, ReadmittedSequenceContinuesAfterItsKnownTokens) {
  Make();
  Add({.prompt = Tokens(5)});
  SequenceState& sequence = *Next()->sequence;
  Commit(sequence);
  for (const int32_t token : {50, 51}) {
    sequence.tokens.push_back(token);
    ++sequence.num_known;
  }
  ASSERT_TRUE(blocks_->Free(*sequence.slot).ok());
  table_->Vacate(sequence);
  table_->Wait(sequence);
  BeginBatch();
  const auto again = Next();
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->join.sample_index, 2);
  EXPECT_EQ(sequence.prefill_end, 7);
  EXPECT_EQ(blocks_->num_tokens(*sequence.slot), 7);
}

TEST_F(AdmissionTest, ForcedTokensAreAPromptIfEarlierLogitsAreComputed) {
  shape_.max_earlier_logits = 8;
  Make();
  Add({.prompt = Tokens(5), .forced_tokens = {7, 8, 9}});
  EXPECT_EQ(Next()->sequence->prefill_end, 7) << "the last forced token is not fed";
}

// ---- Encoders.

TEST_F(AdmissionTest, EncodesInTheStepThatAdmitsWithinItsBudget) {
  shape_.groups = {{}, {.retention = KvRetention::kCross}};
  shape_.max_encoder_tokens = 6;
  shape_.max_encoder_step_tokens = 8;
  Make(PrefixReuse::kOn);
  Add({.prompt = {1, 2}, .encoder_tokens = {5, 6, 7, 8, 9}});
  Add({.prompt = {1, 3}, .encoder_tokens = {5, 6, 7, 8}});
  const auto first = Next();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->join.num_encoder_tokens, 5);
  EXPECT_EQ(first->join.encoder_is_cached, 0);
  EXPECT_TRUE(batch_->encodes(SlotId(0)));
  EXPECT_TRUE(batch_->open_rows()[0].encodes);
  EXPECT_EQ(batch_->encoder_tokens_left(), 3);
  EXPECT_EQ(Next(), std::nullopt) << "4 encoder tokens are too many";
  Commit(*first->sequence);
  ASSERT_TRUE(blocks_->CommitEncoder(SlotId(0)).ok());
  Add({.prompt = {4}, .encoder_tokens = {5, 6, 7, 8, 9}, .priority = 1});
  BeginBatch();
  const auto equal = Next();
  ASSERT_TRUE(equal.has_value());
  EXPECT_EQ(equal->join.encoder_is_cached, 1);
  EXPECT_EQ(batch_->encoder_tokens_left(), 8);
  EXPECT_TRUE(Next().has_value());
  EXPECT_EQ(batch_->encoder_tokens_left(), 4);
}

// ---- Prefixes.

TEST_F(AdmissionTest, APromptBeginsAfterItsCachedPrefix) {
  Make(PrefixReuse::kOn);
  Add({.prompt = Tokens(10)});
  Commit(*Next()->sequence);
  Add({.prompt = Tokens(10)});
  Add({.prompt = Tokens(10), .prefix_salt = "other"});
  BeginBatch();
  const auto hit = Next();
  ASSERT_TRUE(hit.has_value());
  EXPECT_EQ(hit->join.seq_len, 8) << "two full blocks";
  EXPECT_EQ(batch_->open_rows()[0].first_token, 8);
  EXPECT_EQ(hit->sequence->num_cached_tokens, 8);
  const auto salted = Next();
  ASSERT_TRUE(salted.has_value());
  EXPECT_EQ(salted->join.seq_len, 0);
}

TEST_F(AdmissionTest, APromptWithLogProbsIsNotTakenFromTheCache) {
  Make(PrefixReuse::kOn);
  Add({.prompt = Tokens(8)});
  Commit(*Next()->sequence);
  Add({.prompt = Tokens(8), .num_prompt_log_probs = 0});
  BeginBatch();
  EXPECT_EQ(Next()->join.seq_len, 0);
}

TEST_F(AdmissionTest, APromptAwaitsBlocksThatARunningSequenceComputes) {
  shape_.max_num_seqs = 3;
  Make(PrefixReuse::kOn);
  Add({.prompt = Tokens(6)});
  const RequestState& equal = Add({.prompt = Tokens(6)});
  const RequestState& other = Add({.prompt = Tokens(3, 60)});
  const RequestState& last = Add({.prompt = Tokens(2, 70)});
  const SequenceState& first = *Next()->sequence;
  EXPECT_EQ(Next()->sequence, &other.sequences[0]);
  EXPECT_EQ(Next(), std::nullopt) << "the third slot is kept";
  EXPECT_THAT(table_->waiting(), ElementsAre(&equal.sequences[0], &last.sequences[0]));
  BeginBatch();
  EXPECT_EQ(Next(), std::nullopt) << "nothing is committed";
  Commit(first);
  BeginBatch();
  const auto admitted = Next();
  ASSERT_TRUE(admitted.has_value());
  EXPECT_EQ(admitted->sequence, &equal.sequences[0]);
  EXPECT_EQ(admitted->join.seq_len, 4);
}

TEST_F(AdmissionTest, APromptDoesNotAwaitALowerPriorityOrAnotherSalt) {
  Make(PrefixReuse::kOn);
  Add({.prompt = Tokens(5)});
  ASSERT_TRUE(Next().has_value());
  Add({.prompt = Tokens(5), .priority = 1});
  EXPECT_TRUE(Next().has_value());
  Add({.prompt = Tokens(5), .prefix_salt = "other"});
  EXPECT_TRUE(Next().has_value());
  Add({.prompt = Tokens(5)});
  EXPECT_EQ(Next(), std::nullopt);
}

TEST_F(AdmissionTest, AnAwaitedSequenceThatLeftItsSlotIsNotAwaited) {
  Make(PrefixReuse::kOn);
  Add({.prompt = Tokens(5)});
  Add({.prompt = Tokens(5)});
  SequenceState& first = *Next()->sequence;
  ASSERT_EQ(Next(), std::nullopt);
  ASSERT_TRUE(blocks_->Free(*first.slot).ok());
  table_->Vacate(first);
  table_->Finish(first);
  BeginBatch();
  const auto admitted = Next();
  ASSERT_TRUE(admitted.has_value());
  EXPECT_EQ(admitted->join.seq_len, 0);
}

// ---- Several sequences of one request.

TEST_F(AdmissionTest, SequencesOfARequestForkThePromptOfTheFirst) {
  Make();
  RequestState& request = Add({.prompt = Tokens(6), .num_sequences = 3});
  const SequenceState& first = *Next()->sequence;
  EXPECT_EQ(Next(), std::nullopt) << "the prompt is not committed";
  Commit(first);
  BeginBatch();
  const auto second = Next();
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->sequence, &request.sequences[1]);
  EXPECT_EQ(second->join.seq_len, 5) << "the last token is computed again";
  EXPECT_EQ(blocks_->blocks(SlotId(1))[0], blocks_->blocks(SlotId(0))[0]);
  EXPECT_EQ(admission_->num_forks(), 1);
  EXPECT_TRUE(Next().has_value());
  EXPECT_EQ(admission_->num_forks(), 2);
}

TEST_F(AdmissionTest, WithoutARunningSiblingASequenceComputesThePrompt) {
  Make();
  RequestState& request = Add({.prompt = Tokens(6), .num_sequences = 2});
  SequenceState& first = *Next()->sequence;
  Commit(first);
  ASSERT_TRUE(blocks_->Free(*first.slot).ok());
  table_->Vacate(first);
  table_->Finish(first);
  BeginBatch();
  const auto second = Next();
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->sequence, &request.sequences[1]);
  EXPECT_EQ(second->join.seq_len, 0);
  EXPECT_EQ(admission_->num_forks(), 0);
}

TEST_F(AdmissionTest, APromptOfOneTokenIsNotForked) {
  Make();
  Add({.prompt = {1}, .num_sequences = 2});
  EXPECT_TRUE(Next().has_value());
  EXPECT_TRUE(Next().has_value());
  EXPECT_EQ(admission_->num_forks(), 0);
}

// ---- Swaps.

class SwapAdmissionTest : public AdmissionTest {
 protected:
  SwapAdmissionTest() {
    shape_.num_blocks = 7;
    shape_.num_swap_blocks = 7;
    shape_.bytes_per_block = 1000;
    policy_.preemption = PreemptionMode::kSwap;
  }

  // Two sequences of 8 tokens in 6 blocks; the second one is swapped out for the first.
  void SwapOutTheSecond(PrefixReuse prefix_reuse = PrefixReuse::kOff) {
    Make(prefix_reuse);
    Add({.prompt = Tokens(8)});
    Add({.prompt = Tokens(8, 30)});
    first_ = Next()->sequence;
    second_ = Next()->sequence;
    Commit(*first_);
    Commit(*second_);
    second_->tokens.push_back(77);
    ++second_->num_known;
    BeginBatch();
    ASSERT_TRUE(preemptor_->MakeRoom(*first_, 20, 0, *batch_));
    ASSERT_TRUE(second_->stored_as.has_value());
  }

  void FreeTheFirst() {
    ASSERT_TRUE(blocks_->Free(*first_->slot).ok());
    table_->Vacate(*first_);
    table_->Finish(*first_);
  }

  SequenceState* first_ = nullptr;
  SequenceState* second_ = nullptr;
};

TEST_F(SwapAdmissionTest, ASwappedSequenceReturnsByASwap) {
  SwapOutTheSecond();
  BeginBatch();
  EXPECT_EQ(Next(), std::nullopt) << "3 blocks are needed, 1 is free";
  EXPECT_TRUE(second_->stored_as.has_value());
  FreeTheFirst();
  const auto admitted = Next();
  ASSERT_TRUE(admitted.has_value());
  EXPECT_EQ(admitted->sequence, second_);
  EXPECT_TRUE(admitted->swapped_in);
  EXPECT_EQ(admitted->join.seq_len, 8);
  EXPECT_EQ(admitted->join.sample_index, 1);
  EXPECT_TRUE(batch_->has_swap_ins());
  preemptor_->CheckInvariants();
}

TEST_F(SwapAdmissionTest, ASequenceWhoseTokensAreCachedDropsItsHostBlocks) {
  SwapOutTheSecond(PrefixReuse::kOn);
  FreeTheFirst();
  Add({.prompt = Tokens(8, 30), .priority = 1});
  Commit(*Next()->sequence);
  BeginBatch();
  const auto admitted = Next();
  ASSERT_TRUE(admitted.has_value());
  EXPECT_EQ(admitted->sequence, second_);
  EXPECT_FALSE(admitted->swapped_in);
  EXPECT_EQ(admitted->join.seq_len, 8);
  EXPECT_FALSE(second_->stored_as.has_value());
  EXPECT_EQ(preemptor_->swap_store()->num_sequences(), 0);
  EXPECT_FALSE(batch_->has_swap_ins());
  preemptor_->CheckInvariants();
}

}  // namespace
}  // namespace reprise
