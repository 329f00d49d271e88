#include "reprise/hf/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "reprise/hf/safetensors_writer.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() : folder_(testing::TempDir() + "/checkpoint.XXXXXX") {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
  }

  // Writes a file with one float tensor a name, of the value given with it.
  void WriteWeights(const std::string& file,
                    const std::vector<std::pair<std::string, float>>& values) {
    std::vector<TensorToWrite> tensors;
    for (const auto& [name, value] : values) {
      tensors.push_back({name,
                         {StoredType::kFloat32,
                          {1},
                          absl::MakeConstSpan(reinterpret_cast<const char*>(&value), 4)}});
    }
    const absl::Status status = WriteSafetensors(folder_ + "/" + file, tensors);
    ASSERT_TRUE(status.ok()) << status;
  }

  void WriteIndex(const std::string& json) {
    std::ofstream(folder_ + "/model.safetensors.index.json") << json;
  }

  absl::Status OpenError() const { return Checkpoint::Open(folder_).status(); }

  std::string folder_;
};

TEST_F(CheckpointTest, OpensASingleFile) {
  WriteWeights("model.safetensors", {{"a", 1}, {"b", 2}});
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(folder_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(*CopyElements<float>(*checkpoint->Find("b")), ElementsAre(2));
  EXPECT_EQ(checkpoint->tensors().size(), 2u);
  EXPECT_EQ(checkpoint->Find("c").status().message(), folder_ + ": no tensor \"c\"");
  EXPECT_EQ(checkpoint->Find("c").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(CheckpointTest, OpensTheShardsOfAnIndex) {
  WriteWeights("model-00001-of-00002.safetensors", {{"a", 1}, {"b", 2}});
  WriteWeights("model-00002-of-00002.safetensors", {{"c", 3}, {"unlisted", 4}});
  WriteIndex(R"({"metadata": {"total_size": 12}, "weight_map": {
      "a": "model-00001-of-00002.safetensors", "b": "model-00001-of-00002.safetensors",
      "c": "model-00002-of-00002.safetensors"}})");
  absl::StatusOr<Checkpoint> opened = Checkpoint::Open(folder_);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const TensorView a = *opened->Find("a");
  const Checkpoint checkpoint = *std::move(opened);
  EXPECT_THAT(*CopyElements<float>(a), ElementsAre(1));
  EXPECT_THAT(*CopyElements<float>(*checkpoint.Find("c")), ElementsAre(3));
  EXPECT_EQ(checkpoint.tensors().size(), 3u);
}

TEST_F(CheckpointTest, AnIndexWhoseFilesExistGoesBeforeALoneFile) {
  WriteWeights("model.safetensors", {{"adapter", 1}});
  WriteWeights("x.safetensors", {{"a", 2}});
  WriteIndex(R"({"weight_map": {"a": "x.safetensors"}})");
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(folder_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->tensors().size(), 1u);
  EXPECT_THAT(*CopyElements<float>(*checkpoint->Find("a")), ElementsAre(2));
  std::ofstream(folder_ + "/model.safetensors") << "damaged file";
  EXPECT_TRUE(OpenError().ok());
}

TEST_F(CheckpointTest, ALoneFileGoesBeforeAnIndexThatCannotBeRead) {
  WriteWeights("model.safetensors", {{"a", 1}});
  for (const char* index : {"not even JSON", R"({"weight_map": {}})",
                            R"({"weight_map": {"b": "missing.safetensors"}})"}) {
    WriteIndex(index);
    const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(folder_);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_TRUE(checkpoint->Find("a").ok());
  }
}

TEST_F(CheckpointTest, ADamagedLoneFileIsNamedIfTheIndexLacksAFile) {
  std::ofstream(folder_ + "/model.safetensors") << "damaged file";
  WriteIndex(R"({"weight_map": {"a": "x.safetensors"}})");
  EXPECT_THAT(OpenError().message(), HasSubstr("model.safetensors: header length"));
}

TEST_F(CheckpointTest, FindsDuplicatesThatOnlyTheMetadataNames) {
  // A float32 "kept" of value 1, whose duplicate "removed" was left out.
  const std::string header =
      R"({"__metadata__":{"format":"pt","removed":"kept","other":"unlisted"},)"
      R"("kept":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
      R"("unlisted":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})";
  const uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), 8);
  bytes += header + std::string("\0\0\x80\x3f\0\0\0\0", 8);
  std::ofstream(folder_ + "/model.safetensors") << bytes;
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(folder_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(*CopyElements<float>(*checkpoint->Find("removed")), ElementsAre(1));
  EXPECT_EQ(checkpoint->tensors().size(), 4u);
  EXPECT_FALSE(checkpoint->Find("format").ok());

  WriteIndex(R"({"weight_map": {"kept": "model.safetensors"}})");
  checkpoint = Checkpoint::Open(folder_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(*CopyElements<float>(*checkpoint->Find("removed")), ElementsAre(1));
  EXPECT_EQ(checkpoint->tensors().size(), 2u);
}

TEST_F(CheckpointTest, RefusesAFolderWithoutWeights) {
  EXPECT_EQ(OpenError().message(),
            folder_ + ": expected a folder with model.safetensors or model.safetensors.index.json");
  EXPECT_EQ(OpenError().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Checkpoint::Open(folder_ + "/none").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(CheckpointTest, RefusesAMissingShard) {
  WriteIndex(R"({"weight_map": {"a": "x.safetensors"}})");
  EXPECT_EQ(OpenError().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(OpenError().message(), HasSubstr("/x.safetensors: No such file"));
}

TEST_F(CheckpointTest, RefusesATensorThatIsNotInItsShard) {
  WriteWeights("x.safetensors", {{"a", 1}});
  WriteIndex(R"({"weight_map": {"a": "x.safetensors", "b": "x.safetensors"}})");
  EXPECT_EQ(OpenError().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenError().message(), folder_ +
                                       "/x.safetensors: no tensor \"b\", where "
                                       "model.safetensors.index.json says it is");
}

TEST_F(CheckpointTest, RefusesAShardOutsideTheFolder) {
  WriteWeights("x.safetensors", {{"a", 1}});
  for (const char* file :
       {R"("../x.safetensors")", R"("/etc/x.safetensors")", R"("./x.safetensors")",
        R"("a/../x.safetensors")", R"("..\\x.safetensors")", R"("x.safetensors\u0000.safetensors")",
        R"("..")", R"("")", R"(".safetensors")", R"("x.bin")", "1", "null", "[]"}) {
    WriteIndex(std::string(R"({"weight_map": {"a": )") + file + "}}");
    EXPECT_EQ(OpenError().code(), absl::StatusCode::kInvalidArgument) << file;
    EXPECT_THAT(OpenError().message(),
                HasSubstr("weight_map: \"a\": expected the name of a .safetensors file in the same "
                          "folder, got "))
        << file;
  }
}

TEST_F(CheckpointTest, RefusesAnIndexThatIsNone) {
  for (const auto& [json, error] : std::vector<std::pair<std::string, std::string>>{
           {"", "the file is empty"},
           {"{", "not valid JSON at line 1, column"},
           {"[]", "expected an object, got []"},
           {"{}", "weight_map: expected an object, got nothing"},
           {R"({"weight_map": []})", "weight_map: expected an object, got []"},
           {R"({"weight_map": {"a": "x.safetensors", "a": "x.safetensors"}})", "occurs twice"},
       }) {
    WriteIndex(json);
    EXPECT_THAT(OpenError().message(), HasSubstr(error)) << json;
    EXPECT_THAT(OpenError().message(), HasSubstr("model.safetensors.index.json")) << json;
  }
}

}  // namespace
}  // namespace reprise
