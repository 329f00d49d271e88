#include "examples/decode/serve/server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "examples/decode/serve/line_splitter.h"
#include "examples/decode/serve/outbox.h"
#include "examples/decode/serve/unix_socket.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

absl::Status ReadLines(int in, ServeClient& client) {
  LineSplitter lines(kMaxLineBytes);
  const auto take = [&](const InputLine& line) { client.Take(line); };
  std::vector<char> buffer(size_t{1} << 16);
  while (true) {
    const ssize_t count = read(in, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::InternalError(absl::StrCat("requests: ", strerror(errno)));
    if (count == 0) break;
    lines.Push({buffer.data(), static_cast<size_t>(count)}, take);
  }
  lines.Finish(take);
  return absl::OkStatus();
}

// A client of the socket, on a thread of its own.
class Connection {
 public:
  Connection(AsyncEngine& engine, const ServeContext& context, int descriptor)
      : descriptor_(descriptor), out_(descriptor), client_(&engine, &context, &out_) {
    thread_ = std::thread([this] { Run(); });
  }
  ~Connection() {
    thread_.join();
    close(descriptor_);
  }

  bool has_ended() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return has_ended_;
  }

  // Ends its requests, and reads no more.
  void Stop() {
    client_.CancelAll();
    shutdown(descriptor_, SHUT_RD);
  }

  // Gives up writing if it has not ended by then.
  void EndBy(std::chrono::steady_clock::time_point time) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!changed_.wait_until(lock, time, [this] { return has_ended_; })) {
      shutdown(descriptor_, SHUT_RDWR);
    }
  }

 private:
  void Run() {
    const absl::Status read = ReadLines(descriptor_, client_);
    // A client that reset its connection is gone.
    if (!read.ok()) client_.CancelAll();
    client_.AwaitEnd();
    out_.Close();
    shutdown(descriptor_, SHUT_RDWR);
    const std::lock_guard<std::mutex> lock(mutex_);
    has_ended_ = true;
    changed_.notify_all();
  }

  const int descriptor_;
  Outbox out_;
  ServeClient client_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_ended_ = false;
  std::thread thread_;
};

}  // namespace

absl::Status ServePipe(AsyncEngine& engine, const ServeContext& context, int in, int out) {
  Outbox outbox(out);
  ServeClient client(&engine, &context, &outbox);
  const absl::Status read = ReadLines(in, client);
  client.AwaitEnd();
  outbox.Close();
  REPRISE_RETURN_IF_ERROR(read);
  return engine.status();
}

absl::Status ServeSocket(AsyncEngine& engine, const ServeContext& context, const std::string& path,
                         int stop, absl::FunctionRef<void()> on_ready) {
  REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<UnixSocket> socket, UnixSocket::Listen(path));
  on_ready();
  std::list<Connection> connections;
  absl::Status status;
  while (true) {
    const absl::StatusOr<std::optional<int>> descriptor = socket->Accept(stop);
    status = descriptor.status();
    if (!status.ok() || !descriptor->has_value()) break;
    connections.remove_if([](Connection& connection) { return connection.has_ended(); });
    connections.emplace_back(engine, context, **descriptor);
  }
  for (Connection& connection : connections) connection.Stop();
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  for (Connection& connection : connections) connection.EndBy(limit);
  connections.clear();
  status.Update(engine.status());
  return status;
}

}  // namespace reprise
