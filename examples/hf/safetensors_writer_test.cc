#include "reprise/hf/safetensors_writer.h"

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "reprise/hf/safetensors.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A new, empty folder, so that files left behind are seen.
class SafetensorsWriterTest : public testing::Test {
 protected:
  SafetensorsWriterTest() : folder_(testing::TempDir() + "/writer.XXXXXX") {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
  }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  std::vector<std::string> FilesInFolder() const {
    std::vector<std::string> names;
    DIR* const folder = opendir(folder_.c_str());
    while (const dirent* entry = readdir(folder)) {
      if (entry->d_name[0] != '.') names.push_back(entry->d_name);
    }
    closedir(folder);
    return names;
  }

  std::string folder_;
};

template <typename T>
absl::Span<const char> BytesOf(const std::vector<T>& values) {
  return absl::MakeConstSpan(reinterpret_cast<const char*>(values.data()),
                             values.size() * sizeof(T));
}

TEST_F(SafetensorsWriterTest, WhatIsWrittenIsReadBack) {
  const std::vector<float> logits = {1.5f, -2.0f, 0.0f, 3.25f, 1e30f, -1e-30f};
  const std::vector<int64_t> tokens = {7, -1};
  const std::vector<int8_t> flags = {1, 0, 1};
  const std::vector<TensorToWrite> tensors = {
      {"flags", {StoredType::kBool, {3}, BytesOf(flags)}},
      {"logits_0", {StoredType::kFloat32, {2, 3}, BytesOf(logits)}},
      {"tokens \"é\"", {StoredType::kInt64, {2}, BytesOf(tokens)}},
      {"empty", {StoredType::kFloat32, {0, 3}, {}}},
  };
  ASSERT_TRUE(WriteSafetensors(Path("out"), tensors).ok());
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(Path("out"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->tensors().size(), 4u);
  EXPECT_EQ(*CopyElements<float>(*file->Find("logits_0")), logits);
  EXPECT_THAT(file->Find("logits_0")->shape, ElementsAre(2, 3));
  EXPECT_EQ(*CopyElements<int64_t>(*file->Find("tokens \"é\"")), tokens);
  EXPECT_EQ(file->Find("flags")->bytes.size(), 3u);
  EXPECT_THAT(file->Find("empty")->shape, ElementsAre(0, 3));
  for (const auto& [name, tensor] : file->tensors()) EXPECT_TRUE(tensor.IsAligned()) << name;
  EXPECT_THAT(FilesInFolder(), ElementsAre("out"));
}

TEST_F(SafetensorsWriterTest, AFileWithoutTensorsIsValid) {
  ASSERT_TRUE(WriteSafetensors(Path("out"), {}).ok());
  EXPECT_TRUE(SafetensorsFile::Open(Path("out"))->tensors().empty());
}

TEST_F(SafetensorsWriterTest, AReaderOfTheOldFileKeepsTheOldContent) {
  const std::vector<float> old_values = {1};
  const std::vector<float> new_values = {2};
  const auto write = [&](const std::vector<float>& values) {
    return WriteSafetensors(Path("out"), {{"t", {StoredType::kFloat32, {1}, BytesOf(values)}}});
  };
  ASSERT_TRUE(write(old_values).ok());
  const absl::StatusOr<SafetensorsFile> old_file = SafetensorsFile::Open(Path("out"));
  ASSERT_TRUE(write(new_values).ok());
  EXPECT_THAT(*CopyElements<float>(*old_file->Find("t")), ElementsAre(1));
  EXPECT_THAT(*CopyElements<float>(*SafetensorsFile::Open(Path("out"))->Find("t")), ElementsAre(2));
}

TEST_F(SafetensorsWriterTest, RefusesTensorsThatContradictThemselves) {
  const auto error_of = [&](const TensorToWrite& tensor) {
    const absl::Status status = WriteSafetensors(Path("out"), {tensor});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const std::vector<float> two = {1, 2};
  EXPECT_EQ(error_of({"t", {StoredType::kFloat32, {3}, BytesOf(two)}}),
            "tensor \"t\": expected the bytes of F32 [3], got 8 bytes");
  EXPECT_THAT(error_of({"t", {StoredType::kFloat32, {-2}, BytesOf(two)}}), HasSubstr("F32 [-2]"));
  EXPECT_THAT(error_of({"t", {StoredType::kFloat32, {1}, BytesOf(two).subspan(3)}}),
              HasSubstr("got 5 bytes"));
  EXPECT_THAT(error_of({"__metadata__", {StoredType::kFloat32, {2}, BytesOf(two)}}),
              HasSubstr("taken by the format"));
  EXPECT_THAT(error_of({"\xff", {StoredType::kFloat32, {2}, BytesOf(two)}}),
              HasSubstr("not UTF-8"));
  const TensorToWrite twice = {"t", {StoredType::kFloat32, {2}, BytesOf(two)}};
  EXPECT_THAT(WriteSafetensors(Path("out"), {twice, twice}).message(), HasSubstr("occurs twice"));
  EXPECT_THAT(FilesInFolder(), ElementsAre());
}

TEST_F(SafetensorsWriterTest, RefusesAPathThatIsNoFile) {
  EXPECT_THAT(WriteSafetensors(folder_, {}).message(), HasSubstr("expected a file, got a folder"));
  EXPECT_EQ(WriteSafetensors("/dev/null", {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(WriteSafetensors(Path("no/out"), {}).message(),
              HasSubstr(Path("no/out") + ": No such file or directory"));
}

// Writes 4000 bytes where files may have 1000, in place of a full disk: write() fails with EFBIG.
absl::StatusCode WriteUnderALimit(const std::string& path) {
  signal(SIGXFSZ, SIG_IGN);
  const rlimit limit = {.rlim_cur = 1000, .rlim_max = RLIM_INFINITY};
  setrlimit(RLIMIT_FSIZE, &limit);
  const std::vector<float> values(1000);
  return WriteSafetensors(path, {{"t", {StoredType::kFloat32, {1000}, BytesOf(values)}}}).code();
}

TEST_F(SafetensorsWriterTest, LeavesNothingBehindWhenTheDiskRefuses) {
  EXPECT_EXIT(_exit(WriteUnderALimit(Path("out")) == absl::StatusCode::kInternal ? 0 : 1),
              testing::ExitedWithCode(0), "");
  EXPECT_THAT(FilesInFolder(), ElementsAre());
}

}  // namespace
}  // namespace reprise
