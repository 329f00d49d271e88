#include "examples/decode/model_copy.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "glog/logging.h"
#include "gtest/gtest.h"
#include "reprise/models/model_folder.h"

namespace reprise {

std::string CopyDefaultModel(const std::string& name) {
  namespace fs = std::filesystem;
  const absl::StatusOr<std::string> model = DefaultModelFolder();
  CHECK(model.ok()) << model.status();
  const fs::path copy = fs::path(testing::TempDir()) / name;
  fs::remove_all(copy);
  fs::create_directories(copy);
  for (const fs::directory_entry& file : fs::directory_iterator(*model)) {
    // Follows links, since runfiles are links, and makes the copies writable.
    WriteWholeFile((copy / file.path().filename()).string(), ReadWholeFile(file.path().string()));
  }
  return copy.string();
}

std::string ReadWholeFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  CHECK(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void WriteWholeFile(const std::string& path, const std::string& content) {
  std::ofstream out(path, std::ios::binary);
  out << content;
  CHECK(out.good()) << path;
}

}  // namespace reprise
