#include "examples/decode/serve/outbox.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace reprise {
namespace {

// All of it, or false. A reader that is gone raises no signal where the descriptor is a socket.
bool WriteAll(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t count = send(descriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == ENOTSOCK) count = write(descriptor, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

}  // namespace

Outbox::Outbox(int descriptor, size_t max_pending_bytes)
    : descriptor_(descriptor), max_pending_bytes_(max_pending_bytes) {
  thread_ = std::thread([this] { Write(); });
}

Outbox::~Outbox() { Close(); }

bool Outbox::Push(std::string_view line) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_broken_ || is_closed_) return false;
  if (pending_.size() + line.size() > max_pending_bytes_) {
    is_broken_ = true;
    pending_ = {};
    return false;
  }
  pending_.append(line);
  pending_ += '\n';
  changed_.notify_one();
  return true;
}

void Outbox::Close() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closed_ = true;
    changed_.notify_one();
  }
  const std::lock_guard<std::mutex> lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

void Outbox::Write() {
  std::string bytes;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return is_closed_ || !pending_.empty(); });
    if (pending_.empty()) return;
    bytes.swap(pending_);
    lock.unlock();
    const bool is_written = WriteAll(descriptor_, bytes);
    bytes.clear();
    lock.lock();
    if (!is_written || is_broken_) {
      is_broken_ = true;
      pending_ = {};
    }
  }
}

}  // namespace reprise
