// The decode loop of an engine, written by hand in one file: an example for users with their own
// scheduler.
//
//   ./bazelw run //examples/simple -- "YEAR, n." "hacker"
//
// Two objects do the work. BlockManager keeps the books on the host: which blocks of the KV cache
// belong to which sequence. ModelRunner owns the cache itself and runs steps: it copies a step's
// few changes to the device, runs the model (decode steps as a captured graph) and samples. Only
// the loop below connects them. Any reprise::Model can replace the one that is loaded here.

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "base/ids.h"
#include "base/status_macros.h"
#include "cache/blocks/block_manager.h"
#include "examples/models/model_folder.h"
#include "runner/model.h"
#include "runner/model_runner.h"
#include "runner/slots/scheduled_batch.h"

namespace reprise {
namespace {

constexpr int kMaxLength = 96;  // of a sequence, its prompt included

// A sequence in the slot of its index.
struct Sequence {
  std::vector<int32_t> tokens;  // the prompt, and what has been generated
  bool is_finished = false;
};

// The first step: every sequence joins a slot, and all prompts are computed at once. (An engine with
// long prompts cuts them into chunks: rows with RowOutput::kNone until the last.)
absl::Status Prefill(ModelRunner& runner, BlockManager& blocks, std::vector<Sequence>& sequences) {
  std::vector<SlotJoin> joins;
  std::vector<ScheduledRow> rows;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const SlotId slot(static_cast<int32_t>(i));
    // Blocks for the prompt. ResourceExhausted would mean: try again when others have ended.
    REPRISE_RETURN_IF_ERROR(blocks.Add(slot, static_cast<int>(sequences[i].tokens.size())));
    joins.push_back({.slot = slot.value()});
    rows.push_back({.slot = slot, .tokens = sequences[i].tokens});
  }
  // Updates are the changed entries of the block tables; the device gets only these.
  REPRISE_ASSIGN_OR_RETURN(
      const StepResult result,
      runner.Step({.joins = joins, .updates = blocks.TakeUpdates(), .rows = rows}));
  for (size_t i = 0; i < sequences.size(); ++i) {
    // The prompt's keys are in the cache now.
    REPRISE_RETURN_IF_ERROR(blocks.Commit(rows[i].slot, sequences[i].tokens));
    sequences[i].tokens.push_back(result.tokens[i]);
  }
  return absl::OkStatus();
}

// One step of decoding: a token for each sequence that is not finished. `leaves`: slots whose
// sequences ended in the step before.
absl::Status Decode(ModelRunner& runner, BlockManager& blocks, std::vector<Sequence>& sequences,
                    const std::vector<SlotId>& leaves) {
  std::vector<ScheduledRow> rows;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i].is_finished) continue;
    const SlotId slot(static_cast<int32_t>(i));
    // Room for the key of the last token, mostly in the sequence's last block.
    REPRISE_RETURN_IF_ERROR(blocks.Append(slot, 1));
    // No tokens: the row takes what its slot sampled last, which the device still has.
    rows.push_back({.slot = slot});
  }
  REPRISE_ASSIGN_OR_RETURN(
      const StepResult result,
      runner.Step({.leaves = leaves, .updates = blocks.TakeUpdates(), .rows = rows}));
  for (size_t row = 0; row < rows.size(); ++row) {
    std::vector<int32_t>& tokens = sequences[rows[row].slot.value()].tokens;
    REPRISE_RETURN_IF_ERROR(blocks.Commit(rows[row].slot, {tokens.back()}));
    tokens.push_back(result.tokens[row]);
  }
  return absl::OkStatus();
}

absl::Status Run(const std::vector<std::string>& prompts) {
  REPRISE_ASSIGN_OR_RETURN(const std::string path, DefaultModelFolder());
  REPRISE_ASSIGN_OR_RETURN(const ModelFolder folder, ModelFolder::Open(path));
  REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                           LoadModel(path, folder.config, {.weights = {.dtype = DType::kFloat32}}));
  std::vector<Sequence> sequences;
  for (const std::string& prompt : prompts) {
    REPRISE_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, folder.tokenizer->Encode(prompt));
    sequences.push_back({.tokens = std::move(tokens)});
  }

  const int num_slots = static_cast<int>(sequences.size());
  REPRISE_ASSIGN_OR_RETURN(
      const std::unique_ptr<ModelRunner> runner,
      ModelRunner::Create(model.get(), {.max_num_seqs = num_slots, .max_seq_len = kMaxLength}));
  REPRISE_ASSIGN_OR_RETURN(
      BlockManager blocks,
      BlockManager::Create({.num_blocks = runner->num_blocks(),
                            .block_size = runner->block_size(),
                            .num_slots = num_slots,
                            .max_blocks = runner->max_blocks(),
                            .groups = {runner->kv_groups().begin(), runner->kv_groups().end()}}));

  REPRISE_RETURN_IF_ERROR(Prefill(*runner, blocks, sequences));
  for (int num_running = num_slots; num_running > 0;) {
    std::vector<SlotId> leaves;
    for (int i = 0; i < num_slots; ++i) {
      Sequence& sequence = sequences[i];
      if (sequence.is_finished) continue;
      const std::vector<int32_t>& ends = folder.eos_token_ids();
      sequence.is_finished = sequence.tokens.size() == kMaxLength ||
                             std::count(ends.begin(), ends.end(), sequence.tokens.back()) > 0;
      if (!sequence.is_finished) continue;
      --num_running;
      leaves.push_back(SlotId(i));
      REPRISE_RETURN_IF_ERROR(blocks.Free(SlotId(i)));  // for other sequences, if there were any
    }
    if (num_running > 0) REPRISE_RETURN_IF_ERROR(Decode(*runner, blocks, sequences, leaves));
  }
  for (const Sequence& sequence : sequences) {
    std::cout << folder.tokenizer->Decode(sequence.tokens, SpecialTokenText::kSkip) << "\n";
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace reprise

int main(int argc, char** argv) {
  std::vector<std::string> prompts(argv + 1, argv + argc);
  if (prompts.empty()) prompts = {"YEAR, n.", "hack value\n"};
  const absl::Status status = reprise::Run(prompts);
  if (!status.ok()) std::cerr << "simple: " << status.message() << std::endl;
  return status.ok() ? 0 : 1;
}
