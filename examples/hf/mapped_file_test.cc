#include "reprise/hf/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

std::string PathFor(const std::string& name) { return testing::TempDir() + "/mapped_" + name; }

std::string WriteFile(const std::string& name, const std::string& content) {
  const std::string path = PathFor(name);
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

std::string Text(const MappedFile& file) {
  return std::string(file.bytes().data(), file.bytes().size());
}

TEST(MappedFileTest, HoldsTheBytesOfTheFile) {
  const std::string content("a\0b\n", 4);
  const std::string path = WriteFile("plain", content);
  absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(Text(*file), content);
  EXPECT_EQ(file->path(), path);
}

TEST(MappedFileTest, FollowsASymbolicLink) {
  const std::string link = PathFor("link");
  unlink(link.c_str());
  ASSERT_EQ(symlink(WriteFile("target", "content").c_str(), link.c_str()), 0);
  absl::StatusOr<MappedFile> file = MappedFile::Open(link);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(Text(*file), "content");
}

TEST(MappedFileTest, ReadsAnyPieceAndSaysSoIfTheFileWasShortened) {
  const std::string path = WriteFile("pieces", "0123456789");
  absl::StatusOr<MappedFile> opened = MappedFile::Open(path);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const MappedFile file = *std::move(opened);  // its descriptor moves with it
  std::string piece(4, '?');
  ASSERT_TRUE(file.Read(3, absl::MakeSpan(piece)).ok());
  EXPECT_EQ(piece, "3456");
  EXPECT_TRUE(file.Read(10, {}).ok());
  ASSERT_EQ(truncate(path.c_str(), 5), 0);
  const absl::Status status = file.Read(3, absl::MakeSpan(piece));
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(status.message(), path + ": the file was shortened while it was read: it ends at 5");
}

TEST(MappedFileTest, TheBytesStayWhereTheyAreWhenTheObjectMoves) {
  absl::StatusOr<MappedFile> opened = MappedFile::Open(WriteFile("moving", "content"));
  ASSERT_TRUE(opened.ok()) << opened.status();
  const char* const data = opened->bytes().data();
  MappedFile moved = *std::move(opened);
  EXPECT_EQ(moved.bytes().data(), data);
  absl::StatusOr<MappedFile> other = MappedFile::Open(WriteFile("other", "x"));
  ASSERT_TRUE(other.ok()) << other.status();
  *other = std::move(moved);
  EXPECT_EQ(other->bytes().data(), data);
  EXPECT_EQ(Text(*other), "content");
}

TEST(MappedFileTest, OutlivesTheNameOfTheFile) {
  const std::string path = WriteFile("unlinked", "content");
  absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(unlink(path.c_str()), 0);
  EXPECT_EQ(Text(*file), "content");
}

TEST(MappedFileTest, RefusesAMissingFile) {
  const absl::Status status = MappedFile::Open(PathFor("missing")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr(PathFor("missing") + ": No such file or directory"));
}

TEST(MappedFileTest, RefusesAPathThroughAFile) {
  const std::string path = WriteFile("not_a_folder", "x") + "/model.safetensors";
  EXPECT_EQ(MappedFile::Open(path).status().code(), absl::StatusCode::kNotFound);
}

TEST(MappedFileTest, RefusesAnEmptyFile) {
  const absl::Status status = MappedFile::Open(WriteFile("empty", "")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("the file is empty"));
}

TEST(MappedFileTest, RefusesAFolder) {
  const absl::Status status = MappedFile::Open(testing::TempDir()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("expected a file, got a folder"));
}

TEST(MappedFileTest, RefusesADeviceAndDoesNotWaitForAPipe) {
  EXPECT_EQ(MappedFile::Open("/dev/null").status().code(), absl::StatusCode::kInvalidArgument);
  const std::string pipe = PathFor("pipe");
  unlink(pipe.c_str());
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(MappedFile::Open(pipe).status().message(), HasSubstr("got a device or a pipe"));
}

TEST(MappedFileTest, RefusesAFileThatMayNotBeRead) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read every file";
  const std::string path = WriteFile("secret", "content");
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  EXPECT_EQ(MappedFile::Open(path).status().code(), absl::StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace reprise
