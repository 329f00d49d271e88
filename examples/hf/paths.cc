#include "reprise/hf/paths.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace reprise {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> Environment(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

// The name of the project's folder among runfiles: as the main workspace or an external one, and as
// the main module of newer Bazels.
void AppendRunfiles(const std::string& folder, std::vector<std::string>& roots) {
  roots.push_back(absl::StrCat(folder, "/reprise"));
  roots.push_back(absl::StrCat(folder, "/_main"));
}

void AppendAncestors(const fs::path& folder, std::vector<std::string>& roots) {
  for (fs::path at = folder; !at.empty(); at = at.parent_path()) {
    roots.push_back(at.string());
    if (at == at.parent_path()) break;
  }
}

}  // namespace

DataSurroundings DataSurroundings::OfThisProcess() {
  std::error_code ignored;
  return {.data_root = Environment("REPRISE_TEST_DATA"),
          .runfiles_dir = Environment("RUNFILES_DIR"),
          .test_srcdir = Environment("TEST_SRCDIR"),
          .executable = fs::read_symlink("/proc/self/exe", ignored).string(),
          .current_folder = fs::current_path(ignored).string()};
}

std::vector<std::string> DataRoots(const DataSurroundings& surroundings) {
  if (surroundings.data_root.has_value()) return {*surroundings.data_root};
  std::vector<std::string> roots;
  if (surroundings.runfiles_dir.has_value()) AppendRunfiles(*surroundings.runfiles_dir, roots);
  if (surroundings.test_srcdir.has_value()) AppendRunfiles(*surroundings.test_srcdir, roots);
  if (!surroundings.executable.empty()) {
    AppendRunfiles(absl::StrCat(surroundings.executable, ".runfiles"), roots);
    AppendAncestors(fs::path(surroundings.executable).parent_path(), roots);
  }
  AppendAncestors(surroundings.current_folder, roots);
  return roots;
}

std::vector<std::string> DataRoots() { return DataRoots(DataSurroundings::OfThisProcess()); }

std::optional<std::string> FindData(const std::string& path, absl::Span<const std::string> roots) {
  for (const std::string& root : roots) {
    std::string candidate = absl::StrCat(root, "/", path);
    std::error_code ignored;
    if (fs::exists(candidate, ignored)) return candidate;
  }
  return std::nullopt;
}

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
