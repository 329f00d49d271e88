#include "reprise/models/generate.h"

#include <ATen/ops/from_blob.h>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "reprise/base/ids.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"
#include "reprise/hf/safetensors_writer.h"
#include "reprise/hf/tensor_view.h"

namespace reprise {

absl::Status Generate(Engine& engine, absl::Span<const Request> requests, TokenListener on_token) {
  CHECK(!engine.has_work());
  absl::flat_hash_map<SequenceId, int> request_of;
  for (size_t i = 0; i < requests.size(); ++i) {
    const absl::StatusOr<SequenceId> id = engine.Add(requests[i]);
    if (!id.ok() && requests.size() > 1) {
      return absl::Status(id.status().code(),
                          absl::StrCat("prompt ", i + 1, ": ", id.status().message()));
    }
    REPRISE_RETURN_IF_ERROR(id.status());
    request_of.emplace(*id, static_cast<int>(i));
  }
  std::vector<TokenEvent> events;
  while (engine.has_work()) {
    events.clear();
    REPRISE_RETURN_IF_ERROR(engine.Step(events));
    for (const TokenEvent& event : events) {
      REPRISE_RETURN_IF_ERROR(event.error);
      REPRISE_RETURN_IF_ERROR(on_token(request_of.at(event.sequence), event));
    }
  }
  return absl::OkStatus();
}

LogitsRecorder::LogitsRecorder(int num_requests) : rows_(num_requests) {}

absl::Status LogitsRecorder::Record(int request, const at::Tensor& logits) {
  CHECK_LT(static_cast<size_t>(request), rows_.size());
  if (!logits.defined()) return absl::InvalidArgumentError("logits: expected some, got none");
  const int64_t vocab_size = logits.size(0);
  if (vocab_size_ == 0) vocab_size_ = vocab_size;
  if (vocab_size != vocab_size_) {
    return absl::InvalidArgumentError(
        absl::StrCat("logits must be [", vocab_size_, "]: got a vocabulary of ", vocab_size));
  }
  return CatchTorch([&]() -> absl::Status {
    std::vector<float>& rows = rows_[request];
    const size_t begin = rows.size();
    rows.resize(begin + static_cast<size_t>(vocab_size));
    at::from_blob(rows.data() + begin, {vocab_size}, at::kFloat).copy_(logits);
    return absl::OkStatus();
  });
}

int64_t LogitsRecorder::num_rows(int request) const {
  if (vocab_size_ == 0) return 0;
  return static_cast<int64_t>(rows_[request].size()) / vocab_size_;
}

absl::Status LogitsRecorder::Write(const std::string& path) const {
  std::vector<TensorToWrite> tensors;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const auto* const bytes = reinterpret_cast<const char*>(rows_[i].data());
    tensors.push_back({.name = absl::StrCat("logits_", i),
                       .tensor = {.type = StoredType::kFloat32,
                                  .shape = {num_rows(static_cast<int>(i)), vocab_size_},
                                  .bytes = {bytes, rows_[i].size() * sizeof(float)}}});
  }
  return WriteSafetensors(path, tensors);
}

}  // namespace reprise
