// Where the files that come with the project are, at run time: the example model, the goldens.
//
//   std::optional<std::string> folder =
//       FindData("examples/llama/models/jargon-llama", DataRoots());
//
// Binaries are started by Bazel, from bazel-bin, and as a file that was carried to another machine
// with its data beside it.
//
// Thread safety: pure but for the environment and the file system.

#ifndef EXAMPLES_LLAMA_DATA_PATH_H_
#define EXAMPLES_LLAMA_DATA_PATH_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace reprise {

// What decides where to look.
struct DataSurroundings {
  std::optional<std::string> data_root = {};     // $REPRISE_TEST_DATA: replaces all others
  std::optional<std::string> runfiles_dir = {};  // $RUNFILES_DIR, set by Bazel's launchers
  std::optional<std::string> test_srcdir = {};   // $TEST_SRCDIR, set by `bazel test`
  std::string executable = {};                   // absolute, links resolved
  std::string current_folder = {};               // absolute

  static DataSurroundings OfThisProcess();
};

// Folders that may stand for the root of the project, best first: the runfiles of Bazel, then the
// folder of the executable and the current one, and the folders around each.
std::vector<std::string> DataRoots(const DataSurroundings& surroundings);
std::vector<std::string> DataRoots();

// The first <root>/<path> that exists. `path` is relative to the root of the project.
std::optional<std::string> FindData(const std::string& path, absl::Span<const std::string> roots);

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_DATA_PATH_H_
