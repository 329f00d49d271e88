// A decode loop of one's own in one file: an example for users with their own scheduler.
//
//   ./bazelw run //examples/simple -- "YEAR, n." "hacker"
//
// Two objects do the work. ModelRunner owns the KV cache and runs steps: it copies a step's few
// changes to the device, runs the model (decode steps as a captured graph) and samples. StepBuilder
// does the bookkeeping on the host: which blocks of the cache belong to which sequence, and which
// tokens a step computes. Any reprise::Model can replace the one that is loaded here.

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "reprise/base/dtype.h"
#include "reprise/base/ids.h"
#include "reprise/base/status_macros.h"
#include "reprise/models/model_folder.h"
#include "reprise/runner/model.h"
#include "reprise/runner/model_runner.h"
#include "reprise/runner/step_builder.h"

namespace reprise {
namespace {

// Number of tokens of a sequence whose keys are cached: its prompt, and all generated tokens but
// the newest.
constexpr int kMaxLength = 96;

// Each prompt with the text that follows it, in the order of `prompts`.
absl::StatusOr<std::vector<std::vector<int32_t>>> Generate(
    ModelRunner& runner, absl::Span<const std::vector<int32_t>> prompts,
    absl::Span<const int32_t> ends) {
  REPRISE_ASSIGN_OR_RETURN(StepBuilder steps, StepBuilder::Create(runner));
  std::vector<size_t> prompt_of(prompts.size());  // by slot
  for (size_t i = 0; i < prompts.size(); ++i) {
    // ResourceExhausted would mean: try again when others have left.
    REPRISE_ASSIGN_OR_RETURN(const SlotId slot, steps.Join(prompts[i]));
    prompt_of[slot.value()] = i;
  }
  std::vector<std::vector<int32_t>> texts(prompts.size());
  while (steps.num_sequences() > 0) {
    // The first steps compute the prompts, in chunks. From then on each has a token per sequence.
    REPRISE_ASSIGN_OR_RETURN(const absl::Span<const NewToken> step, steps.Run());
    for (const NewToken& next : step) {
      if (!next.is_last && std::count(ends.begin(), ends.end(), next.token) == 0) continue;
      const absl::Span<const int32_t> text = steps.tokens(next.slot);
      texts[prompt_of[next.slot.value()]].assign(text.begin(), text.end());
      REPRISE_RETURN_IF_ERROR(steps.Leave(next.slot));
    }
  }
  return texts;
}

absl::Status Run(const std::vector<std::string>& prompts) {
  REPRISE_ASSIGN_OR_RETURN(const std::string path, DefaultModelFolder());
  REPRISE_ASSIGN_OR_RETURN(const ModelFolder folder, ModelFolder::Open(path));
  REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                           LoadModel(path, folder.config, {.weights = {.dtype = DType::kFloat32}}));
  if (!folder.tokenizer.has_value()) return absl::NotFoundError(folder.WhyNoTokenizer());
  std::vector<std::vector<int32_t>> tokens;
  for (const std::string& prompt : prompts) {
    REPRISE_ASSIGN_OR_RETURN(tokens.emplace_back(), folder.tokenizer->Encode(prompt));
    if (tokens.back().size() > kMaxLength) {
      return absl::InvalidArgumentError(absl::StrCat(
          "prompt too long: expected at most ", kMaxLength, " tokens, got ", tokens.back().size()));
    }
  }
  const int num_slots = static_cast<int>(prompts.size());
  REPRISE_ASSIGN_OR_RETURN(
      const std::unique_ptr<ModelRunner> runner,
      ModelRunner::Create(model.get(), {.max_num_seqs = num_slots, .max_seq_len = kMaxLength}));
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::vector<int32_t>> texts,
                           Generate(*runner, tokens, folder.eos_token_ids()));
  for (const std::vector<int32_t>& text : texts) {
    std::cout << folder.tokenizer->Decode(text, SpecialTokenText::kSkip) << "\n";
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
