// A path as the user meant it: relative to the folder where the command was typed.
//
// `bazel run` starts a binary in its runfiles and leaves the user's folder in
// BUILD_WORKING_DIRECTORY. A process that such a binary starts elsewhere inherits the variable, so
// it counts only while the current folder is within runfiles.
//
//   REPRISE_ASSIGN_OR_RETURN(auto prompts, ReadPromptFile(ResolveUserPath("prompts.jsonl")));

#ifndef EXAMPLES_LLAMA_USER_PATH_H_
#define EXAMPLES_LLAMA_USER_PATH_H_

#include <optional>
#include <string>

namespace reprise {

struct UserSurroundings {
  std::optional<std::string> build_working_directory = {};  // $BUILD_WORKING_DIRECTORY
  std::string current_folder = {};                          // absolute

  static UserSurroundings OfThisProcess();
};

// `path` itself if it is absolute or there is nothing to resolve.
std::string ResolveUserPath(const std::string& path, const UserSurroundings& surroundings);
std::string ResolveUserPath(const std::string& path);

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_USER_PATH_H_
