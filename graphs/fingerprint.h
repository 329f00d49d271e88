// The constants of a captured graph that must not change between capture and replay.
//
// The owner of a graph lists capacities, layer shapes and buffer addresses by name, in a fixed
// order, at the capture and again at each replay. A replay is rejected if the lists differ, so that
// a graph never reads freed or moved memory.
//
//   Fingerprint now;
//   now.AddValue("max_seq_len", 8192);
//   now.AddAddress("block_table", table.data_ptr());
//   if (absl::Status s = CompareFingerprints(captured, now); !s.ok()) return s;
//   // FailedPrecondition: graph fingerprint must match the capture: block_table: expected
//   // 0x7f0000000400, got 0x7f0000001000
//
// Thread safety: not thread-safe; a value, freely copyable. Cost: an Add hashes the name; comparing
// equal fingerprints compares two integers. Clear() keeps the memory: adding names of the same or a
// smaller length does not allocate.

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

  // Appends a constant. Copies the name. The same name may occur several times.
  void AddValue(std::string_view name, int64_t value);
  void AddAddress(std::string_view name, const void* address);

  // Removes all entries, but keeps their memory.
  void Clear();

  int size() const { return size_; }

  // Hash of all entries with their names, in order. Independent of the process.
  uint64_t hash() const { return hash_; }

  // One line per entry: "max_seq_len = 8192".
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

  std::vector<Entry> entries_;  // the first size_ are live; the rest only keep their memory
  int size_ = 0;
  uint64_t hash_ = 0;
};

// Returns OK if both are equal. Otherwise returns FailedPrecondition with the first difference in
// order: a constant that has changed, is missing or is new.
absl::Status CompareFingerprints(const Fingerprint& captured, const Fingerprint& current);

}  // namespace reprise

#endif  // REPRISE_GRAPHS_FINGERPRINT_H_
