// A scheduler of one's own over ModelRunner: the shortest prompt first, prompts in chunks beside
// decodes, two sequences at a time. The runner knows no queues, and StepBuilder makes its batches:
// who joins and who leaves is decided here.

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <vector>

#include "counting_model.h"
#include "example.h"
#include "reprise/runner/model_runner.h"
#include "reprise/runner/step_builder.h"

namespace {

constexpr int kNumSlots = 2, kChunk = 4, kNewTokens = 6;

}  // namespace

int main() {
  CountingModel model(ExampleDevice());
  const std::unique_ptr<reprise::ModelRunner> runner =
      Check(reprise::ModelRunner::Create(&model, {.max_num_seqs = kNumSlots}));
  reprise::StepBuilder steps = Check(reprise::StepBuilder::Create(*runner, {.max_chunk = kChunk}));

  std::vector<std::vector<int32_t>> waiting = {
      {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {20, 21, 22}, {5, 6, 7, 8, 9}, {11}};
  // The policy: the shortest prompt is at the back, where it is taken from.
  std::sort(waiting.begin(), waiting.end(),
            [](const auto& a, const auto& b) { return a.size() > b.size(); });
  std::vector<size_t> ends(kNumSlots);  // by slot: the length of the whole text

  std::cout << "own_scheduler:";
  while (!waiting.empty() || steps.num_sequences() > 0) {
    while (!waiting.empty()) {
      const absl::StatusOr<reprise::SlotId> slot = steps.Join(waiting.back());
      if (absl::IsResourceExhausted(slot.status())) break;  // of slots or of blocks: one must leave
      ends[Check(slot).value()] = waiting.back().size() + kNewTokens;
      waiting.pop_back();
    }
    for (const reprise::NewToken& next : Check(steps.Run())) {
      const absl::Span<const int32_t> text = steps.tokens(next.slot);
      if (text.size() < ends[next.slot.value()]) continue;
      std::cout << ' ' << text.front() << ".." << text.back();
      for (size_t t = 1; t < text.size(); ++t) {
        Expect(text[t] == text[t - 1] + 1, "the model to count");
      }
      Check(steps.Leave(next.slot));
    }
  }
  std::cout << std::endl;
}
