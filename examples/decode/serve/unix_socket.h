// A Unix socket that listens.
//
//   REPRISE_ASSIGN_OR_RETURN(const auto socket, UnixSocket::Listen("/run/user/1000/decode.sock"));
//   REPRISE_ASSIGN_OR_RETURN(const std::optional<int> client, socket->Accept(stop.descriptor()));
//
// Thread safety: none.

#ifndef EXAMPLES_DECODE_SERVE_UNIX_SOCKET_H_
#define EXAMPLES_DECODE_SERVE_UNIX_SOCKET_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace reprise {

class UnixSocket {
 public:
  // Makes the file, which only the user of the process may connect to. One that a server has left
  // is replaced. Errors: InvalidArgument for a path that is too long for a socket (107 bytes), or
  // of a file that is no socket; FailedPrecondition if a server answers there; Internal, with the
  // system's reason.
  static absl::StatusOr<std::unique_ptr<UnixSocket>> Listen(const std::string& path);
  ~UnixSocket();  // and removes the file

  UnixSocket(const UnixSocket&) = delete;
  UnixSocket& operator=(const UnixSocket&) = delete;

  // Waits for a client, and returns its descriptor, the caller's to close; nullopt once `stop` is
  // readable. Errors: Internal, with the system's reason.
  absl::StatusOr<std::optional<int>> Accept(int stop) const;

 private:
  UnixSocket(int descriptor, std::string path);

  int descriptor_;
  std::string path_;
};

// Errors: those of connect(). The descriptor is the caller's to close.
absl::StatusOr<int> ConnectToUnixSocket(const std::string& path);

}  // namespace reprise

#endif  // EXAMPLES_DECODE_SERVE_UNIX_SOCKET_H_
