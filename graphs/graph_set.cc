#include "reprise/graphs/graph_set.h"

#include <glog/logging.h>

#include <algorithm>
#include <chrono>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

GraphKey KeyOf(int num_seqs, int query_len, StepInput input, bool cascade) {
  return {.padded_num_seqs = num_seqs,
          .padded_num_tokens = num_seqs * query_len,
          .max_query_len = query_len,
          .input = input,
          .cascade = cascade};
}

// With drafts, the key has enough logits for the drafts of all rows.
GraphKey MixedKeyOf(int num_seqs, int num_tokens, StepInput input, int num_drafts) {
  const int num_rows = std::min(num_seqs, num_tokens);  // a row has at least one token
  return {.padded_num_seqs = num_rows,
          .padded_num_tokens = num_tokens,
          .max_query_len = num_tokens,
          .input = input,
          .num_earlier_logits =
              static_cast<int>(std::min<int64_t>(int64_t{num_rows} * num_drafts, num_tokens - 1)),
          .num_drafts = num_drafts};
}

GraphKey DraftsKeyOf(int num_seqs, int num_drafts) {
  GraphKey key = KeyOf(num_seqs, 1 + num_drafts, StepInput::kTokens, /*cascade=*/false);
  key.num_earlier_logits = num_seqs * num_drafts;
  key.num_drafts = num_drafts;
  return key;
}

// Keys with a common prefix come last. Otherwise, largest first: by tokens, then by sequences.
// Breaks ties so that the order is deterministic.
bool ComesFirst(const GraphKey& a, const GraphKey& b) {
  const auto order = [](const GraphKey& key) {
    return std::make_tuple(key.cascade, -key.padded_num_tokens, -key.padded_num_seqs, key.input,
                           -key.num_drafts);
  };
  return order(a) < order(b);
}

// The largest captured draft count, which all mixed graphs with drafts use. 0: no drafts are
// captured.
int MaxDrafts(const GraphSetOptions& options) {
  return options.num_drafts.empty() ? 0 : options.num_drafts.back();
}

bool Has(const std::vector<int>& ascending, int value) {
  return std::binary_search(ascending.begin(), ascending.end(), value);
}

GraphDecision Eager(EagerReason reason, const StepShape& shape) {
  return {.kind = GraphDecision::Kind::kEager,
          .reason = reason,
          .key = {.padded_num_seqs = shape.num_seqs,
                  .padded_num_tokens = shape.num_tokens,
                  .max_query_len = shape.max_query_len,
                  .input = shape.input,
                  .cascade = shape.cascade,
                  .num_earlier_logits = shape.num_earlier_logits,
                  .num_drafts = shape.num_drafts}};
}

GraphDecision ReplayOf(const GraphKey& key) {
  return {.kind = GraphDecision::Kind::kReplay, .reason = EagerReason::kNone, .key = key};
}

}  // namespace

absl::StatusOr<std::unique_ptr<GraphSet>> GraphSet::Create(const GraphSetOptions& options,
                                                           GraphBackend* backend) {
  REPRISE_ASSIGN_OR_RETURN(GraphSetOptions filled, CheckedOptions(options));
  if (backend == nullptr && filled.mode != GraphSetOptions::Mode::kOff) {
    return absl::InvalidArgumentError("backend must not be null unless mode is kOff: got null");
  }
  return std::unique_ptr<GraphSet>(new GraphSet(std::move(filled), backend));
}

GraphSet::GraphSet(GraphSetOptions options, GraphBackend* backend)
    : options_(std::move(options)), backend_(backend) {}

std::vector<GraphKey> GraphSet::keys() const {
  std::vector<GraphKey> keys;
  for (const int num_seqs : options_.sizes) {
    for (const int query_len : options_.query_lens) {
      for (const StepInput input : options_.inputs) {
        for (const bool cascade : {false, true}) {
          const GraphKey key = KeyOf(num_seqs, query_len, input, cascade);
          if (HasRowsKey(key)) keys.push_back(key);
        }
      }
    }
  }
  for (const int num_seqs : options_.sizes) {
    for (const int num_drafts : options_.num_drafts) {
      keys.push_back(DraftsKeyOf(num_seqs, num_drafts));
    }
  }
  std::vector<GraphKey> mixed;
  for (const int num_tokens : options_.mixed_tokens) {
    for (const int num_seqs : options_.mixed_sizes) {
      for (const StepInput input : options_.inputs) {
        const auto add = [&](int num_drafts) {
          const GraphKey key = MixedKeyOf(num_seqs, num_tokens, input, num_drafts);
          if (IsMixed(key)) mixed.push_back(key);
        };
        add(/*num_drafts=*/0);
        if (MaxDrafts(options_) > 0) add(MaxDrafts(options_));
      }
      if (num_seqs >= num_tokens) break;  // larger sizes give the same key
    }
  }
  std::sort(keys.begin(), keys.end(), ComesFirst);
  std::sort(mixed.begin(), mixed.end(), ComesFirst);
  keys.insert(keys.end(), mixed.begin(), mixed.end());
  return keys;
}

GraphDecision GraphSet::Pad(const StepShape& shape) const {
  CHECK_GE(shape.num_seqs, 0);
  CHECK_GE(shape.num_tokens, 0);
  CHECK_GE(shape.max_query_len, 1);
  CHECK_LE(shape.num_tokens, int64_t{shape.num_seqs} * shape.max_query_len)
      << "more tokens than rows hold";
  CHECK_GE(shape.num_earlier_logits, 0);
  if (shape.num_seqs == 0) return Eager(EagerReason::kIdle, shape);
  if (shape.num_drafts > 0) return PadDrafts(shape);
  if (shape.num_earlier_logits > 0) return Eager(EagerReason::kEarlierLogits, shape);
  const GraphDecision rows = PadRows(shape);
  if (rows.kind == GraphDecision::Kind::kReplay) return rows;
  const std::optional<GraphKey> mixed = MixedKey(shape);
  return mixed.has_value() ? ReplayOf(*mixed) : rows;
}

GraphDecision GraphSet::PadRows(const StepShape& shape) const {
  const auto size = std::lower_bound(options_.sizes.begin(), options_.sizes.end(), shape.num_seqs);
  if (size == options_.sizes.end()) return Eager(EagerReason::kTooManySeqs, shape);
  const auto query_len =
      std::lower_bound(options_.query_lens.begin(), options_.query_lens.end(), shape.max_query_len);
  if (query_len == options_.query_lens.end()) return Eager(EagerReason::kQueryTooLong, shape);
  if (shape.max_seq_len > options_.max_seq_len) {
    return Eager(EagerReason::kSequenceTooLong, shape);
  }
  GraphKey key = KeyOf(*size, *query_len, shape.input, shape.cascade);
  if (!HasRowsKey(key)) key.cascade = false;
  return HasRowsKey(key) ? ReplayOf(key) : Eager(EagerReason::kNotCaptured, shape);
}

GraphDecision GraphSet::PadDrafts(const StepShape& shape) const {
  if (shape.has_given_tokens) {
    const std::optional<GraphKey> mixed = MixedKey(shape);
    return mixed.has_value() ? ReplayOf(*mixed) : Eager(EagerReason::kDraftsAmongTokens, shape);
  }
  const auto size = std::lower_bound(options_.sizes.begin(), options_.sizes.end(), shape.num_seqs);
  if (size == options_.sizes.end()) return Eager(EagerReason::kTooManySeqs, shape);
  const auto num_drafts =
      std::lower_bound(options_.num_drafts.begin(), options_.num_drafts.end(), shape.num_drafts);
  if (num_drafts == options_.num_drafts.end()) return Eager(EagerReason::kQueryTooLong, shape);
  if (shape.max_seq_len > options_.max_seq_len) {
    return Eager(EagerReason::kSequenceTooLong, shape);
  }
  return ReplayOf(DraftsKeyOf(*size, *num_drafts));
}

std::optional<GraphKey> GraphSet::MixedKey(const StepShape& shape) const {
  if (shape.cascade || shape.max_seq_len > options_.max_seq_len || !HasInput(shape.input)) {
    return std::nullopt;
  }
  const auto num_tokens = std::lower_bound(options_.mixed_tokens.begin(),
                                           options_.mixed_tokens.end(), shape.num_tokens);
  if (num_tokens == options_.mixed_tokens.end()) return std::nullopt;
  const auto num_seqs =
      std::lower_bound(options_.mixed_sizes.begin(), options_.mixed_sizes.end(), shape.num_seqs);
  // A key has at most as many rows as tokens (MixedKeyOf()). A shape with more rows than that has
  // rows without tokens, which no runner produces.
  if (num_seqs == options_.mixed_sizes.end() || shape.num_seqs > *num_tokens) return std::nullopt;
  int num_drafts = 0;
  if (shape.num_drafts > 0) {
    num_drafts = MaxDrafts(options_);
    if (shape.num_drafts > num_drafts) return std::nullopt;
  }
  const GraphKey key = MixedKeyOf(*num_seqs, *num_tokens, MixedInput(shape.input), num_drafts);
  // If prompt logits are also requested, the step may need more logits than the key has.
  if (shape.num_earlier_logits > key.num_earlier_logits) return std::nullopt;
  return key;
}

StepInput GraphSet::MixedInput(StepInput input) const {
  const bool is_shared = options_.mixed_inputs == GraphSetOptions::MixedInputs::kShared &&
                         HasInput(StepInput::kEmbeddings);
  return is_shared ? StepInput::kEmbeddings : input;
}

bool GraphSet::HasInput(StepInput input) const {
  // `inputs` has at most two elements.
  return std::find(options_.inputs.begin(), options_.inputs.end(), input) != options_.inputs.end();
}

bool GraphSet::HasRowsKey(const GraphKey& key) const {
  return Has(options_.sizes, key.padded_num_seqs) && Has(options_.query_lens, key.max_query_len) &&
         key.padded_num_tokens == key.padded_num_seqs * key.max_query_len &&
         key.num_earlier_logits == 0 && key.num_drafts == 0 && HasInput(key.input) &&
         (key.input == StepInput::kTokens ||
          key.max_query_len >= options_.min_embedding_query_len) &&
         (!key.cascade || (options_.cascade == GraphSetOptions::Cascade::kCaptured &&
                           key.padded_num_seqs >= options_.min_cascade_seqs));
}

bool GraphSet::HasDraftsKey(const GraphKey& key) const {
  return Has(options_.sizes, key.padded_num_seqs) && Has(options_.num_drafts, key.num_drafts) &&
         key == DraftsKeyOf(key.padded_num_seqs, key.num_drafts);
}

bool GraphSet::HasMixedKey(const GraphKey& key) const {
  const int num_tokens = key.padded_num_tokens;
  // A mixed graph with drafts needs two rows: a single row has either drafts or given tokens.
  const bool has_drafts = key.num_drafts > 0;
  if (has_drafts && (key.num_drafts != MaxDrafts(options_) || key.padded_num_seqs < 2)) {
    return false;
  }
  return Has(options_.mixed_tokens, num_tokens) && HasInput(key.input) &&
         key.input == MixedInput(key.input) &&
         key == MixedKeyOf(key.padded_num_seqs, num_tokens, key.input, key.num_drafts) &&
         (Has(options_.mixed_sizes, key.padded_num_seqs) ||
          (key.padded_num_seqs == num_tokens && num_tokens < options_.mixed_sizes.back()));
}

GraphDecision GraphSet::PadLikeTokens(const StepShape& shape) const {
  if (shape.input == StepInput::kTokens || !HasInput(StepInput::kTokens)) return Pad(shape);
  StepShape tokens = shape;
  tokens.input = StepInput::kTokens;
  GraphDecision decision = Pad(tokens);
  decision.key.input = shape.input;
  if (decision.kind == GraphDecision::Kind::kReplay && !HasKey(decision.key)) {
    decision.kind = GraphDecision::Kind::kEager;
    decision.reason = EagerReason::kNotCaptured;
  }
  return decision;
}

GraphDecision GraphSet::Decide(const StepShape& shape) const {
  GraphDecision decision = PadLikeTokens(shape);
  if (options_.mode == GraphSetOptions::Mode::kOff) {
    decision.kind = GraphDecision::Kind::kEager;
    decision.reason = EagerReason::kDisabled;
    return decision;
  }
  if (decision.kind == GraphDecision::Kind::kEager || graphs_.contains(decision.key)) {
    return decision;
  }
  if (options_.mode == GraphSetOptions::Mode::kLazy && !over_budget_) return decision;
  decision.key.cascade = false;
  if (graphs_.contains(decision.key)) return decision;
  return Eager(over_budget_ ? EagerReason::kOverBudget : EagerReason::kNotCaptured, shape);
}

absl::StatusOr<int64_t> GraphSet::EstimateBytes(const StepMaker& make_step) const {
  if (options_.mode == GraphSetOptions::Mode::kOff) return 0;
  struct Kind {
    GraphBytes bytes;  // measured for the largest key of this kind
    int64_t num_keys = 0;
  };
  absl::flat_hash_map<GraphKey, Kind> kinds;  // by key with size 0; mixed keys with query length 0
  int64_t pool_bytes = 0;
  int64_t mixed_pool_bytes = 0;
  for (const GraphKey& key : keys()) {
    const bool is_mixed = IsMixed(key);
    GraphKey kind_key = KeyOf(0, is_mixed ? 0 : key.max_query_len, key.input, key.cascade);
    kind_key.num_drafts = key.num_drafts;
    Kind& kind = kinds[kind_key];
    if (++kind.num_keys > 1) continue;
    REPRISE_ASSIGN_OR_RETURN(kind.bytes, backend_->TrialCapture(make_step(key)));
    int64_t& most = is_mixed ? mixed_pool_bytes : pool_bytes;
    most = std::max(most, kind.bytes.pool);
  }
  int64_t driver_bytes = 0;
  for (const auto& [unused, kind] : kinds) driver_bytes += kind.bytes.driver * kind.num_keys;
  const int64_t all_bytes = pool_bytes + mixed_pool_bytes + driver_bytes;
  return std::min(all_bytes, options_.memory_budget_bytes.value_or(all_bytes));
}

absl::Status GraphSet::CaptureAll(const StepMaker& make_step, const Fingerprint& fingerprint) {
  if (options_.mode != GraphSetOptions::Mode::kEager) return absl::OkStatus();
  for (const GraphKey& key : keys()) {
    if (over_budget_) return absl::OkStatus();
    if (graphs_.contains(key)) continue;
    REPRISE_RETURN_IF_ERROR(CaptureOne(key, make_step, fingerprint));
  }
  return absl::OkStatus();
}

// Captures `key`. If the result is OK, `key` has a graph or over_budget_ is set.
absl::Status GraphSet::CaptureOne(const GraphKey& key, const StepMaker& make_step,
                                  const Fingerprint& fingerprint) {
  const auto start = std::chrono::steady_clock::now();
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<CapturedGraph> graph, backend_->Capture(make_step(key)));
  const std::chrono::duration<double, std::milli> elapsed =
      std::chrono::steady_clock::now() - start;
  const GraphBytes bytes = graph->bytes();
  const std::optional<int64_t>& budget = options_.memory_budget_bytes;
  bool is_over = budget.has_value() && bytes.total() > *budget - report_.graph_bytes();
  if (budget.has_value() && options_.agree_over_budget) {
    REPRISE_ASSIGN_OR_RETURN(is_over, options_.agree_over_budget(is_over));
  }
  if (is_over) {
    over_budget_ = true;
    LOG(WARNING) << "captured " << graphs_.size() << " of " << keys().size() << " graphs: " << key
                 << " takes " << bytes.total() << " bytes, which exceeds the budget of " << *budget
                 << (options_.agree_over_budget ? " of a rank" : "");
    return absl::OkStatus();
  }
  graphs_.emplace(key, Entry{.graph = std::move(graph), .fingerprint = fingerprint});
  report_.AddGraph(key, bytes, elapsed.count());
  return absl::OkStatus();
}

absl::StatusOr<GraphDecision> GraphSet::Replay(const GraphKey& key, const StepMaker& make_step,
                                               const Fingerprint& fingerprint) {
  auto it = graphs_.find(key);
  if (it == graphs_.end()) {
    if (!HasKey(key)) {
      return absl::InvalidArgumentError(
          absl::StrCat("key must be one of keys(): got ", ToString(key)));
    }
    if (options_.mode != GraphSetOptions::Mode::kLazy || over_budget_) {
      return absl::FailedPreconditionError(
          absl::StrCat("key must be captured before it is replayed: got ", ToString(key)));
    }
    REPRISE_RETURN_IF_ERROR(CaptureOne(key, make_step, fingerprint));
    it = graphs_.find(key);
    if (it == graphs_.end()) {
      return GraphDecision{
          .kind = GraphDecision::Kind::kEager, .reason = EagerReason::kOverBudget, .key = key};
    }
  }
  REPRISE_RETURN_IF_ERROR(CompareFingerprints(it->second.fingerprint, fingerprint));
  REPRISE_RETURN_IF_ERROR(it->second.graph->Replay());
  return ReplayOf(key);
}

void GraphSet::Count(const GraphDecision& decision, const StepShape& shape) {
  if (decision.kind == GraphDecision::Kind::kReplay) {
    report_.AddReplay(decision.key, shape.num_seqs);
  } else {
    report_.AddEagerStep(decision.reason, shape.num_seqs, decision.key.padded_num_seqs);
  }
}

}  // namespace reprise
