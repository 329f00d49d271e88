#include "reprise/graphs/step_buffers.h"

#include <glog/logging.h>

#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

absl::StatusOr<int> StepBuffers::PlanBytes(std::string_view name, int64_t count,
                                           int64_t element_bytes) {
  if (is_bound_) {
    return absl::FailedPreconditionError(
        absl::StrCat("buffers must be planned before they are bound: got ", View(name)));
  }
  if (name.empty()) return absl::InvalidArgumentError("name must not be empty");
  REPRISE_RETURN_IF_ERROR(CheckAtLeast(absl::StrCat("count of ", View(name)), count, 0));
  // Leaves space for the buffer's alignment.
  const int64_t free_bytes = std::numeric_limits<int64_t>::max() - bytes_ - kAlignment;
  if (count > free_bytes / element_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("count of ", View(name), " must fit into int64 bytes: expected at most ",
                     free_bytes / element_bytes, " elements, got ", count));
  }
  const int index = static_cast<int>(buffers_.size());
  if (!index_.emplace(name, index).second) {
    return absl::InvalidArgumentError(
        absl::StrCat("name must be new: ", View(name), " is planned already"));
  }
  Buffer& buffer = buffers_.emplace_back();
  buffer.name = name;
  buffer.bytes_name = absl::StrCat(View(name), ".bytes");
  buffer.offset = bytes_;
  buffer.count = count;
  buffer.bytes = count * element_bytes;
  bytes_ += (buffer.bytes + kAlignment - 1) / kAlignment * kAlignment;
  return index;
}

absl::Status StepBuffers::Bind(void* memory, int64_t memory_bytes) {
  if (is_bound_) {
    return absl::FailedPreconditionError("buffers must not be bound twice");
  }
  if (memory == nullptr && bytes_ > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory must not be null: expected ", bytes_, " bytes"));
  }
  if (reinterpret_cast<uintptr_t>(memory) % kAlignment != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory must be aligned: expected a multiple of ", kAlignment, ", got 0x",
                     absl::Hex(reinterpret_cast<uintptr_t>(memory))));
  }
  if (memory_bytes < bytes_) {
    return absl::InvalidArgumentError(absl::StrCat("memory must hold the plan: expected at least ",
                                                   bytes_, " bytes, got ", memory_bytes));
  }
  memory_ = static_cast<std::byte*>(memory);
  is_bound_ = true;
  return absl::OkStatus();
}

void StepBuffers::Unbind() {
  memory_ = nullptr;
  is_bound_ = false;
}

void* StepBuffers::memory() const {
  CHECK(is_bound_) << "buffers have no memory before they are bound";
  return memory_;
}

const StepBuffers::Buffer& StepBuffers::At(int index) const {
  CHECK_LT(static_cast<size_t>(index), buffers_.size()) << "the buffer was planned elsewhere";
  return buffers_[index];
}

void* StepBuffers::Address(int index) const {
  const Buffer& buffer = At(index);
  CHECK(is_bound_) << buffer.name << " has no memory before the buffers are bound";
  return buffer.count == 0 ? nullptr : memory_ + buffer.offset;
}

void StepBuffers::AddTo(Fingerprint& fingerprint) const {
  for (size_t i = 0; i < buffers_.size(); ++i) {
    fingerprint.AddAddress(buffers_[i].name, Address(static_cast<int>(i)));
    fingerprint.AddValue(buffers_[i].bytes_name, buffers_[i].bytes);
  }
}

void StepBuffers::Poison(std::byte value) const {
  if (bytes_ > 0) std::memset(memory(), static_cast<int>(value), static_cast<size_t>(bytes_));
}

}  // namespace reprise
