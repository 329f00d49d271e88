#include "examples/decode/serve/outbox.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using testing::SizeIs;

// Two ends that are closed at the end.
struct Ends {
  Ends() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0); }
  ~Ends() {
    for (const int end : ends) close(end);
  }
  std::array<int, 2> ends;
};

std::string ReadAll(int descriptor) {
  std::string all;
  std::array<char, 4096> buffer;
  ssize_t count;
  while ((count = read(descriptor, buffer.data(), buffer.size())) > 0) {
    all.append(buffer.data(), static_cast<size_t>(count));
  }
  return all;
}

TEST(OutboxTest, LinesOfManyThreadsAreWholeAndThoseOfOneInOrder) {
  constexpr int kThreads = 4;
  constexpr int kLines = 500;
  Ends ends;
  std::string all;
  std::thread reader([&] { all = ReadAll(ends.ends[1]); });
  {
    Outbox out(ends.ends[0]);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&out, i] {
        for (int j = 0; j < kLines; ++j) EXPECT_TRUE(out.Push(absl::StrCat(i, " ", j)));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  shutdown(ends.ends[0], SHUT_RDWR);
  reader.join();
  const std::vector<std::string> lines = absl::StrSplit(all, '\n', absl::SkipEmpty());
  ASSERT_THAT(lines, SizeIs(kThreads * kLines));
  std::array<int, kThreads> next = {};
  for (const std::string& line : lines) {
    const std::vector<std::string> parts = absl::StrSplit(line, ' ');
    ASSERT_THAT(parts, SizeIs(2)) << line;
    EXPECT_EQ(parts[1], absl::StrCat(next[std::stoi(parts[0])]++));
  }
}

TEST(OutboxTest, AReaderThatIsGoneIsToldWithoutASignal) {
  Ends ends;
  Outbox out(ends.ends[0]);
  shutdown(ends.ends[1], SHUT_RDWR);
  // The thread that writes finds out, whenever it next runs.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  bool is_open = true;
  while (is_open && std::chrono::steady_clock::now() < deadline) {
    is_open = out.Push("line");
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  EXPECT_FALSE(is_open);
  out.Close();
}

TEST(OutboxTest, AReaderThatDoesNotReadIsGivenUp) {
  Ends ends;
  Outbox out(ends.ends[0], 1 << 20);
  const std::string line(1000, 'x');
  int num_pushed = 0;
  while (out.Push(line)) ASSERT_LT(++num_pushed, 100'000);
  EXPECT_GE(num_pushed, 1000);
  EXPECT_FALSE(out.Push("x"));
  shutdown(ends.ends[0], SHUT_RDWR);  // frees the thread, which is writing
  out.Close();
}

TEST(OutboxTest, NothingIsTakenAfterItIsClosed) {
  Ends ends;
  Outbox out(ends.ends[0]);
  EXPECT_TRUE(out.Push("a"));
  out.Close();
  EXPECT_FALSE(out.Push("b"));
  shutdown(ends.ends[0], SHUT_RDWR);
  EXPECT_EQ(ReadAll(ends.ends[1]), "a\n");
}

}  // namespace
}  // namespace reprise
