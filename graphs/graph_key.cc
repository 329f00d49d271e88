#include "reprise/graphs/graph_key.h"

#include <glog/logging.h>

#include "absl/strings/str_cat.h"

namespace reprise {

std::string ToString(const GraphKey& key) {
  // A captured key that is not mixed has max_query_len tokens per sequence; an eager step may have
  // fewer tokens.
  const bool is_full =
      key.padded_num_tokens == int64_t{key.padded_num_seqs} * int64_t{key.max_query_len};
  const bool is_full_of_drafts =
      key.num_drafts > 0 &&
      key.num_earlier_logits == int64_t{key.padded_num_seqs} * int64_t{key.num_drafts};
  return absl::StrCat(key.padded_num_seqs, " seqs x ", key.max_query_len,
                      is_full ? "" : absl::StrCat(" (", key.padded_num_tokens, " tokens)"),
                      key.input == StepInput::kTokens ? ", tokens" : ", embeddings",
                      key.cascade ? ", cascade" : "",
                      key.num_drafts == 0 ? "" : absl::StrCat(", ", key.num_drafts, " drafts"),
                      key.num_earlier_logits == 0 || is_full_of_drafts
                          ? ""
                          : absl::StrCat(", ", key.num_earlier_logits, " earlier logits"));
}

std::ostream& operator<<(std::ostream& out, const GraphKey& key) { return out << ToString(key); }

std::string_view EagerReasonName(EagerReason reason) {
  switch (reason) {
    case EagerReason::kNone:
      return "none";
    case EagerReason::kDisabled:
      return "graphs disabled";
    case EagerReason::kIdle:
      return "no sequence";
    case EagerReason::kTooManySeqs:
      return "too many sequences";
    case EagerReason::kQueryTooLong:
      return "query too long";
    case EagerReason::kSequenceTooLong:
      return "sequence too long";
    case EagerReason::kNotCaptured:
      return "not captured";
    case EagerReason::kOverBudget:
      return "over memory budget";
    case EagerReason::kCalibrates:
      return "calibrates the cache";
    case EagerReason::kEarlierLogits:
      return "earlier logits";
    case EagerReason::kDraftsAmongTokens:
      return "drafts among given tokens";
  }
  LOG(FATAL) << "unknown EagerReason: " << static_cast<int>(reason);
}

std::ostream& operator<<(std::ostream& out, EagerReason reason) {
  return out << EagerReasonName(reason);
}

std::string ToString(const GraphDecision& decision) {
  if (decision.kind == GraphDecision::Kind::kReplay) {
    return absl::StrCat("replay ", ToString(decision.key));
  }
  const std::string_view reason = EagerReasonName(decision.reason);
  return absl::StrCat("eager ", ToString(decision.key), ": ",
                      absl::string_view(reason.data(), reason.size()));
}

std::ostream& operator<<(std::ostream& out, const GraphDecision& decision) {
  return out << ToString(decision);
}

}  // namespace reprise
