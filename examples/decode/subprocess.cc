#include "examples/decode/subprocess.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>

#include "glog/logging.h"

namespace reprise {
namespace {

// A file without a name, for an output of any length: a pipe would have to be emptied meanwhile.
class OutputFile {
 public:
  OutputFile() : file_(std::tmpfile()) { PCHECK(file_ != nullptr); }
  ~OutputFile() { std::fclose(file_); }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  int descriptor() const { return fileno(file_); }

  std::string Read() {
    std::string content;
    std::rewind(file_);
    std::array<char, 4096> buffer;
    while (const size_t count = std::fread(buffer.data(), 1, buffer.size(), file_)) {
      content.append(buffer.data(), count);
    }
    return content;
  }

 private:
  std::FILE* file_;
};

[[noreturn]] void BecomeProgram(const std::vector<std::string>& arguments,
                                const SubprocessOptions& options, int out, int err) {
  const int input = open("/dev/null", O_RDONLY);
  const bool is_ready = input >= 0 && dup2(input, STDIN_FILENO) >= 0 &&
                        dup2(out, STDOUT_FILENO) >= 0 && dup2(err, STDERR_FILENO) >= 0 &&
                        (options.folder.empty() || chdir(options.folder.c_str()) == 0);
  if (!is_ready) _exit(126);
  for (const auto& [name, value] : options.variables) setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  _exit(127);
}

}  // namespace

SubprocessResult RunSubprocess(const std::vector<std::string>& arguments,
                               const SubprocessOptions& options) {
  CHECK(!arguments.empty());
  OutputFile out;
  OutputFile err;
  const pid_t child = fork();
  PCHECK(child >= 0);
  if (child == 0) BecomeProgram(arguments, options, out.descriptor(), err.descriptor());
  int status = 0;
  PCHECK(waitpid(child, &status, 0) == child);
  SubprocessResult result = {.exit_code = {}, .out = out.Read(), .err = err.Read()};
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  CHECK(result.exit_code != 126 && result.exit_code != 127)
      << arguments[0] << " could not be started";
  return result;
}

}  // namespace reprise
