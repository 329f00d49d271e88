#include "examples/llama/user_path.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace reprise {

UserSurroundings UserSurroundings::OfThisProcess() {
  UserSurroundings surroundings;
  if (const char* const folder = std::getenv("BUILD_WORKING_DIRECTORY")) {
    surroundings.build_working_directory = folder;
  }
  std::error_code ignored;
  surroundings.current_folder = std::filesystem::current_path(ignored).string();
  return surroundings;
}

std::string ResolveUserPath(const std::string& path, const UserSurroundings& surroundings) {
  const bool in_runfiles = surroundings.current_folder.find(".runfiles/") != std::string::npos;
  if (path.empty() || path.front() == '/' || !in_runfiles) return path;
  if (!surroundings.build_working_directory.has_value()) return path;
  return absl::StrCat(*surroundings.build_working_directory, "/", path);
}

std::string ResolveUserPath(const std::string& path) {
  return ResolveUserPath(path, UserSurroundings::OfThisProcess());
}

}  // namespace reprise
