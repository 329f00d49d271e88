// Any bytes as a safetensors file: refused, or every view is within them and is what its shape
// says.

#include <glog/logging.h>

#include <cstddef>
#include <cstdint>
#include <set>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/hf/safetensors.h"
#include "reprise/hf/tensor_view.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = absl::MakeConstSpan(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<reprise::TensorViews> tensors = reprise::ParseSafetensors(bytes);
  if (!tensors.ok()) return 0;
  size_t total = 0;
  std::set<const char*> counted;  // duplicates of the metadata share the bytes of their original
  for (const auto& [name, tensor] : *tensors) {
    CHECK_GE(tensor.bytes.begin(), bytes.begin());
    CHECK_LE(tensor.bytes.end(), bytes.end());
    CHECK_EQ(tensor.num_elements(), *reprise::NumElements(tensor.shape));
    if (counted.insert(tensor.bytes.data()).second) total += tensor.bytes.size();
  }
  CHECK_LE(total + 8, size);  // no two of the header share bytes
  return 0;
}
