// The arrays of a builder's arguments in one block of memory, at offsets that do not depend on its
// address. For tests that compare a builder on the device with its host form.
//
//   BuilderMemory<BatchGatherArgs> memory(
//       [&](ArrayCarver& carver) { return CarveChainBatch(shape, carver); });
//   memory.Poison();
//   DrawChainBatch(random, shape, /*hostility=*/0.1, memory.args());
//   BatchGatherOnHost(memory.args());
//
// Thread safety: not thread-safe; one owner. Not movable, because the arguments point into the
// object.

#ifndef REPRISE_BASE_TESTING_BUILDER_MEMORY_H_
#define REPRISE_BASE_TESTING_BUILDER_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace reprise {

// Allocates arrays from `base`, each followed by a gap that must not be written.
class ArrayCarver {
 public:
  struct Field {
    const char* name;
    int64_t offset;
    int64_t bytes;
    int64_t element_bytes;
  };

  explicit ArrayCarver(std::byte* base) : base_(base) {}

  template <typename T>
  T* Take(const char* name, int64_t count) {
    fields_.push_back({name, bytes_, count * int64_t{sizeof(T)}, sizeof(T)});
    // Integer arithmetic, because `base` is null while the size is computed.
    T* array = reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(base_) + bytes_);
    bytes_ = (bytes_ + count * int64_t{sizeof(T)} + 2 * kGap - 1) / kGap * kGap;
    return array;
  }

  int64_t bytes() const { return bytes_; }
  const std::vector<Field>& fields() const { return fields_; }

 private:
  static constexpr int64_t kGap = 16;

  std::byte* base_;
  int64_t bytes_ = 0;
  std::vector<Field> fields_;
};

template <typename Args>
class BuilderMemory {
 public:
  using Carve = std::function<Args(ArrayCarver&)>;

  explicit BuilderMemory(Carve carve) : carve_(std::move(carve)) {
    ArrayCarver sizes(nullptr);
    carve_(sizes);
    fields_ = sizes.fields();
    bytes_.resize(sizes.bytes());
    args_ = ArgsAt(bytes_.data());
    Poison();
  }
  BuilderMemory(const BuilderMemory&) = delete;
  BuilderMemory& operator=(const BuilderMemory&) = delete;

  Args& args() { return args_; }
  std::byte* base() { return bytes_.data(); }
  int64_t num_bytes() const { return static_cast<int64_t>(bytes_.size()); }

  // Returns the same arrays in memory that starts at `base`.
  Args ArgsAt(std::byte* base) const {
    ArrayCarver carver(base);
    return carve_(carver);
  }

  // Fills all arrays and gaps with bytes that give huge counts and invalid slots.
  void Poison() { std::memset(bytes_.data(), 0x7b, bytes_.size()); }

  // Returns the first difference from `other`, a copy of this memory, such as "seq_lens[3]".
  // Returns an empty string if they are equal.
  std::string FirstDifference(const std::byte* other) const {
    for (int64_t at = 0; at < num_bytes(); ++at) {
      if (bytes_[at] == other[at]) continue;
      for (const ArrayCarver::Field& field : fields_) {
        if (at < field.offset || at >= field.offset + field.bytes) continue;
        return std::string(field.name) + "[" +
               std::to_string((at - field.offset) / field.element_bytes) + "]";
      }
      return "a gap between arrays, at byte " + std::to_string(at);
    }
    return "";
  }

 private:
  Carve carve_;
  std::vector<ArrayCarver::Field> fields_;
  std::vector<std::byte> bytes_;
  Args args_;
};

}  // namespace reprise

#endif  // REPRISE_BASE_TESTING_BUILDER_MEMORY_H_
