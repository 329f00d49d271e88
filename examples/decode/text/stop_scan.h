// Finds a stop text in a text that comes in pieces.
//
//   StopScan scan("END");
//   for (const char byte : std::string_view("An E")) scan.Push(byte);   // false
//   scan.num_held();        // 1: the "E" may begin the stop
//   for (const char byte : std::string_view("ND")) scan.Push(byte);     // false, true
//   scan.num_held();        // 3: the stop
//
// Some bytes may be hidden: they are the contents of special tokens, which a stop text may name but
// which are not part of the returned text.
//
// Thread safety: none; one owner. A copy continues on its own, and shares the stop. Cost: O(1) per
// byte, amortised.

#ifndef EXAMPLES_DECODE_TEXT_STOP_SCAN_H_
#define EXAMPLES_DECODE_TEXT_STOP_SCAN_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace reprise {

enum class StopByte : int8_t { kVisible, kHidden };

class StopScan {
 public:
  // REQUIRES: `stop` is not empty.
  explicit StopScan(std::string stop);

  // Takes the next byte. Returns true if the text now ends with the stop; no byte may follow then.
  bool Push(char byte, StopByte kind = StopByte::kVisible);

  // The number of visible bytes at the end of the text that are the longest beginning of the stop,
  // or the stop itself.
  size_t num_held() const { return num_matched_ - hidden_.size(); }
  bool has_hidden() const { return !hidden_.empty(); }  // within that beginning

  const std::string& stop() const { return table_->stop; }

 private:
  struct Table {
    std::string stop;
    // Entry i: the length of the longest proper suffix of the first i + 1 bytes that is also a
    // prefix of the stop (Knuth, Morris and Pratt).
    std::vector<size_t> borders;
  };

  std::shared_ptr<const Table> table_;
  size_t num_matched_ = 0;      // bytes at the end of the text that are a beginning of the stop
  int64_t num_bytes_ = 0;       // of the text so far, hidden ones included
  std::deque<int64_t> hidden_;  // indices of hidden bytes among the last num_matched_ ones
};

}  // namespace reprise

#endif  // EXAMPLES_DECODE_TEXT_STOP_SCAN_H_
