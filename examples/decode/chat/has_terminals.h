// Whether a test can have a pseudo-terminal: a bare container may have none.
#ifndef REPRISE_EXAMPLES_DECODE_CHAT_HAS_TERMINALS_H_
#define REPRISE_EXAMPLES_DECODE_CHAT_HAS_TERMINALS_H_

#include <pty.h>
#include <unistd.h>

namespace reprise {

// The reason to give to GTEST_SKIP().
inline constexpr char kNoTerminals[] = "this machine has no pseudo-terminals";

// Opens a pseudo-terminal and closes it again.
inline bool HasTerminals() {
  int keys = -1;
  int terminal = -1;
  if (openpty(&keys, &terminal, nullptr, nullptr, nullptr) != 0) return false;
  close(keys);
  close(terminal);
  return true;
}

}  // namespace reprise

#endif  // REPRISE_EXAMPLES_DECODE_CHAT_HAS_TERMINALS_H_
