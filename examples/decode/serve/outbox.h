// The lines that a client is sent: pushed by any thread, written by a thread of its own.
//
//   Outbox out(descriptor);
//   if (!out.Push("{\"event\":...}")) Cancel();   // the reader is gone, or reads nothing
//   out.Close();                                // all is written
//
// Thread safety: all methods from any thread.

#ifndef EXAMPLES_DECODE_SERVE_OUTBOX_H_
#define EXAMPLES_DECODE_SERVE_OUTBOX_H_

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace reprise {

class Outbox {
 public:
  // What may wait to be written. A client that has not read for so long is given up.
  static constexpr size_t kMaxPendingBytes = size_t{64} << 20;

  // Writes to the descriptor, a socket, pipe or file, which stays the caller's and must stay open
  // until Close() has returned.
  explicit Outbox(int descriptor, size_t max_pending_bytes = kMaxPendingBytes);
  ~Outbox();  // Close()

  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  // Appends a line, and its end; returns at once. False, from then on: nothing more is written,
  // since the reader is gone or too much waits.
  bool Push(std::string_view line);

  // Returns when all lines are written or none can be. Lines pushed afterwards are dropped.
  void Close();

 private:
  void Write();  // on the thread

  const int descriptor_;
  const size_t max_pending_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string pending_;
  bool is_closed_ = false;
  bool is_broken_ = false;
  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace reprise

#endif  // EXAMPLES_DECODE_SERVE_OUTBOX_H_
