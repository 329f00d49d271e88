// Simulates the device's work on the batches of a Scheduler, and fails where a test says so.
//
//   PuppetDevice device(options);
//   device.Launch(scheduler.Schedule());
//   scheduler.Commit(*device.Await(), events);
//
// Tokens are written to the blocks that the updates have named, in place of their keys, and a slot
// that joins behind a prefix finds its text there, and its encoder's input. Checks what a device cannot: that slots leave
// and join in turn, that rows are distinct and within the blocks of their slot, and that the tokens
// which each layer group still sees are those of the slot's own text. A batch that a runner of such
// options would refuse (runner/slots/slot_mirror.h) fails the test.
//
// Drafts. Which of a row's drafts are right is drawn; wrong ones leave wrong tokens in place of their
// keys, which the slot's next rows write again.
//
// Failures are hostile. A step that fails, and a row that is NaN, leave rubbish in place of their
// keys; a sequence that finds it as a prefix fails the test.
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

// What a sequence asks of logits, and the tokens that its penalties count.
struct PuppetLogits {
  LogitsParams params = {};
  std::vector<LogitBias> biases = {};
  LogitsStageSet stages = 0;
  std::vector<int32_t> prompt = {};
  std::vector<int32_t> output = {};
};

// The token that follows a text, given an encoder's input: any wrongly fed token, seed, index,
// parameter or count changes all that follow. Greedy rows do not depend on the seed or on `index`,
// the number of tokens generated before. `mask`: empty, or of the allowed tokens; nullopt if it
// allows none.
std::optional<int32_t> PuppetToken(const std::vector<int32_t>& input,
                                   const std::vector<int32_t>& text, const SamplingParams& sampling,
                                   int64_t index, const PuppetLogits& logits = {},
                                   absl::Span<const int32_t> mask = {});

// Those of `token` behind a text, and of `num_top` others.
TokenLogProbs PuppetLogProbs(absl::Span<const int32_t> text, int32_t token, int num_top);

// What a token is to the device: its id, or the first element of its embedding, and, for models
// with positions of several dimensions, where it is.
int32_t PuppetContent(int32_t token, const float* embedding, absl::Span<const int32_t> positions);

// What a sequence alone would get.
struct PuppetText {
  std::vector<int32_t> tokens = {};
  FinishReason finish = FinishReason::kNone;
  std::vector<TokenLogProbs> log_probs = {};         // as far as asked for
  std::vector<TokenLogProbs> prompt_log_probs = {};  // likewise

  // Takes over what an event brings.
  void Add(const TokenEvent& event);

  friend bool operator==(const PuppetText&, const PuppetText&) = default;
};

// The text of sequence `sample` of a request with a seed, or a greedy one, if it runs to its end.
// `max_cached_tokens`: the scheduler's.
PuppetText ExpectedText(const Request& request, int sample, const SchedulerOptions& options,
                        int max_cached_tokens);

class PuppetDevice {
 public:
  // What happens to a step.
  struct Fate {
    bool fails = false;  // Await() returns an error
    // Indices. Those that sample get -2 for a token, the log-probabilities of those that are scored
    // are NaN; others are as if they were not here.
    std::set<int> nan_rows = {};
  };

  explicit PuppetDevice(const SchedulerOptions& options);

  // The shape of a runner for such a scheduler.
  const RunnerShape& shape() const { return options_.shape; }

  void Launch(const ScheduledBatch& batch) { Launch(batch, Fate()); }
  void Launch(const ScheduledBatch& batch, const Fate& fate);

  // Of the oldest step that was launched. REQUIRES: there is one.
  absl::StatusOr<std::vector<int32_t>> Await();
  // All that the step has computed that was awaited last, until the next one is.
  StepResult output() const;

  int64_t num_copies() const { return num_copies_; }

  // Of 1,000 drafts, how many are right. At first all are.
  void set_right_drafts(int per_thousand) { right_drafts_ = per_thousand; }
  int64_t num_drafts() const { return num_drafts_; }

 private:
  // Log-probabilities of rows, in the runner's form; NaN where none were asked for.
  struct LogProbArrays {
    std::vector<float> log_probs = {};
    std::vector<int32_t> ranks = {};
    std::vector<int32_t> top_tokens = {};
    std::vector<float> top_log_probs = {};

    void Add(const TokenLogProbs* row);  // null: none
    RowLogProbsView View() const;
  };
  struct Output {
    std::vector<int32_t> tokens = {};
    LogProbArrays log_probs = {};
    LogProbArrays earlier = {};
    // In steps with drafts. [rows], and [rows, 1 + the policy's drafts].
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
    int num_hits = 0;        // tokens that it joined with, until they are looked up
    bool is_doomed = false;  // a row of it has failed: what follows is rubbish
    std::map<std::pair<int, int>, int> blocks = {};  // by group and column
  };

  int BlockAt(Slot& slot, int group, int position) const;
  // The token that was written there last.
  int32_t& Memory(Slot& slot, int group, int position);
  void Copy(absl::Span<const BlockCopy> copies);
  // Between the cache and the host. What was moved in is rubbish on the host afterwards.
  void SwapOut(absl::Span<const BlockCopy> copies);
  void SwapIn(absl::Span<const BlockCopy> copies);
  // The text before a slot's first row is the content of its blocks. REQUIRES: a full group.
  void FindText(Slot& slot);
  void Encode(const ScheduledEncode& encode, Slot& slot);
  // The encoder's input as the cross groups hold it.
  std::vector<int32_t> FindInput(Slot& slot);
  void Join(const ScheduledBatch& batch);
  // Writes the row's tokens, after a look at those before them.
  void RunRow(const ScheduledRow& row, absl::Span<const ScheduledEmbeddings> embeddings,
              Slot& slot);
  // The row's tokens as PuppetContent().
  std::vector<int32_t> ContentOf(const ScheduledRow& row,
                                 absl::Span<const ScheduledEmbeddings> embeddings,
                                 const Slot& slot) const;
  // Chooses the row's token, or none, and scores what it asks for.
  void Choose(const ScheduledRow& row, Slot& slot, bool is_nan, Output& output);

  // Runs a row with drafts, and says which tokens follow.
  void RunDrafts(const ScheduledRow& row, Slot& slot, bool is_nan, Output& output);
  // Writes a token behind the slot's text to all groups.
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
