// The code of docs/concepts, compiled and run. tools/ci/docs.py holds the pages to the text between
// the markers "[page begin]" and "[page end]", where `page` names what is shown.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/metadata/batch_builder.h"
#include "reprise/base/ids.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/blocks/block_manager.h"
#include "reprise/cache/tables/block_table_view.h"
#include "reprise/engine/request.h"
#include "reprise/engine/scheduler.h"
#include "reprise/graphs/fingerprint.h"
#include "reprise/graphs/graph_key.h"
#include "reprise/graphs/graph_set.h"
#include "reprise/graphs/recorded_backend.h"
#include "reprise/runner/runner_shape.h"
#include "reprise/runner/slots/refill.h"
#include "reprise/runner/slots/scheduled_batch.h"
#include "reprise/runner/slots/step_delta_layout.h"
#include "reprise/runner/testing/refill_memory.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;

template <typename T>
absl::Span<const T> First(const T* array, int count) {
  return absl::MakeConstSpan(array, count);
}

// ---- docs/concepts/paged_batch.md

absl::Status PagedBatchPage() {
  // [paged_batch begin]
  // Block size 4. Row r of the table belongs to slot r; 0 is the null block.
  const std::vector<int32_t> entries = {3, 6, 0,   // slot 0
                                        5, 2, 0};  // slot 1
  const BlockTableView table = {.entries = entries.data(),
                                .row_stride = 3,
                                .num_tables = 2,
                                .max_blocks = 3,
                                .block_size = 4};
  // Slot 1 decodes: 5 tokens are cached, 1 is new. Slot 0 has a chunk of a prompt: 3 after 4.
  const std::vector<BatchSequence> sequences = {
      {.table_row = 1, .num_computed = 5, .query_len = 1},
      {.table_row = 0, .num_computed = 4, .query_len = 3}};
  REPRISE_ASSIGN_OR_RETURN(BatchBuilder builder,
                           BatchBuilder::Create({.max_rows = 3, .max_tokens = 6}));
  REPRISE_ASSIGN_OR_RETURN(const BuiltBatch built,
                           builder.Build({.sequences = sequences,
                                          .table = table,
                                          .padded = PaddedSize{.num_rows = 3, .num_tokens = 6}}));
  // [paged_batch end]
  const PagedBatch& batch = built.batch;
  EXPECT_THAT(First(batch.query_start_loc, 4), ElementsAre(0, 1, 4, 4));
  EXPECT_THAT(First(batch.seq_lens, 3), ElementsAre(6, 7, 0));
  EXPECT_THAT(First(batch.table_row, 3), ElementsAre(1, 0, 0));
  EXPECT_THAT(built.positions, ElementsAre(5, 4, 5, 6, 0, 0));
  EXPECT_THAT(built.slot_mapping, ElementsAre(9, 24, 25, 26, -1, -1));
  EXPECT_EQ(built.num_live_rows, 2);
  EXPECT_EQ(built.num_live_tokens, 4);
  EXPECT_TRUE(batch.causal);
  return absl::OkStatus();
}

TEST(ConceptsTest, APagedBatchHasTheArraysOfThePage) {
  const absl::Status status = PagedBatchPage();
  EXPECT_TRUE(status.ok()) << status;
}

// ---- docs/concepts/slots_and_refill.md

absl::Status SlotsPage() {
  const RefillShape shape = {.num_slots = 4,
                             .max_blocks = 3,
                             .block_size = 4,
                             .num_blocks = 16,
                             .max_rows = 2,
                             .max_tokens = 8,
                             .max_updates = 12};
  RefillMemory memory(shape);
  memory.PoisonArrays();
  RefillArgs& args = memory.args();
  const StepDeltaCapacity capacity = {.num_slots = shape.num_slots,
                                      .max_updates = shape.max_updates,
                                      .max_rows = shape.max_rows,
                                      .max_tokens = shape.max_tokens};
  // [slots begin]
  // A sequence joins slot 3. Two entries of its block table are new; its prompt is the only row.
  const std::vector<BlockTableUpdate> updates = {
      {.slot = SlotId(3), .column = 0, .block = BlockId(7)},
      {.slot = SlotId(3), .column = 1, .block = BlockId(9)}};
  const std::vector<int32_t> prompt = {11, 12, 13, 14, 15};
  const std::vector<SlotJoin> joins = {JoinOf(SlotId(3), {}, prompt.size())};
  const std::vector<ScheduledRow> rows = {{.slot = SlotId(3), .tokens = prompt}};
  WriteStepDelta({.joins = joins, .updates = updates, .rows = rows},
                 /*common_prefix_len=*/0, capacity, args.delta);
  args.padded_num_rows = 2;
  args.padded_num_tokens = 8;
  REPRISE_RETURN_IF_ERROR(CheckRefill(args));
  RefillOnHost(args);  // on a GPU LaunchRefill(args, stream)
  // [slots end]
  EXPECT_THAT(First(args.arrays.token_ids, 8), ElementsAre(11, 12, 13, 14, 15, 0, 0, 0));
  EXPECT_THAT(First(args.arrays.positions, 8), ElementsAre(0, 1, 2, 3, 4, 0, 0, 0));
  EXPECT_THAT(First(args.arrays.slot_mapping, 8), ElementsAre(28, 29, 30, 31, 36, -1, -1, -1));
  EXPECT_THAT(First(args.arrays.query_start_loc, 3), ElementsAre(0, 5, 5));
  EXPECT_THAT(First(args.arrays.seq_lens, 2), ElementsAre(5, 0));
  EXPECT_THAT(First(args.arrays.table_row, 2), ElementsAre(3, 0));
  EXPECT_EQ(args.slots.seq_len[3], 5);

  args.slots.last_token[3] = 77;  // as sampling does, on the device
  // [slots_decode begin]
  // The next step: the token, the length and the table are on the device already.
  const std::vector<ScheduledRow> decode = {{.slot = SlotId(3)}};
  WriteStepDelta({.rows = decode}, /*common_prefix_len=*/0, capacity, args.delta);
  args.padded_num_tokens = 2;
  REPRISE_RETURN_IF_ERROR(CheckRefill(args));
  RefillOnHost(args);
  // [slots_decode end]
  EXPECT_THAT(First(args.arrays.token_ids, 2), ElementsAre(77, 0));
  EXPECT_THAT(First(args.arrays.positions, 2), ElementsAre(5, 0));
  EXPECT_THAT(First(args.arrays.slot_mapping, 2), ElementsAre(37, -1));
  EXPECT_THAT(First(args.arrays.seq_lens, 2), ElementsAre(6, 0));
  EXPECT_EQ(*args.arrays.num_faults, 0);
  return absl::OkStatus();
}

TEST(ConceptsTest, RefillWritesTheArraysOfThePage) {
  const absl::Status status = SlotsPage();
  EXPECT_TRUE(status.ok()) << status;
}

// ---- docs/concepts/graphs.md

struct Buffers {
  std::vector<int32_t> token_ids = std::vector<int32_t>(16);
  std::vector<int32_t> next_tokens = std::vector<int32_t>(16);
  int num_runs = 0;
};

// Stands for a model: the next token is the token + 1.
absl::Status Forward(Buffers& buffers, int num_rows) {
  for (int row = 0; row < num_rows; ++row) {
    buffers.next_tokens[row] = buffers.token_ids[row] + 1;
  }
  ++buffers.num_runs;
  return absl::OkStatus();
}

absl::Status GraphsPage() {
  Buffers buffers;
  // [graphs begin]
  const auto backend = MakeRecordedBackend();  // on a GPU CudaGraphBackend::Create()
  REPRISE_ASSIGN_OR_RETURN(
      const auto graphs,
      GraphSet::Create({.max_num_seqs = 16, .max_seq_len = 4096}, backend.get()));
  // The work of a step of one size. What changes from step to step it reads from `buffers`.
  const auto make_step = [&buffers](const GraphKey& key) -> std::function<absl::Status()> {
    return [&buffers, rows = key.padded_num_seqs] { return Forward(buffers, rows); };
  };
  Fingerprint fingerprint;
  fingerprint.AddAddress("token_ids", buffers.token_ids.data());
  REPRISE_RETURN_IF_ERROR(graphs->CaptureAll(make_step, fingerprint));

  // Each step: decide, fill the buffers up to decision.key, run, count.
  const StepShape shape = {.num_seqs = 13, .num_tokens = 13, .max_seq_len = 900};
  GraphDecision decision = graphs->Decide(shape);
  for (int row = 0; row < decision.key.padded_num_seqs; ++row) buffers.token_ids[row] = row;
  if (decision.kind == GraphDecision::Kind::kReplay) {
    REPRISE_ASSIGN_OR_RETURN(decision, graphs->Replay(decision.key, make_step, fingerprint));
  } else {
    REPRISE_RETURN_IF_ERROR(make_step(decision.key)());
  }
  graphs->Count(decision, shape);
  // [graphs end]
  EXPECT_EQ(ToString(decision), "replay 16 seqs x 1, tokens");
  EXPECT_EQ(buffers.next_tokens[12], 13);
  EXPECT_EQ(ToString(graphs->Decide({.num_seqs = 17, .num_tokens = 17, .max_seq_len = 900})),
            "eager 17 seqs x 1, tokens: too many sequences");
  EXPECT_EQ(ToString(graphs->Decide(
                {.num_seqs = 2, .num_tokens = 9, .max_query_len = 8, .max_seq_len = 900})),
            "eager 2 seqs x 8 (9 tokens), tokens: query too long");

  // A buffer that has moved: the graph would read freed memory.
  const std::vector<int32_t> moved(16);
  Fingerprint other;
  other.AddAddress("token_ids", moved.data());
  const int num_runs = buffers.num_runs;
  const auto refused = graphs->Replay(decision.key, make_step, other);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), testing::HasSubstr("token_ids"));
  EXPECT_EQ(buffers.num_runs, num_runs);
  return absl::OkStatus();
}

TEST(ConceptsTest, AGraphIsChosenAsThePageSays) {
  const absl::Status status = GraphsPage();
  EXPECT_TRUE(status.ok()) << status;
}

// ---- docs/concepts/cache.md

absl::Status CachePage() {
  // [cache begin]
  REPRISE_ASSIGN_OR_RETURN(BlockManager manager,
                           BlockManager::Create({.num_blocks = 8,
                                                 .block_size = 4,
                                                 .num_slots = 2,
                                                 .max_blocks = 4,
                                                 .prefix_reuse = PrefixReuse::kOn}));
  const std::vector<int32_t> first = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const std::vector<int32_t> second = {1, 2, 3, 4, 5, 6, 7, 8, 20, 21};

  // Room for the first prompt: three blocks, nothing found.
  REPRISE_ASSIGN_OR_RETURN(const PromptHits none, manager.Add(SlotId(0), {.tokens = first}));
  // ... a step computes it, and then:
  REPRISE_RETURN_IF_ERROR(manager.Commit(SlotId(0), first));

  // The second prompt begins with two full blocks of the first: only its last two tokens are new.
  REPRISE_ASSIGN_OR_RETURN(const PromptHits hits, manager.Add(SlotId(1), {.tokens = second}));
  // Both slots share two blocks; the third of each is its own.
  const absl::Span<const BlockTableUpdate> updates = manager.TakeUpdates();
  // [cache end]
  EXPECT_EQ(none.num_tokens, 0);
  EXPECT_EQ(hits.num_tokens, 8);
  EXPECT_EQ(updates.size(), 6u);
  EXPECT_EQ(manager.blocks(SlotId(0))[0], manager.blocks(SlotId(1))[0]);
  EXPECT_EQ(manager.blocks(SlotId(0))[1], manager.blocks(SlotId(1))[1]);
  EXPECT_NE(manager.blocks(SlotId(0))[2], manager.blocks(SlotId(1))[2]);
  EXPECT_EQ(manager.pool().ref_count(manager.blocks(SlotId(0))[0]), 2);
  EXPECT_EQ(manager.pool().num_used(), 4);

  // [cache_decode begin]
  // Decode: room for the next token before the step, the token itself after it.
  REPRISE_RETURN_IF_ERROR(manager.Append(SlotId(0), 1));
  const int32_t computed = 10;
  REPRISE_RETURN_IF_ERROR(manager.Commit(SlotId(0), {computed}));
  // The end: blocks that only this sequence used keep their content until they are needed.
  REPRISE_RETURN_IF_ERROR(manager.Free(SlotId(0)));
  // [cache_decode end]
  EXPECT_EQ(manager.pool().num_used(), 3);
  manager.CheckInvariants();
  return absl::OkStatus();
}

TEST(ConceptsTest, TheCacheSharesWhatThePageSays) {
  const absl::Status status = CachePage();
  EXPECT_TRUE(status.ok()) << status;
}

// ---- docs/concepts/scheduling.md

// "1:4 0:3*": rows by slot and number of tokens; a star where a token is sampled.
std::string RowsOf(const ScheduledBatch& batch) {
  std::string text;
  for (const ScheduledRow& row : batch.rows) {
    absl::StrAppend(&text, text.empty() ? "" : " ", row.slot.value(), ":", row.query_len(),
                    row.output == RowOutput::kToken ? "*" : "");
  }
  return text;
}

absl::Status SchedulingPage(std::vector<std::string>& steps, std::vector<TokenEvent>& all) {
  const auto Run = [&steps](const ScheduledBatch& batch) {
    steps.push_back(RowsOf(batch));
    return std::vector<int32_t>(batch.rows.size(), 7);
  };
  // [scheduling begin]
  // A ModelRunner has such a shape. Here the runner is the function Run().
  const RunnerShape shape = {
      .max_num_seqs = 2, .max_num_tokens = 8, .max_seq_len = 64, .num_blocks = 32, .block_size = 4};
  REPRISE_ASSIGN_OR_RETURN(const auto scheduler,
                           Scheduler::Create({.shape = shape, .policy = {.prefill_chunk = 4}}));
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  REPRISE_RETURN_IF_ERROR(scheduler->Add({.prompt = prompt, .max_new_tokens = 2}).status());
  REPRISE_RETURN_IF_ERROR(scheduler->Add({.prompt = {11, 12, 13}, .max_new_tokens = 3}).status());
  std::vector<TokenEvent> events;
  while (scheduler->has_work()) {
    const ScheduledBatch& batch = scheduler->Schedule();
    const std::vector<int32_t> tokens = Run(batch);  // ModelRunner::Step(), or what you have
    scheduler->Commit(tokens, events);
  }
  // [scheduling end]
  all = events;
  scheduler->CheckInvariants();
  return absl::OkStatus();
}

TEST(ConceptsTest, TheSchedulerMakesTheStepsOfThePage) {
  std::vector<std::string> steps;
  std::vector<TokenEvent> events;
  const absl::Status status = SchedulingPage(steps, events);
  EXPECT_TRUE(status.ok()) << status;
  // docs/concepts/scheduling.md shows these steps.
  EXPECT_THAT(steps, ElementsAre("0:4 1:3*", "1:1* 0:4", "1:1* 0:2*", "0:1*"));
  int num_finished = 0;
  for (const TokenEvent& event : events) num_finished += event.finish == FinishReason::kLength;
  EXPECT_EQ(num_finished, 2);
  EXPECT_EQ(events.size(), 5u);
}

}  // namespace
}  // namespace reprise
