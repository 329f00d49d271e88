// Test data in host memory that stays in place while its contents change. The host counterpart of a
// captured graph's device memory (attention/testing/gpu_memory.h).
//
//   HostMemory memory;
//   PagedBatch batch = pair.first.Batch(memory.Placement());
//   ...
//   memory.Rewind();
//   pair.second.Batch(memory.Placement());   // same order: `batch` now has the second contents
//
// Thread safety: not thread-safe; one owner.

#ifndef REPRISE_ATTENTION_TESTING_HOST_MEMORY_H_
#define REPRISE_ATTENTION_TESTING_HOST_MEMORY_H_

#include <glog/logging.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "reprise/attention/testing/kv_memory.h"

namespace reprise {

class HostMemory {
 public:
  // Copies the bytes. Returns the address of the copy, aligned for every type.
  void* Copy(const void* host, size_t num_bytes) {
    if (num_placed_ == copies_.size()) {
      copies_.push_back({std::make_unique<std::max_align_t[]>(num_bytes / kUnit + 1), num_bytes});
    }
    const Array& copy = copies_[num_placed_++];
    CHECK_EQ(copy.num_bytes, num_bytes);
    if (num_bytes > 0) std::memcpy(copy.memory.get(), host, num_bytes);
    return copy.memory.get();
  }

  reprise::Placement Placement() {
    return [this](const void* host, size_t num_bytes) { return Copy(host, num_bytes); };
  }

  // Makes the following copies overwrite the existing copies in order, at the same addresses.
  // Copy() CHECK-fails if a copy differs in size.
  void Rewind() { num_placed_ = 0; }

 private:
  static constexpr size_t kUnit = sizeof(std::max_align_t);
  struct Array {
    std::unique_ptr<std::max_align_t[]> memory;
    size_t num_bytes;
  };

  std::vector<Array> copies_;
  size_t num_placed_ = 0;  // since the last Rewind()
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_HOST_MEMORY_H_
