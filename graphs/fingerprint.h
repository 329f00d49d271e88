// The constants that a captured graph contains and a replay must find unchanged.
//
// Capacities, layer shapes and buffer addresses are listed by name, in a fixed order, when a graph
// is captured and again when it is replayed. So a graph that would read freed or moved memory is
// refused instead of replayed.
//
//   Fingerprint now;
//   now.AddValue("max_seq_len", 8192);
//   now.AddAddress("block_table", table.data_ptr());
//   if (absl::Status s = CompareFingerprints(captured, now); !s.ok()) return s;
//   // FailedPrecondition: graph fingerprint must be that of the capture: block_table: expected
//   // 0x7f0000000400, got 0x7f0000001000
//
// Thread safety: none; a value, copied freely. Cost: an Add hashes its name; comparing equal
// fingerprints compares two integers. Clear() keeps the memory, so adding names no longer than
// before does not allocate.

#ifndef REPRISE_GRAPHS_FINGERPRINT_H_
#define REPRISE_GRAPHS_FINGERPRINT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace reprise {

class Fingerprint {
 public:
  Fingerprint() = default;
  Fingerprint(const Fingerprint& other);
  Fingerprint& operator=(const Fingerprint& other);

  // Appends a constant. The name is copied; one name may occur twice.
  void AddValue(std::string_view name, int64_t value);
  void AddAddress(std::string_view name, const void* address);

  // Forgets all entries, but keeps their memory.
  void Clear();

  int size() const { return size_; }

  // The hash of all entries with their names and order; the same in every process.
  uint64_t hash() const { return hash_; }

  // One line an entry: "max_seq_len = 8192".
  std::string ToString() const;

  friend bool operator==(const Fingerprint& a, const Fingerprint& b) {
    return a.size_ == b.size_ && a.hash_ == b.hash_;
  }

 private:
  enum class Kind : int8_t { kValue, kAddress };
  struct Entry {
    std::string name;
    int64_t value = 0;
    Kind kind = Kind::kValue;

    friend bool operator==(const Entry&, const Entry&) = default;
  };
  friend absl::Status CompareFingerprints(const Fingerprint& captured, const Fingerprint& current);

  static std::string ValueString(const Entry& entry);
  void Add(std::string_view name, int64_t value, Kind kind);

  std::vector<Entry> entries_;  // the first size_ are live, the others keep their memory
  int size_ = 0;
  uint64_t hash_ = 0;
};

// OK if both are equal; otherwise FailedPrecondition naming the first difference in order: a
// constant that changed, is missing, or is new.
absl::Status CompareFingerprints(const Fingerprint& captured, const Fingerprint& current);

}  // namespace reprise

#endif  // REPRISE_GRAPHS_FINGERPRINT_H_
