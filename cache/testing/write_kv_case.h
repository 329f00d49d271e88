// Random KV writes for tests: layouts, strides, dtypes, sizes, slots and scales of every kind,
// surrounded by random memory.
//
//   WriteKvCase c = WriteKvCase::Random(random, {.device = at::kCPU});
//   ASSERT_TRUE(c.Write().ok()) << c.description();   // WriteKv() on the device
//   EXPECT_EQ(c.Difference(), "");                    // compares the whole arena
//
// The cache is inside an arena of random bytes (including NaNs). Bytes that the reference does not
// write must not change. Source memory outside the source elements is NaN.

#ifndef REPRISE_CACHE_TESTING_WRITE_KV_CASE_H_
#define REPRISE_CACHE_TESTING_WRITE_KV_CASE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "reprise/base/dtype.h"
#include "reprise/cache/storage/kv_layer.h"
#include "reprise/cache/storage/kv_layout.h"

namespace reprise {

// The fixed parts of a case; the rest is random.
struct WriteKvCaseOptions {
  at::Device device = at::kCPU;
  std::optional<KvLayoutOptions> layout = {};
  std::optional<DType> source_dtype = {};
  std::optional<int> num_tokens = {};
};

class WriteKvCase {
 public:
  static WriteKvCase Random(std::mt19937& random, const WriteKvCaseOptions& options);

  // Runs WriteKv() over the case on its device.
  absl::Status Write();

  // Applies the same writes with the reference and compares the arenas: call it once after each
  // Write(). Returns the first difference, or "".
  std::string Difference();

  // Draws new slots, keys, values and scales in place: a captured graph reads the same tensors.
  // Host scales do not change.
  void ChangeContents(std::mt19937& random);

  std::string description() const;

 private:
  // kVectors: strides, sizes and addresses allow 16-byte accesses.
  enum class Alignment { kVectors, kAny };

  struct Source {
    at::Tensor storage;            // host, one-dimensional
    std::vector<int64_t> strides;  // strides of [rows, num_kv_heads, head_dim] in `storage`
    int64_t offset = 0;
    at::Tensor tensor;  // the view on the device
  };

  struct CacheTensor {
    std::vector<int64_t> strides;
    int64_t offset_bytes = 0;  // in the arena
  };

  struct CaseScale {
    float value = 1.0f;
    std::optional<int64_t> offset;  // in `scales`; replaces `value` if given
    int64_t head_stride = 0;
  };

  void ChooseLayout(std::mt19937& random);
  void MakeArena(std::mt19937& random);
  Source MakeSource(std::mt19937& random, int head_dim);
  void FillSource(std::mt19937& random, Source& source) const;
  void ChangeSlots(std::mt19937& random);
  CaseScale MakeScale(std::mt19937& random);
  int RandomPadding(std::mt19937& random) const;
  // Returns the layer with its cache in `arena` and its scales in `scales`.
  KvLayer LayerIn(const at::Tensor& arena, const at::Tensor& scales) const;

  at::Device device_ = at::kCPU;
  Alignment alignment_ = Alignment::kAny;
  KvLayoutOptions layout_;
  DType source_dtype_ = DType::kFloat32;
  int num_tokens_ = 0;
  Source k_, v_;
  std::vector<CacheTensor> cache_tensors_;
  CaseScale k_scale_, v_scale_;
  at::Tensor expected_, arena_;      // uint8, host and device
  at::Tensor host_scales_, scales_;  // float32, host and device
  at::Tensor host_slots_, slots_;    // int64, host and device
};

}  // namespace reprise

#endif  // REPRISE_CACHE_TESTING_WRITE_KV_CASE_H_
