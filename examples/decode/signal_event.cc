#include "examples/decode/signal_event.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "glog/logging.h"

namespace reprise {
namespace {

std::atomic<int> g_descriptor{-1};  // of the object

void Signal(int) {
  const int saved = errno;
  const uint64_t one = 1;
  const ssize_t written = write(g_descriptor.load(), &one, sizeof(one));
  static_cast<void>(written);  // a count that is full is readable, too
  errno = saved;
}

}  // namespace

SignalEvent::SignalEvent(const std::vector<int>& signals)
    : descriptor_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  PCHECK(descriptor_ >= 0);
  CHECK_EQ(g_descriptor.exchange(descriptor_), -1) << "one object at a time";
  struct sigaction action = {};
  action.sa_handler = Signal;
  action.sa_flags = SA_RESTART;
  for (const int number : signals) {
    struct sigaction before = {};
    PCHECK(sigaction(number, &action, &before) == 0);
    before_.emplace_back(number, before);
  }
}

SignalEvent::~SignalEvent() {
  for (const auto& [number, before] : before_) PCHECK(sigaction(number, &before, nullptr) == 0);
  g_descriptor = -1;
  close(descriptor_);
}

bool SignalEvent::Take() {
  uint64_t count = 0;
  return read(descriptor_, &count, sizeof(count)) == sizeof(count) && count > 0;
}

}  // namespace reprise
