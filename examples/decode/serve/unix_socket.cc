#include "examples/decode/serve/unix_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

absl::Status SystemError(const std::string& path, const char* call) {
  return absl::InternalError(absl::StrCat("--socket: ", path, ": ", call, ": ", strerror(errno)));
}

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("--socket: expected a path of 1 to ",
                                                   sizeof(address.sun_path) - 1, " bytes, got ",
                                                   path.size()));
  }
  std::copy(path.begin(), path.end(), address.sun_path);
  return address;
}

// Removes what a server has left at the path.
absl::Status ClearPath(const std::string& path) {
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0) return absl::OkStatus();
  if (!S_ISSOCK(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--socket: expected a path that is free, got ", path, ", which is a file"));
  }
  const absl::StatusOr<int> other = ConnectToUnixSocket(path);
  if (other.ok()) {
    close(*other);
    return absl::FailedPreconditionError(
        absl::StrCat("--socket: a server answers at ", path, " already"));
  }
  if (unlink(path.c_str()) != 0) return SystemError(path, "unlink");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<UnixSocket>> UnixSocket::Listen(const std::string& path) {
  REPRISE_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  REPRISE_RETURN_IF_ERROR(ClearPath(path));
  const int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return SystemError(path, "socket");
  // Before bind(), which takes the file's mode from the descriptor's.
  if (fchmod(descriptor, 0600) != 0 ||
      bind(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    const absl::Status error = SystemError(path, "bind");
    close(descriptor);
    return error;
  }
  auto made = std::unique_ptr<UnixSocket>(new UnixSocket(descriptor, path));
  if (listen(descriptor, SOMAXCONN) != 0) return SystemError(path, "listen");
  return made;
}

UnixSocket::UnixSocket(int descriptor, std::string path)
    : descriptor_(descriptor), path_(std::move(path)) {}

UnixSocket::~UnixSocket() {
  close(descriptor_);
  unlink(path_.c_str());
}

absl::StatusOr<std::optional<int>> UnixSocket::Accept(int stop) const {
  while (true) {
    std::array<pollfd, 2> waited = {{{.fd = stop, .events = POLLIN, .revents = 0},
                                     {.fd = descriptor_, .events = POLLIN, .revents = 0}}};
    if (poll(waited.data(), waited.size(), -1) < 0) {
      if (errno == EINTR) continue;
      return SystemError(path_, "poll");
    }
    if (waited[0].revents != 0) return std::nullopt;
    const int client = accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client >= 0) return client;
    // A client may have gone again; clients that leave make room for those that wait.
    const bool is_full = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    if (is_full) {
      poll(waited.data(), 1, 100);
    } else if (errno != EINTR && errno != ECONNABORTED && errno != EAGAIN) {
      return SystemError(path_, "accept");
    }
  }
}

absl::StatusOr<int> ConnectToUnixSocket(const std::string& path) {
  REPRISE_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  const int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return SystemError(path, "socket");
  if (connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    return descriptor;
  }
  const absl::Status error = SystemError(path, "connect");
  close(descriptor);
  return error;
}

}  // namespace reprise
