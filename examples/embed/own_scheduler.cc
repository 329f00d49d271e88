// A scheduler of one's own over ModelRunner: the shortest prompt first, prompts in chunks beside
// decodes, two sequences at a time. The runner knows no queues; BlockManager keeps the books of the
// cache.

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <utility>
#include <vector>

#include "cache/blocks/block_manager.h"
#include "counting_model.h"
#include "example.h"
#include "runner/model_runner.h"

namespace {

constexpr int kNumSlots = 2, kChunk = 4, kNewTokens = 6;

struct Sequence {
  std::vector<int32_t> tokens;  // the prompt, and what has been generated
  int prompt_len = 0;
  int num_computed = 0;  // tokens whose keys are in the cache
  bool is_decoding() const { return num_computed >= prompt_len; }
};

}  // namespace

int main() {
  CountingModel model(ExampleDevice());
  const std::unique_ptr<reprise::ModelRunner> runner =
      Check(reprise::ModelRunner::Create(&model, {.max_num_seqs = kNumSlots}));
  reprise::BlockManager blocks = Check(reprise::BlockManager::Create(
      {.num_blocks = runner->num_blocks(),
       .block_size = runner->block_size(),
       .num_slots = kNumSlots,
       .max_blocks = runner->max_blocks(),
       .groups = {runner->kv_groups().begin(), runner->kv_groups().end()}}));

  std::vector<std::vector<int32_t>> waiting = {
      {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {20, 21, 22}, {5, 6, 7, 8, 9}, {11}};
  // The policy: the shortest prompt is at the back, where it is taken from.
  std::sort(waiting.begin(), waiting.end(),
            [](const auto& a, const auto& b) { return a.size() > b.size(); });
  std::vector<Sequence> running(kNumSlots);  // by slot; without tokens: the slot is free

  std::cout << "own_scheduler:";
  for (int num_done = 0; num_done < 4;) {
    std::vector<reprise::SlotId> leaves;
    std::vector<reprise::SlotJoin> joins;
    std::vector<reprise::ScheduledRow> rows;
    for (int i = 0; i < kNumSlots; ++i) {
      const reprise::SlotId slot(i);
      Sequence& sequence = running[i];
      if (static_cast<int>(sequence.tokens.size()) == sequence.prompt_len + kNewTokens &&
          sequence.prompt_len > 0) {
        std::cout << ' ' << sequence.tokens.front() << ".." << sequence.tokens.back();
        for (size_t t = 1; t < sequence.tokens.size(); ++t) {
          Expect(sequence.tokens[t] == sequence.tokens[t - 1] + 1, "the model to count");
        }
        leaves.push_back(slot);
        Check(blocks.Free(slot));
        sequence = {};
        ++num_done;
      }
      if (sequence.tokens.empty() && !waiting.empty()) {
        sequence = {.tokens = waiting.back(),
                    .prompt_len = static_cast<int>(waiting.back().size())};
        waiting.pop_back();
        joins.push_back({.slot = slot.value()});
        Check(blocks.Add(slot, 0));
      }
      if (sequence.tokens.empty()) continue;
      if (sequence.is_decoding()) {
        // No tokens: the row takes what its slot sampled last, which the device still has.
        Check(blocks.Append(slot, 1));
        rows.push_back({.slot = slot});
      } else {
        const int chunk = std::min(kChunk, sequence.prompt_len - sequence.num_computed);
        const bool is_last = sequence.num_computed + chunk == sequence.prompt_len;
        Check(blocks.Append(slot, chunk));
        rows.push_back(
            {.slot = slot,
             .tokens = absl::MakeSpan(sequence.tokens).subspan(sequence.num_computed, chunk),
             .output = is_last ? reprise::RowOutput::kToken : reprise::RowOutput::kNone});
      }
    }
    if (rows.empty()) break;
    // Updates are the changed entries of the block tables; the device gets only these.
    const reprise::StepResult result = Check(runner->Step(
        {.leaves = leaves, .joins = joins, .updates = blocks.TakeUpdates(), .rows = rows}));
    for (size_t r = 0; r < rows.size(); ++r) {
      Sequence& sequence = running[rows[r].slot.value()];
      const int count = rows[r].query_len();
      Check(blocks.Commit(rows[r].slot,
                          absl::MakeSpan(sequence.tokens).subspan(sequence.num_computed, count)));
      sequence.num_computed += count;
      if (rows[r].output == reprise::RowOutput::kToken) sequence.tokens.push_back(result.tokens[r]);
    }
  }
  std::cout << std::endl;
}
