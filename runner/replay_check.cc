#include "reprise/runner/replay_check.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/any.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nonzero.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"

namespace reprise {
namespace {

std::string Describe(std::string_view name, const at::Tensor& tensor) {
  return absl::StrCat("'", std::string(name), "' [", absl::StrJoin(tensor.sizes(), ", "), "] ",
                      std::string(tensor.dtype().name()));
}

// Returns the bytes of each element, [numel, bytes per element].
at::Tensor Bytes(const at::Tensor& tensor) {
  return tensor.contiguous().view({-1}).view(at::kByte).view({-1, tensor.element_size()});
}

// Converts the index of an element to "[2, 0, 17]".
std::string Position(const at::Tensor& tensor, int64_t element) {
  std::vector<int64_t> index(tensor.dim());
  for (int64_t d = tensor.dim() - 1; d >= 0; --d) {
    index[d] = element % tensor.size(d);
    element /= tensor.size(d);
  }
  return absl::StrCat("[", absl::StrJoin(index, ", "), "]");
}

double ValueAt(const at::Tensor& tensor, int64_t element) {
  return tensor.contiguous().view({-1})[element].to(at::kDouble).item<double>();
}

}  // namespace

void KeptTensors::Begin() {
  num_seen_ = 0;
  status_ = absl::OkStatus();
  if (!is_complete_) entries_.clear();  // removes the entries of a failed pass
}

at::Tensor KeptTensors::Room(const at::Tensor& tensor) {
  if (memory_->size() <= num_seen_) memory_->resize(num_seen_ + 1);
  at::Tensor& bytes = (*memory_)[num_seen_];
  const int64_t num_bytes = static_cast<int64_t>(tensor.nbytes());
  // Captured graphs of smaller keys still use the previous memory: their entries keep it alive.
  if (!bytes.defined() || bytes.numel() < num_bytes) {
    bytes = at::empty({num_bytes}, tensor.options().dtype(at::kByte));
  }
  return bytes.narrow(0, 0, num_bytes).view(tensor.scalar_type()).view(tensor.sizes());
}

void KeptTensors::See(std::string_view name, const at::Tensor& tensor, WatchedRows) {
  if (!status_.ok()) return;
  if (!is_complete_) entries_.push_back({.name = std::string(name), .tensor = Room(tensor)});
  if (num_seen_ == entries_.size()) {
    status_ = absl::InternalError(
        absl::StrCat("a captured step must watch the same tensors each time: expected ", num_seen_,
                     ", got one more, ", Describe(name, tensor)));
    return;
  }
  const Entry& entry = entries_[num_seen_++];
  if (entry.name != name || entry.tensor.sizes() != tensor.sizes() ||
      entry.tensor.scalar_type() != tensor.scalar_type()) {
    status_ = absl::InternalError(
        absl::StrCat("a captured step must watch the same tensors each time: expected ",
                     Describe(entry.name, entry.tensor), ", got ", Describe(name, tensor)));
    return;
  }
  entry.tensor.copy_(tensor);
}

absl::Status KeptTensors::End() {
  if (status_.ok() && num_seen_ < entries_.size()) {
    status_ = absl::InternalError(
        absl::StrCat("a captured step must watch the same tensors each time: expected ",
                     entries_.size(), ", got ", num_seen_));
  }
  is_complete_ = is_complete_ || status_.ok();
  return status_;
}

void ReplayComparison::Begin() {
  num_seen_ = 0;
  status_ = absl::OkStatus();
}

absl::Status ReplayComparison::Differs(std::string_view expected, std::string_view got) const {
  return absl::InternalError(absl::StrCat(
      "the replay of ", ToString(key_), " is not the step that it was captured from: expected ",
      std::string(expected), " as in the eager run, got ", std::string(got)));
}

int ReplayComparison::NumRows(WatchedRows rows) const {
  if (rows == WatchedRows::kTokens) return key_.padded_num_tokens;
  return key_.padded_num_seqs + key_.num_earlier_logits;
}

// The logits of rows come first, then the logits of earlier tokens. Both parts end with padding.
void ReplayComparison::ForgetPadding(WatchedRows rows, at::Tensor differs) const {
  const auto forget = [&](int begin, int end) { differs.slice(0, begin, end).zero_(); };
  if (rows == WatchedRows::kTokens) return forget(shape_.num_tokens, key_.padded_num_tokens);
  forget(shape_.num_seqs, key_.padded_num_seqs);
  forget(key_.padded_num_seqs + shape_.num_earlier_logits, NumRows(rows));
}

absl::Status ReplayComparison::Compare(const KeptTensors::Entry& kept, const at::Tensor& tensor,
                                       WatchedRows rows) const {
  if (rows != WatchedRows::kAll && (tensor.dim() == 0 || tensor.size(0) != NumRows(rows))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a watched tensor must have one row per ", rows == WatchedRows::kTokens ? "token" : "logit",
        " of the step, or be watched with WatchedRows::kAll: expected ", NumRows(rows),
        " rows, got ", Describe(kept.name, tensor)));
  }
  if (tensor.numel() == 0) return absl::OkStatus();
  at::Tensor differs = (Bytes(kept.tensor) != Bytes(tensor)).any(1);
  if (rows != WatchedRows::kAll) ForgetPadding(rows, differs.view({NumRows(rows), -1}));
  if (!differs.any().item<bool>()) return absl::OkStatus();
  const int64_t element = differs.nonzero()[0].item<int64_t>();
  return Differs(absl::StrCat("'", kept.name, "' at ", Position(tensor, element), " ",
                              ValueAt(tensor, element)),
                 absl::StrCat(ValueAt(kept.tensor, element)));
}

void ReplayComparison::See(std::string_view name, const at::Tensor& tensor, WatchedRows rows) {
  if (!status_.ok()) return;
  if (num_seen_ == kept_->entries().size()) {
    status_ = Differs(Describe(name, tensor), "no such tensor");
    return;
  }
  const KeptTensors::Entry& kept = kept_->entries()[num_seen_++];
  if (kept.name != name || kept.tensor.sizes() != tensor.sizes() ||
      kept.tensor.scalar_type() != tensor.scalar_type()) {
    status_ = Differs(Describe(name, tensor), Describe(kept.name, kept.tensor));
    return;
  }
  status_ = Compare(kept, tensor, rows);
}

absl::Status ReplayComparison::End() {
  if (status_.ok() && num_seen_ < kept_->entries().size()) {
    const KeptTensors::Entry& next = kept_->entries()[num_seen_];
    status_ = Differs("no more tensors", Describe(next.name, next.tensor));
  }
  return status_;
}

KeptTensors& ReplayChecker::KeptOf(const GraphKey& key) {
  std::unique_ptr<KeptTensors>& kept = kept_[key];
  if (kept == nullptr) kept = std::make_unique<KeptTensors>(&memory_);
  return *kept;
}

}  // namespace reprise
