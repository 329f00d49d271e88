// The options of a fuzz test under libFuzzer. Bazel gives the seeds as arguments; this makes of
// them a run of REPRISE_FUZZ_SECONDS (60), whose findings are kept with the other outputs of the
// test. With options of libFuzzer among the arguments, as from a shell, nothing is changed.

#include <sys/stat.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace {

std::string Environment(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

std::vector<std::string> Options(const std::vector<std::string>& seeds) {
  // New inputs go to a folder of their own: those of the project are seeds, and may be read-only.
  const std::string corpus = Environment("TEST_TMPDIR", "/tmp") + "/corpus";
  mkdir(corpus.c_str(), 0755);
  std::vector<std::string> options = {
      "-max_total_time=" + Environment("REPRISE_FUZZ_SECONDS", "60"),
      "-timeout=20",
      "-rss_limit_mb=4096",
      "-print_final_stats=1",
      "-artifact_prefix=" + Environment("TEST_UNDECLARED_OUTPUTS_DIR", ".") + "/",
  };
  if (!seeds.empty()) {
    std::string list = "-seed_inputs=" + seeds[0];
    for (size_t i = 1; i < seeds.size(); ++i) list += "," + seeds[i];
    options.push_back(list);
  }
  options.push_back(corpus);
  return options;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  const std::vector<std::string> arguments(*argv + 1, *argv + *argc);
  for (const std::string& argument : arguments) {
    if (!argument.empty() && argument[0] == '-') return 0;
  }
  // libFuzzer keeps the pointers for as long as the process lives.
  static std::vector<std::string> options;
  static std::vector<char*> pointers;
  options = Options(arguments);
  pointers = {(*argv)[0]};
  for (std::string& option : options) pointers.push_back(option.data());
  *argc = static_cast<int>(pointers.size());
  pointers.push_back(nullptr);
  *argv = pointers.data();
  return 0;
}
