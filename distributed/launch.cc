#include "reprise/distributed/launch.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

constexpr int kDefaultPort = 29500;

absl::StatusOr<int> Number(Variables variables, const std::string& name) {
  const std::optional<std::string> text = variables(name);
  int value = 0;
  if (!text) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is not set, but other variables of its launcher are set"));
  }
  if (!absl::SimpleAtoi(*text, &value) || value < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " must be a number >= 0: got \"", *text, "\""));
  }
  return value;
}

// Returns the value of the first of these variables that is set, or `otherwise` if all are unset.
absl::StatusOr<int> NumberOr(Variables variables, std::initializer_list<const char*> names,
                             int otherwise) {
  for (const char* name : names) {
    if (variables(name)) return Number(variables, name);
  }
  return otherwise;
}

// "rack[1-2]node[03-05,07]-ib,login" gives "rack1node03-ib".
std::string FirstNode(std::string_view list) {
  std::string node;
  while (!list.empty() && list.front() != ',') {
    if (list.front() != '[') {
      node += list.front();
      list.remove_prefix(1);
      continue;
    }
    list.remove_prefix(1);
    node += list.substr(0, list.find_first_of(",-]"));
    list.remove_prefix(std::min(list.find(']'), list.size() - 1) + 1);
  }
  return node;
}

// The names of a launcher's environment variables.
struct Launcher {
  const char* rank;
  const char* world;
  std::initializer_list<const char*> local_rank;
  std::initializer_list<const char*> local_world;
};

absl::StatusOr<RankPlace> PlaceOf(Variables variables, const Launcher& launcher) {
  RankPlace place;
  REPRISE_ASSIGN_OR_RETURN(place.ranks.rank, Number(variables, launcher.rank));
  REPRISE_ASSIGN_OR_RETURN(place.ranks.world, Number(variables, launcher.world));
  if (place.ranks.rank >= place.ranks.world) {
    return absl::InvalidArgumentError(absl::StrCat(launcher.rank, " must be less than ",
                                                   launcher.world, ": got ", place.ranks.rank,
                                                   " of ", place.ranks.world));
  }
  REPRISE_ASSIGN_OR_RETURN(place.local_rank,
                           NumberOr(variables, launcher.local_rank, place.ranks.rank));
  if (place.ranks.world == 1) return place;

  REPRISE_ASSIGN_OR_RETURN(const int local_world, NumberOr(variables, launcher.local_world, 0));
  std::optional<std::string> host = variables("MASTER_ADDR");
  int port = kDefaultPort;
  if (const std::optional<std::string> job = variables("SLURM_JOB_ID")) {
    uint32_t number = 0;  // exceeds the range of int on federated clusters
    if (!absl::SimpleAtoi(*job, &number)) {
      return absl::InvalidArgumentError(
          absl::StrCat("SLURM_JOB_ID must be a number >= 0: got \"", *job, "\""));
    }
    REPRISE_ASSIGN_OR_RETURN(const int step, NumberOr(variables, {"SLURM_STEP_ID"}, 0));
    port = 20000 + static_cast<int>((int64_t{number} + step) % 10000);
    const auto step_nodes = variables("SLURM_STEP_NODELIST"),
               nodes = variables("SLURM_JOB_NODELIST");
    if (!host && (step_nodes || nodes)) host = FirstNode(step_nodes ? *step_nodes : *nodes);
  }
  if (!host && local_world == place.ranks.world) host = "127.0.0.1";
  if (!host) {
    return absl::InvalidArgumentError(
        "MASTER_ADDR is not set: the ranks need the name of the machine of rank 0");
  }
  REPRISE_ASSIGN_OR_RETURN(port, NumberOr(variables, {"MASTER_PORT"}, port));
  if (port < 1 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("MASTER_PORT must be a port: expected 1 to 65535, got ", port));
  }
  place.store = absl::StrCat("tcp:", *host, ":", port);
  // The agent process of torchrun serves the store and keeps it across restarts.
  const bool served = variables("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  place.serves_store = place.ranks.rank == 0 && !served;
  place.run = variables("TORCHELASTIC_RUN_ID").value_or("") + "/" +
              variables("TORCHELASTIC_RESTART_COUNT").value_or("");
  return place;
}

// Serialises the Status that a child writes to its pipe: the code, then the message.
std::string Packed(const absl::Status& status) {
  std::string bytes(1, static_cast<char>(status.code()));
  bytes += std::string(status.message());
  return bytes;
}

absl::Status Unpacked(std::string_view bytes) {
  return absl::Status(static_cast<absl::StatusCode>(bytes[0]), std::string(bytes.substr(1)));
}

struct Child {
  pid_t pid = -1;
  int pipe = -1;         // open until the child has closed its end
  std::string received;  // bytes of its Status
};

[[noreturn]] void RunChild(int pipe, const RankPlace& place,
                           absl::FunctionRef<absl::Status(const RankPlace&)> body) {
  absl::Status status;
  try {
    status = body(place);
  } catch (const std::exception& error) {
    status = absl::InternalError(error.what());
  }
  std::fflush(nullptr);
  const std::string bytes = Packed(status);
  size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t n = write(pipe, bytes.data() + written, bytes.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    written += n;
  }
  // Skips the destructors of static objects: they could wait for other threads.
  _exit(status.ok() ? 0 : 1);
}

// Converts the exit of an awaited child to a Status. REQUIRES: its pipe has been read to the end.
absl::Status EndOf(int rank, const Child& child, int wait_status) {
  const std::string who = absl::StrCat("rank ", rank);
  if (WIFSIGNALED(wait_status)) {
    const int number = WTERMSIG(wait_status);
    return absl::UnavailableError(
        absl::StrCat(who, " was killed by signal ", number, " (", strsignal(number), ")"));
  }
  if (child.received.empty()) {
    return absl::UnavailableError(
        absl::StrCat(who, " exited with status ", WEXITSTATUS(wait_status), " before it returned"));
  }
  const absl::Status status = Unpacked(child.received);
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(who, ": ", std::string(status.message())));
}

int NumThreads() {
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", error)) {
    static_cast<void>(entry);
    ++count;
  }
  return count;
}

absl::Status SystemError(const std::string& what) {
  return absl::InternalError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// The children of one RunRanks() call. The destructor kills and awaits the remaining children.
class Children {
 public:
  explicit Children(int world) : children_(world) {}
  ~Children() {
    Kill();
    for (Child& child : children_) {
      if (child.pid > 0) waitpid(child.pid, nullptr, 0);
      if (child.pipe >= 0) close(child.pipe);
    }
  }

  absl::Status Start(const std::string& store,
                     absl::FunctionRef<absl::Status(const RankPlace&)> body) {
    const int world = static_cast<int>(children_.size());
    const pid_t parent = getpid();
    for (int rank = 0; rank < world; ++rank) {
      int ends[2];
      if (pipe2(ends, O_CLOEXEC) != 0) return SystemError("pipe2() failed");
      const pid_t pid = fork();
      if (pid < 0) {
        const absl::Status error = SystemError(absl::StrCat("fork() of rank ", rank, " failed"));
        close(ends[0]);
        close(ends[1]);
        return error;
      }
      if (pid == 0) {
        // The child ends with its parent, even if the parent ended between fork() and prctl().
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        close(ends[0]);
        for (const Child& other : children_) {
          if (other.pipe >= 0) close(other.pipe);
        }
        RunChild(ends[1],
                 RankPlace{.ranks = {.rank = rank, .world = world},
                           .local_rank = rank,
                           .store = world > 1 ? store : std::string(),
                           .serves_store = false,
                           .run = ""},
                 body);
      }
      close(ends[1]);
      children_[rank] = Child{.pid = pid, .pipe = ends[0], .received = ""};
    }
    return absl::OkStatus();
  }

  // Waits for all children. Returns the first failure.
  absl::Status Await(absl::Duration grace) {
    absl::Status first;
    absl::Time deadline = absl::InfiniteFuture();
    while (AnyLeft()) {
      PollPipes(deadline);
      for (size_t rank = 0; rank < children_.size(); ++rank) {
        Child& child = children_[rank];
        if (child.pid <= 0 || child.pipe >= 0) continue;
        int wait_status = 0;
        if (waitpid(child.pid, &wait_status, 0) != child.pid) continue;
        child.pid = -1;
        const absl::Status end = EndOf(static_cast<int>(rank), child, wait_status);
        if (first.ok() && !end.ok()) {
          first = end;
          deadline = absl::Now() + grace;
        }
      }
      if (absl::Now() >= deadline) {
        Kill();
        deadline = absl::InfiniteFuture();
      }
    }
    return first;
  }

 private:
  bool AnyLeft() const {
    for (const Child& child : children_) {
      if (child.pid > 0) return true;
    }
    return false;
  }

  void Kill() {
    for (const Child& child : children_) {
      if (child.pid > 0) kill(child.pid, SIGKILL);
    }
  }

  // Waits until a pipe is readable or the deadline has passed, and reads each readable pipe once.
  // Closes a pipe whose child has closed it (at the latest when the child ends).
  void PollPipes(absl::Time deadline) {
    std::vector<pollfd> polled;
    std::vector<Child*> owners;
    for (Child& child : children_) {
      if (child.pipe < 0) continue;
      polled.push_back({.fd = child.pipe, .events = POLLIN, .revents = 0});
      owners.push_back(&child);
    }
    int milliseconds = -1;
    if (deadline != absl::InfiniteFuture()) {
      const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
      milliseconds = left < 0 ? 0 : static_cast<int>(left) + 1;
    }
    if (polled.empty() || poll(polled.data(), polled.size(), milliseconds) <= 0) return;
    for (size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t n = read(polled[i].fd, buffer, sizeof(buffer));
      if (n < 0 && errno == EINTR) continue;
      if (n > 0) {
        owners[i]->received.append(buffer, n);
      } else {
        close(owners[i]->pipe);
        owners[i]->pipe = -1;
      }
    }
  }

  std::vector<Child> children_;
};

}  // namespace

absl::StatusOr<RankPlace> RanksFromVariables(Variables variables) {
  if (variables("RANK") || variables("WORLD_SIZE")) {
    return PlaceOf(variables, {"RANK", "WORLD_SIZE", {"LOCAL_RANK"}, {"LOCAL_WORLD_SIZE"}});
  }
  if (variables("OMPI_COMM_WORLD_RANK")) {
    return PlaceOf(variables, {"OMPI_COMM_WORLD_RANK",
                               "OMPI_COMM_WORLD_SIZE",
                               {"OMPI_COMM_WORLD_LOCAL_RANK"},
                               {"OMPI_COMM_WORLD_LOCAL_SIZE"}});
  }
  if (variables("PMI_RANK")) {
    return PlaceOf(variables, {"PMI_RANK",
                               "PMI_SIZE",
                               {"MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID"},
                               {"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"}});
  }
  // SLURM_STEP_ID is not set in a job script, whose single process sees the task count of later
  // steps.
  if (variables("SLURM_STEP_ID")) {
    return PlaceOf(variables, {"SLURM_PROCID", "SLURM_NTASKS", {"SLURM_LOCALID"}, {}});
  }
  return RankPlace{};
}

absl::StatusOr<RankPlace> RanksFromEnvironment() {
  return RanksFromVariables([](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  });
}

absl::Status RunRanks(int world, absl::FunctionRef<absl::Status(const RankPlace&)> body,
                      const RunRanksOptions& options) {
  if (world < 1) {
    return absl::InvalidArgumentError(absl::StrCat("world must be at least 1: got ", world));
  }
  if (const int threads = NumThreads(); threads > 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("RunRanks() must be called before threads or CUDA start: this process has ",
                     threads, " threads"));
  }
  std::error_code error;
  std::string folder = std::filesystem::temp_directory_path(error) / "ranks-XXXXXX";
  if (error || mkdtemp(folder.data()) == nullptr) {
    return SystemError(absl::StrCat("no temporary folder could be made for ", folder));
  }
  absl::Cleanup remove = [&folder] {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  };
  std::fflush(nullptr);
  Children children(world);
  REPRISE_RETURN_IF_ERROR(children.Start(absl::StrCat("file:", folder, "/store"), body));
  return children.Await(options.grace);
}

}  // namespace reprise
