#include "reprise/graphs/fingerprint.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace reprise {
namespace {

// The 64-bit finaliser of MurmurHash3: a bijection in which each input bit affects all output bits.
uint64_t Mix(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  x ^= x >> 33;
  return x;
}

// The result depends on the order of the words: `hash` is mixed again for each word.
uint64_t Combine(uint64_t hash, uint64_t word) {
  return Mix(hash + 0x9e3779b97f4a7c15ULL) ^ Mix(word);
}

uint64_t Combine(uint64_t hash, std::string_view bytes) {
  hash = Combine(hash, bytes.size());
  for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, std::min(sizeof(word), bytes.size() - i));
    hash = Combine(hash, word);
  }
  return hash;
}

}  // namespace

Fingerprint::Fingerprint(const Fingerprint& other) { *this = other; }

Fingerprint& Fingerprint::operator=(const Fingerprint& other) {
  // Copies element by element: strings keep their memory, and entries after size_ are not copied.
  if (this == &other) return *this;
  if (entries_.size() < static_cast<size_t>(other.size_)) entries_.resize(other.size_);
  std::copy_n(other.entries_.begin(), other.size_, entries_.begin());
  size_ = other.size_;
  hash_ = other.hash_;
  return *this;
}

void Fingerprint::AddValue(std::string_view name, int64_t value) { Add(name, value, Kind::kValue); }

void Fingerprint::AddAddress(std::string_view name, const void* address) {
  Add(name, static_cast<int64_t>(reinterpret_cast<uintptr_t>(address)), Kind::kAddress);
}

void Fingerprint::Add(std::string_view name, int64_t value, Kind kind) {
  if (entries_.size() == static_cast<size_t>(size_)) entries_.emplace_back();
  Entry& entry = entries_[size_++];
  entry.name.assign(name);
  entry.value = value;
  entry.kind = kind;
  hash_ = Combine(hash_, name);
  hash_ = Combine(hash_, static_cast<uint64_t>(value));
  hash_ = Combine(hash_, static_cast<uint64_t>(kind));
}

void Fingerprint::Clear() {
  size_ = 0;
  hash_ = 0;
}

std::string Fingerprint::ValueString(const Entry& entry) {
  if (entry.kind == Kind::kAddress) return absl::StrCat("0x", absl::Hex(entry.value));
  return absl::StrCat(entry.value);
}

std::string Fingerprint::ToString() const {
  std::string text;
  for (int i = 0; i < size_; ++i) {
    absl::StrAppend(&text, entries_[i].name, " = ", ValueString(entries_[i]), "\n");
  }
  return text;
}

absl::Status CompareFingerprints(const Fingerprint& captured, const Fingerprint& current) {
  if (captured == current) return absl::OkStatus();
  constexpr char kMustBe[] = "graph fingerprint must match the capture: ";
  const int shared_size = std::min(captured.size_, current.size_);
  for (int i = 0; i < shared_size; ++i) {
    const Fingerprint::Entry& expected = captured.entries_[i];
    const Fingerprint::Entry& got = current.entries_[i];
    if (expected == got) continue;
    if (expected.name != got.name) {
      return absl::FailedPreconditionError(
          absl::StrCat(kMustBe, "entry ", i, ": expected ", expected.name, ", got ", got.name));
    }
    return absl::FailedPreconditionError(absl::StrCat(kMustBe, expected.name, ": expected ",
                                                      Fingerprint::ValueString(expected), ", got ",
                                                      Fingerprint::ValueString(got)));
  }
  CHECK_NE(captured.size_, current.size_) << "equal entries, but hashes differ";
  if (captured.size_ > current.size_) {
    return absl::FailedPreconditionError(absl::StrCat(
        kMustBe, "expected ", captured.entries_[shared_size].name, ", got the end of the list"));
  }
  return absl::FailedPreconditionError(absl::StrCat(kMustBe, "expected the end of the list, got ",
                                                    current.entries_[shared_size].name));
}

}  // namespace reprise
