// Requests and sequences in their lists and slots, without a scheduler.

#include "reprise/engine/scheduling/sequence_table.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/engine/testing/waiting_requests.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;

SequenceState& AddOne(SequenceTable& table, int priority = 0) {
  return AddRequest(table, {.prompt = {1, 2}, .priority = priority}).sequences[0];
}

TEST(SequenceTableTest, NumbersRequestsInOrderOfArrival) {
  SequenceTable table(2);
  EXPECT_EQ(table.next_id(), SequenceId(0));
  EXPECT_EQ(AddRequest(table, {.prompt = {1}}).id, SequenceId(0));
  RequestState& second = AddRequest(table, {.prompt = {1}, .num_sequences = 3});
  EXPECT_EQ(second.id, SequenceId(1));
  EXPECT_EQ(second.num_unfinished, 3);
  EXPECT_EQ(second.sequences[2].sample, 2);
  EXPECT_EQ(table.Find(SequenceId(1)), &second);
  EXPECT_EQ(table.Find(SequenceId(2)), nullptr);
  EXPECT_EQ(table.num_waiting(), 4);
  table.CheckInvariants();
}

TEST(SequenceTableTest, OrdersWaitingSequencesByPriorityThenArrivalThenSample) {
  SequenceTable table(2);
  SequenceState& first = AddOne(table, 0);
  RequestState& urgent = AddRequest(table, {.prompt = {1}, .num_sequences = 2, .priority = 3});
  SequenceState& third = AddOne(table, 0);
  SequenceState& last = AddOne(table, -1);
  EXPECT_THAT(table.waiting(),
              ElementsAre(&urgent.sequences[0], &urgent.sequences[1], &first, &third, &last));
  table.CheckInvariants();
}

TEST(SequenceTableTest, APreemptedSequenceWaitsInItsOrderOfArrival) {
  SequenceTable table(2);
  SequenceState& first = AddOne(table);
  SequenceState& second = AddOne(table);
  table.Admit(first);
  table.Admit(second);
  SequenceState& third = AddOne(table);
  table.Vacate(second);
  table.Wait(second);
  table.Vacate(first);
  table.Wait(first);
  EXPECT_THAT(table.waiting(), ElementsAre(&first, &second, &third));
  table.CheckInvariants();
}

TEST(SequenceTableTest, OrdersRunningSequencesByPriorityThenAdmission) {
  SequenceTable table(4);
  SequenceState& a = AddOne(table, 1);
  SequenceState& b = AddOne(table, 1);
  SequenceState& c = AddOne(table, 5);
  SequenceState& d = AddOne(table, 0);
  table.Admit(d);
  table.Admit(b);  // before a, which arrived earlier
  table.Admit(a);
  table.Admit(c);
  EXPECT_THAT(table.running(), ElementsAre(&c, &b, &a, &d));
  EXPECT_EQ(table.num_free_slots(), 0);
  table.CheckInvariants();
}

TEST(SequenceTableTest, AdmitsToTheSlotThatWasLeftLast) {
  SequenceTable table(3);
  SequenceState& a = AddOne(table);
  SequenceState& b = AddOne(table);
  EXPECT_EQ(table.next_slot(), SlotId(0));
  table.Admit(a);
  table.Admit(b);
  EXPECT_EQ(a.slot, SlotId(0));
  EXPECT_EQ(b.slot, SlotId(1));
  EXPECT_EQ(table.in_slot(SlotId(1)), &b);
  table.Vacate(a);
  EXPECT_EQ(table.in_slot(SlotId(0)), nullptr);
  EXPECT_EQ(table.next_slot(), SlotId(0));
  table.Wait(a);
}

TEST(SequenceTableTest, AdmissionNumbersAreUnique) {
  SequenceTable table(1);
  SequenceState& sequence = AddOne(table);
  EXPECT_EQ(sequence.admission, 0);
  table.Admit(sequence);
  EXPECT_EQ(sequence.admission, 1);
  table.Vacate(sequence);
  EXPECT_EQ(sequence.admission, 0);
  table.Wait(sequence);
  table.Admit(sequence);
  EXPECT_EQ(sequence.admission, 2);
}

TEST(SequenceTableTest, ForgetsARequestWithoutUnfinishedSequencesAndOpenRows) {
  SequenceTable table(2);
  RequestState& request = AddRequest(table, {.prompt = {1}, .num_sequences = 2});
  const SequenceId id = request.id;
  table.StopWaiting(request.sequences[0]);
  table.Finish(request.sequences[0]);
  table.ForgetIfDone(request);
  ASSERT_EQ(table.Find(id), &request) << "one sequence is unfinished";
  request.num_open_rows = 1;
  table.Admit(request.sequences[1]);
  table.Vacate(request.sequences[1]);
  table.Finish(request.sequences[1]);
  table.ForgetIfDone(request);
  ASSERT_EQ(table.Find(id), &request) << "a row is open";
  table.CheckInvariants();
  request.num_open_rows = 0;
  table.ForgetIfDone(request);
  EXPECT_EQ(table.Find(id), nullptr);
  EXPECT_TRUE(table.requests().empty());
  table.CheckInvariants();
}

TEST(SequenceTableDeathTest, StopWaitingDiesForARunningSequence) {
  SequenceTable table(1);
  SequenceState& sequence = AddOne(table);
  table.Admit(sequence);
  EXPECT_DEATH(table.StopWaiting(sequence), "waits");
}

TEST(SequenceTableDeathTest, CheckInvariantsFindsEachBrokenInvariant) {
  SequenceTable table(2);
  SequenceState& running = AddOne(table, 1);
  SequenceState& second = AddOne(table, 1);
  SequenceState& waiting = AddOne(table, 1);
  AddOne(table, 1);
  table.Admit(running);
  table.Admit(second);
  table.CheckInvariants();
  // Breaks one field at a time, in a child process.
  EXPECT_DEATH((running.slot = SlotId(1), table.CheckInvariants()), "1");
  EXPECT_DEATH((running.slot.reset(), table.CheckInvariants()), "1.*has no slot");
  EXPECT_DEATH((waiting.admission = 9, table.CheckInvariants()), "1");
  EXPECT_DEATH((waiting.finished = true, table.CheckInvariants()), "2");
  EXPECT_DEATH((running.admission = 9, table.CheckInvariants()), "2");
  EXPECT_DEATH((waiting.added->request.priority = 0, table.CheckInvariants()), "2");
  EXPECT_DEATH((++waiting.added->num_unfinished, table.CheckInvariants()), "3: request 2");
  EXPECT_DEATH((table.StopWaiting(waiting), table.CheckInvariants()), "2");
}

// The model is a list of waiting and a list of running sequences. The test sorts them for each
// comparison.
TEST(SequenceTableTest, MatchesAModelUnderRandomMoves) {
  std::mt19937 random(5);
  const auto draw = [&](int n) { return static_cast<int>(random() % n); };
  SequenceTable table(3);
  std::vector<SequenceState*> waiting, running;  // running in order of admission
  for (int step = 0; step < 2000; ++step) {
    const int move = draw(4);
    if (move == 0 && waiting.size() < 8) {
      waiting.push_back(&AddOne(table, draw(3)));
    } else if (move == 1 && !waiting.empty() && running.size() < 3) {
      const int i = draw(static_cast<int>(waiting.size()));
      table.Admit(*waiting[i]);
      running.push_back(waiting[i]);
      waiting.erase(waiting.begin() + i);
    } else if (move == 2 && !running.empty()) {
      const int i = draw(static_cast<int>(running.size()));
      table.Vacate(*running[i]);
      table.Wait(*running[i]);
      waiting.push_back(running[i]);
      running.erase(running.begin() + i);
    } else if (move == 3 && !running.empty()) {
      SequenceState& done = *running[0];
      table.Vacate(done);
      table.Finish(done);
      table.ForgetIfDone(*done.added);
      running.erase(running.begin());
    }
    const auto priority = [](const SequenceState* s) { return s->request().priority; };
    std::sort(waiting.begin(), waiting.end(), [&](const auto* a, const auto* b) {
      return std::pair(-priority(a), a->id()) < std::pair(-priority(b), b->id());
    });
    std::vector<SequenceState*> by_priority = running;
    std::stable_sort(by_priority.begin(), by_priority.end(),
                     [&](const auto* a, const auto* b) { return priority(a) > priority(b); });
    ASSERT_THAT(table.waiting(), ::testing::ElementsAreArray(waiting)) << "step " << step;
    ASSERT_THAT(table.running(), ::testing::ElementsAreArray(by_priority)) << "step " << step;
    table.CheckInvariants();
  }
}

}  // namespace
}  // namespace reprise
