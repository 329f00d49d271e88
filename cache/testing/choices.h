// A source of decisions for a random test or a fuzzer.
//
//   RandomChoices choices(seed);         // unlimited
//   ByteChoices choices(data, size);     // always 0 after the last byte
//   if (choices.Below(4) == 0) ...
//
// Thread safety: not thread-safe.

#ifndef REPRISE_CACHE_TESTING_CHOICES_H_
#define REPRISE_CACHE_TESTING_CHOICES_H_

#include <cstddef>
#include <cstdint>
#include <random>

namespace reprise {

class Choices {
 public:
  virtual ~Choices() = default;

  // Returns a number in [0, n). REQUIRES: n > 0.
  virtual int Below(int n) = 0;
  // Whether the source is exhausted.
  virtual bool is_done() const = 0;

  bool OneIn(int n) { return Below(n) == 0; }
};

class RandomChoices : public Choices {
 public:
  explicit RandomChoices(unsigned seed) : random_(seed) {}
  int Below(int n) override { return static_cast<int>(random_() % n); }
  bool is_done() const override { return false; }

 private:
  std::mt19937 random_;
};

// Derives decisions from bytes, one byte each if it suffices, so that a fuzzer can change a single
// decision.
class ByteChoices : public Choices {
 public:
  ByteChoices(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  int Below(int n) override {
    int64_t value = Next();
    for (int64_t reach = 256; reach < n; reach *= 256) value = value * 256 + Next();
    return static_cast<int>(value % n);
  }
  bool is_done() const override { return position_ >= size_; }

 private:
  int64_t Next() { return position_ < size_ ? data_[position_++] : 0; }

  const uint8_t* data_;
  size_t size_;
  size_t position_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_CACHE_TESTING_CHOICES_H_
