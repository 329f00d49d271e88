// A large zeroed array. The operating system provides its pages on first use.
//
//   LazyArray<int32_t> tokens = LazyArray<int32_t>::Create(int64_t{256} << 20);
//   if (tokens.empty()) ...   // out of memory
//
// For arrays with a maximum-length row per slot, of which most slots use only a small part.
// Elements are never constructed, so `T` must be a plain aggregate for which all bits zero is a
// valid value.
//
// Thread safety: as std::vector.

#ifndef REPRISE_CACHE_BLOCKS_LAZY_ARRAY_H_
#define REPRISE_CACHE_BLOCKS_LAZY_ARRAY_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <type_traits>

namespace reprise {

template <typename T>
class LazyArray {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  LazyArray() = default;

  // Returns an empty array if `size` is not positive or if allocation fails.
  static LazyArray Create(int64_t size) {
    LazyArray array;
    if (size <= 0 || size > std::numeric_limits<ptrdiff_t>::max() / int64_t{sizeof(T)})
      return array;
    array.data_.reset(static_cast<T*>(std::calloc(static_cast<size_t>(size), sizeof(T))));
    return array;
  }

  bool empty() const { return data_ == nullptr; }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }

 private:
  struct Freed {
    void operator()(T* data) const { std::free(data); }
  };
  std::unique_ptr<T, Freed> data_;
};

}  // namespace reprise

#endif  // REPRISE_CACHE_BLOCKS_LAZY_ARRAY_H_
