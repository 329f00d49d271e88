#include "examples/decode/serve/unix_socket.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "examples/decode/signal_event.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using testing::HasSubstr;

// A short path: those of sockets have at most 107 bytes.
class UnixSocketTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(folder_), nullptr); }
  void TearDown() override {
    unlink(path().c_str());
    rmdir(folder_);
  }
  std::string path() const { return std::string(folder_) + "/s"; }

  char folder_[32] = "/tmp/serve_XXXXXX";
};

TEST_F(UnixSocketTest, AcceptsClientsUntilItIsStopped) {
  const SignalEvent stop({SIGTERM});
  const auto socket = UnixSocket::Listen(path());
  ASSERT_TRUE(socket.ok()) << socket.status();
  const auto client = ConnectToUnixSocket(path());
  ASSERT_TRUE(client.ok()) << client.status();
  const auto accepted = (*socket)->Accept(stop.descriptor());
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  ASSERT_TRUE(accepted->has_value());
  ASSERT_EQ(write(*client, "x", 1), 1);
  char byte = 0;
  ASSERT_EQ(read(**accepted, &byte, 1), 1);
  EXPECT_EQ(byte, 'x');
  close(*client);
  close(**accepted);
  raise(SIGTERM);
  const auto none = (*socket)->Accept(stop.descriptor());
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(*none, std::nullopt);
}

TEST_F(UnixSocketTest, OnlyTheUserMayConnectAndTheFileGoesWithTheSocket) {
  struct stat info = {};
  {
    const auto socket = UnixSocket::Listen(path());
    ASSERT_TRUE(socket.ok()) << socket.status();
    ASSERT_EQ(stat(path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
  }
  EXPECT_NE(stat(path().c_str(), &info), 0);
}

TEST_F(UnixSocketTest, WhatAServerHasLeftIsReplacedAndALiveOneIsNot) {
  std::string kept = path() + "2";
  {
    const auto socket = UnixSocket::Listen(path());
    ASSERT_TRUE(socket.ok()) << socket.status();
    EXPECT_THAT(std::string(UnixSocket::Listen(path()).status().message()),
                HasSubstr("a server answers at"));
    ASSERT_EQ(rename(path().c_str(), kept.c_str()), 0);  // survives the destructor
  }
  ASSERT_EQ(rename(kept.c_str(), path().c_str()), 0);
  EXPECT_TRUE(UnixSocket::Listen(path()).ok());
}

TEST_F(UnixSocketTest, PathsThatAreNoneAreNamed) {
  EXPECT_THAT(std::string(UnixSocket::Listen(std::string(200, 'x')).status().message()),
              HasSubstr("--socket: expected a path of 1 to 107 bytes, got 200"));
  EXPECT_FALSE(UnixSocket::Listen("").ok());
  EXPECT_FALSE(UnixSocket::Listen("/no/such/folder/s").ok());
  std::ofstream(path()) << "data";
  EXPECT_THAT(std::string(UnixSocket::Listen(path()).status().message()),
              HasSubstr("which is a file"));
  EXPECT_TRUE(std::ifstream(path()).good());
}

}  // namespace
}  // namespace reprise
