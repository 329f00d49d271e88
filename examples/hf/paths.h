// Unstable: any version may change this header (docs/embedding.md).
//
// Finds files at run time: files of the project (the example model, the goldens), and files that
// the user names.
//
//   std::optional<std::string> folder = FindData("examples/models/jargon-llama", DataRoots());
//   REPRISE_ASSIGN_OR_RETURN(auto prompts, ReadPromptFile(ResolveUserPath("prompts.jsonl")));
//
// Binaries are started by Bazel, from bazel-bin, and as a file that was carried to another machine
// with its data next to it. `bazel run` starts a binary in its runfiles and leaves the user's
// folder in BUILD_WORKING_DIRECTORY. A process that such a binary starts elsewhere inherits the
// variable, so it counts only while the current folder is within runfiles.
//
// Thread safety: pure but for the environment and the file system.

#ifndef REPRISE_HF_PATHS_H_
#define REPRISE_HF_PATHS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace reprise {

// The inputs of the search.
struct DataSurroundings {
  std::optional<std::string> data_root = {};     // $REPRISE_TEST_DATA: replaces all others
  std::optional<std::string> runfiles_dir = {};  // $RUNFILES_DIR, set by Bazel's launchers
  std::optional<std::string> test_srcdir = {};   // $TEST_SRCDIR, set by `bazel test`
  std::string executable = {};                   // absolute, links resolved
  std::string current_folder = {};               // absolute

  static DataSurroundings OfThisProcess();
};

// Folders that may be the root of the project, best first: the runfiles of Bazel, then the folder
// of the executable and the current one, and the folders around each.
std::vector<std::string> DataRoots(const DataSurroundings& surroundings);
std::vector<std::string> DataRoots();

// The first <root>/<path> that exists. `path` is relative to the root of the project.
std::optional<std::string> FindData(const std::string& path, absl::Span<const std::string> roots);

struct UserSurroundings {
  std::optional<std::string> build_working_directory = {};  // $BUILD_WORKING_DIRECTORY
  std::string current_folder = {};                          // absolute

  static UserSurroundings OfThisProcess();
};

// `path` itself if it is absolute or there is nothing to resolve.
std::string ResolveUserPath(const std::string& path, const UserSurroundings& surroundings);
std::string ResolveUserPath(const std::string& path);

}  // namespace reprise

#endif  // REPRISE_HF_PATHS_H_
