// A fake device that runs the batches of a Scheduler on the host, with failures on demand.
//
//   PuppetDevice device(options);
//   device.Launch(scheduler.Schedule());
//   scheduler.Commit(*device.Await(), events);
//
// The device stores tokens in its blocks instead of keys. A slot that joins after a prefix hit
// reads its text and its encoder input from these blocks. The device fails the test if:
//   - a slot joins or leaves out of turn, or two rows have the same slot;
//   - a row accesses memory outside the blocks of its slot;
//   - a layer group holds tokens, within its window, that differ from the slot's text;
//   - a runner with these options would refuse the batch (runner/slots/slot_mirror.h).
//
// Drafts. The number of right drafts per row is random. Wrong drafts store wrong tokens, which
// later rows of the slot must overwrite.
//
// Failures. Failed steps and NaN rows store invalid tokens. The test fails if a sequence reuses
// them as a prefix.
//
// Thread safety: none; one owner.

#ifndef REPRISE_ENGINE_TESTING_PUPPET_DEVICE_H_
#define REPRISE_ENGINE_TESTING_PUPPET_DEVICE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/cache/kv_group.h"
#include "reprise/engine/request.h"
#include "reprise/engine/scheduler.h"
#include "reprise/runner/slots/scheduled_batch.h"
#include "reprise/runner/slots/slot_mirror.h"
#include "reprise/runner/step_result.h"

namespace reprise {

inline constexpr int kPuppetVocab = 50;

// The logits request of a sequence, and the tokens that its penalties count.
struct PuppetLogits {
  LogitsParams params = {};
  std::vector<LogitBias> biases = {};
  LogitsStageSet stages = 0;
  std::vector<int32_t> prompt = {};
  std::vector<int32_t> output = {};
};

// Returns the token that follows `text`, given an encoder's input. A change of any fed token, of
// the seed, index, parameters or counts usually changes the later tokens. Greedy rows do not depend
// on the seed or on `index`, the number of tokens generated before. `mask`: empty, or the mask of
// allowed tokens. Returns nullopt if it allows none.
std::optional<int32_t> PuppetToken(const std::vector<int32_t>& input,
                                   const std::vector<int32_t>& text, const SamplingParams& sampling,
                                   int64_t index, const PuppetLogits& logits = {},
                                   absl::Span<const int32_t> mask = {});

// Returns the log-probability of `token` after `text`, with `num_top` candidates.
TokenLogProbs PuppetLogProbs(absl::Span<const int32_t> text, int32_t token, int num_top);

// Returns the integer that the device stores for a token: its id, or kPuppetVocab + the first
// element of its embedding. For models with positions of several dimensions, the position is mixed
// in.
int32_t PuppetContent(int32_t token, const float* embedding, absl::Span<const int32_t> positions);

// The expected output of a sequence.
struct PuppetText {
  std::vector<int32_t> tokens = {};
  FinishReason finish = FinishReason::kNone;
  std::vector<TokenLogProbs> log_probs = {};         // empty unless requested
  std::vector<TokenLogProbs> prompt_log_probs = {};  // empty unless requested

  // Adds the token, log-probabilities and finish of an event.
  void Add(const TokenEvent& event);

  friend bool operator==(const PuppetText&, const PuppetText&) = default;
};

// Returns the complete output of sequence `sample` of a request that is greedy or has a seed.
// `max_cached_tokens`: Scheduler::max_cached_tokens().
PuppetText ExpectedText(const Request& request, int sample, const SchedulerOptions& options,
                        int max_cached_tokens);

class PuppetDevice {
 public:
  // Injected failures of a step.
  struct Fate {
    bool fails = false;  // Await() returns an error
    // Indices of rows with NaN logits. The token of a sampling row is -2; the log-probabilities of
    // a scored row are NaN; a row without output is not affected.
    std::set<int> nan_rows = {};
  };

  explicit PuppetDevice(const SchedulerOptions& options);

  // The shape of a runner for a scheduler with these options.
  const RunnerShape& shape() const { return options_.shape; }

  void Launch(const ScheduledBatch& batch) { Launch(batch, Fate()); }
  void Launch(const ScheduledBatch& batch, const Fate& fate);

  // Returns the tokens of the oldest launched step. REQUIRES: a step is in flight.
  absl::StatusOr<std::vector<int32_t>> Await();
  // The results of the last awaited step. Valid until the next Await().
  StepResult output() const;

  int64_t num_copies() const { return num_copies_; }

  // Sets the number of right drafts per 1,000 drafts. Default: all.
  void set_right_drafts(int per_thousand) { right_drafts_ = per_thousand; }
  int64_t num_drafts() const { return num_drafts_; }

 private:
  // Log-probabilities of rows, in the runner's format; NaN for rows that did not request them.
  struct LogProbArrays {
    std::vector<float> log_probs = {};
    std::vector<int32_t> ranks = {};
    std::vector<int32_t> top_tokens = {};
    std::vector<float> top_log_probs = {};

    void Add(const TokenLogProbs* row);  // null: not requested
    RowLogProbsView View() const;
  };
  struct Output {
    std::vector<int32_t> tokens = {};
    LogProbArrays log_probs = {};
    LogProbArrays earlier = {};
    // For steps with drafts: [rows], and [rows, 1 + the policy's num_drafts].
    std::vector<int32_t> num_new_tokens = {};
    std::vector<int32_t> new_tokens = {};
  };
  // A step that was launched.
  struct Step {
    absl::StatusOr<Output> output;
    std::vector<UnsettledRow> unsettled = {};
  };
  struct Slot {
    SamplingParams sampling = {};
    PuppetLogits logits = {};
    std::vector<int32_t> text = {};
    int32_t last_token = -1;
    int64_t sample_index = 0;
    int num_encoder_tokens = 0;
    int position_delta = 0;
    int num_hits = 0;        // tokens of the prefix hit that are not read from the blocks yet
    bool is_doomed = false;  // a row of the slot has failed: later tokens are invalid
    std::map<std::pair<int, int>, int> blocks = {};  // by group and column
  };

  int BlockAt(Slot& slot, int group, int position) const;
  // The token that was last written at this position.
  int32_t& Memory(Slot& slot, int group, int position);
  void Copy(absl::Span<const BlockCopy> copies);
  // Copy blocks between the cache and the host. A host block is invalid after it was swapped in.
  void SwapOut(absl::Span<const BlockCopy> copies);
  void SwapIn(absl::Span<const BlockCopy> copies);
  // Reads the text before the slot's first row from its blocks. REQUIRES: a group of full
  // attention.
  void FindText(Slot& slot);
  void Encode(const ScheduledEncode& encode, Slot& slot);
  // Reads the encoder's input from the blocks of the cross groups.
  std::vector<int32_t> FindInput(Slot& slot);
  void Join(const ScheduledBatch& batch);
  // Checks the tokens before the row, and writes the row's tokens.
  void RunRow(const ScheduledRow& row, absl::Span<const ScheduledEmbeddings> embeddings,
              Slot& slot);
  // Returns PuppetContent() of the row's tokens.
  std::vector<int32_t> ContentOf(const ScheduledRow& row,
                                 absl::Span<const ScheduledEmbeddings> embeddings,
                                 const Slot& slot) const;
  // Chooses the row's token, if it samples one, and computes the requested log-probabilities.
  void Choose(const ScheduledRow& row, Slot& slot, bool is_nan, Output& output);

  // Runs a row with drafts, and adds its new tokens to `output`.
  void RunDrafts(const ScheduledRow& row, Slot& slot, bool is_nan, Output& output);
  // Writes a token after the slot's text to all groups.
  void Write(Slot& slot, int position, int32_t content);
  // Adds the new tokens of the last row of `output`, if the step has drafts.
  void AddNewTokens(absl::Span<const int32_t> tokens, Output& output) const;

  SchedulerOptions options_;
  std::mt19937 rng_;
  int right_drafts_ = 1000;
  int64_t num_drafts_ = 0;
  std::vector<KvGroupSpec> groups_;
  std::map<int, int32_t> memory_;                // by slot of the cache
  std::map<int, std::vector<int32_t>> swapped_;  // by host block
  std::map<int, Slot> slots_;
  SlotMirror mirror_;
  std::deque<Step> pending_;
  Output awaited_;
  int64_t num_copies_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_TESTING_PUPPET_DEVICE_H_
