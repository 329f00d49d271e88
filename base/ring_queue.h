// A queue in one piece of memory that grows when it is full and never shrinks: unlike std::deque,
// it stops allocating once it has reached its largest size.
//
//   RingQueue<BlockId> waiting(/*capacity=*/64);
//   waiting.push_back(block);
//   if (waiting.front() == block) waiting.pop_front();
//
// For small trivially copyable values. Thread safety: none; one owner. Cost: O(1), amortised when
// it grows.

#ifndef REPRISE_BASE_RING_QUEUE_H_
#define REPRISE_BASE_RING_QUEUE_H_

#include <glog/logging.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace reprise {

template <typename T>
class RingQueue {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  // Room for `capacity` >= 0 values without growing.
  explicit RingQueue(int64_t capacity) : values_(capacity) {}

  bool empty() const { return size_ == 0; }
  int64_t size() const { return size_; }
  int64_t num_bytes() const { return static_cast<int64_t>(values_.size() * sizeof(T)); }

  void push_back(const T& value) {
    if (size_ == Capacity()) Grow();
    values_[IndexOf(size_)] = value;
    ++size_;
  }

  // The i-th oldest. REQUIRES: 0 <= i < size().
  const T& operator[](int64_t i) const {
    DCHECK(i >= 0 && i < size_) << i << " of " << size_;
    return values_[IndexOf(i)];
  }

  // REQUIRES: not empty, for all three.
  T& front() { return values_[IndexOf(CheckedOldest())]; }
  const T& front() const { return values_[IndexOf(CheckedOldest())]; }
  T& back() { return values_[IndexOf(CheckedOldest() + size_ - 1)]; }

  // REQUIRES: not empty.
  void pop_front() {
    oldest_ = IndexOf(CheckedOldest() + 1);
    --size_;
  }

 private:
  int64_t Capacity() const { return static_cast<int64_t>(values_.size()); }

  int64_t CheckedOldest() const {
    CHECK_GT(size_, 0);
    return 0;
  }

  int64_t IndexOf(int64_t i) const {
    const int64_t index = oldest_ + i;
    return index < Capacity() ? index : index - Capacity();
  }

  void Grow() {
    std::vector<T> larger(std::max<int64_t>(2 * Capacity(), 16));
    for (int64_t i = 0; i < size_; ++i) larger[i] = values_[IndexOf(i)];
    values_ = std::move(larger);
    oldest_ = 0;
  }

  std::vector<T> values_;
  int64_t oldest_ = 0;
  int64_t size_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_BASE_RING_QUEUE_H_
