#include "reprise/hf/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

std::string LengthPrefix(uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(length >> (8 * i)));
  return bytes;
}

std::string FileOf(const std::string& header, const std::string& data) {
  return LengthPrefix(header.size()) + header + data;
}

// Ten bytes of data: "a" is two int16, "b" six bytes, "none" is empty and between them.
const char kHeader[] = R"({"__metadata__":{"format":"pt"},
    "b":{"dtype":"U8","shape":[2,3],"data_offsets":[4,10]},
    "none":{"dtype":"F64","shape":[0,7],"data_offsets":[4,4]},
    "a":{"dtype":"I16","shape":[2],"data_offsets":[0,4]}}  )";
const char kData[] = "\x01\x00\x02\x00uvwxyz";

std::string ValidFile() { return FileOf(kHeader, std::string(kData, 10)); }

absl::StatusOr<TensorViews> Parse(const std::string& file) {
  return ParseSafetensors(absl::MakeConstSpan(file.data(), file.size()));
}

std::string ErrorOf(const std::string& file) {
  const absl::StatusOr<TensorViews> tensors = Parse(file);
  if (tensors.ok()) return "no error";
  EXPECT_EQ(tensors.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(tensors.status().message());
}

// The error of a file with one tensor "t" over `data_bytes` bytes.
std::string TensorErrorOf(const std::string& tensor, int data_bytes = 8) {
  return ErrorOf(FileOf("{\"t\":" + tensor + "}", std::string(data_bytes, 'x')));
}

TEST(SafetensorsTest, FindsEachTensorWhereTheHeaderPutsIt) {
  const std::string file = ValidFile();
  const absl::StatusOr<TensorViews> tensors = Parse(file);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 3u);
  const char* const data = file.data() + file.size() - 10;
  const TensorView& a = tensors->at("a");
  EXPECT_EQ(a.type, StoredType::kInt16);
  EXPECT_THAT(a.shape, ElementsAre(2));
  EXPECT_EQ(a.bytes.data(), data);
  EXPECT_EQ(a.num_elements(), 2);
  const TensorView& b = tensors->at("b");
  EXPECT_THAT(b.shape, ElementsAre(2, 3));
  EXPECT_EQ(std::string(b.bytes.data(), b.bytes.size()), "uvwxyz");
  EXPECT_THAT(tensors->at("none").bytes, IsEmpty());
  EXPECT_THAT(tensors->at("none").shape, ElementsAre(0, 7));
}

TEST(SafetensorsTest, AScalarHasOneElement) {
  const std::string file =
      FileOf(R"({"t":{"dtype":"F64","shape":[],"data_offsets":[0,8]}})", "12345678");
  const absl::StatusOr<TensorViews> tensors = Parse(file);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_EQ(tensors->at("t").num_elements(), 1);
}

TEST(SafetensorsTest, AFileWithoutTensorsIsValid) {
  EXPECT_EQ(ErrorOf(FileOf("{}", "")), "no error");
  EXPECT_EQ(ErrorOf(FileOf(R"({"__metadata__":{}})", "")), "no error");
}

TEST(SafetensorsTest, RefusesALengthThatLies) {
  EXPECT_EQ(ErrorOf("1234567"), "file: expected at least 8 bytes, got 7");
  EXPECT_EQ(ErrorOf(LengthPrefix(3) + "{}"), "header length: expected at most 2, got 3");
  EXPECT_EQ(ErrorOf(LengthPrefix(UINT64_MAX) + "{}"),
            "header length: expected at most 2, got 18446744073709551615");
  EXPECT_THAT(ErrorOf(LengthPrefix(uint64_t{1} << 63) + "{}"),
              HasSubstr("got 9223372036854775808"));
  // -8: the end of the header would wrap around to the start of the file.
  EXPECT_THAT(ErrorOf(LengthPrefix(UINT64_MAX - 7) + "{}"), HasSubstr("header length"));
  EXPECT_EQ(ErrorOf(LengthPrefix(100'000'001) + std::string(100'000'001, ' ')),
            "header length: expected at most 100000000, got 100000001");
  EXPECT_EQ(ErrorOf(LengthPrefix(0) + "{}"), "header: expected an object that begins with '{'");
}

TEST(SafetensorsTest, RefusesAHeaderThatIsNoObject) {
  for (const char* header : {"[]", "1", "\"a\"", "null", " {}", "\xEF\xBB\xBF{}"}) {
    EXPECT_EQ(ErrorOf(FileOf(header, "")), "header: expected an object that begins with '{'")
        << header;
  }
  EXPECT_THAT(ErrorOf(FileOf("{", "")), HasSubstr("header: not valid JSON"));
  EXPECT_THAT(ErrorOf(FileOf("{\"\xff\":1}", "")), HasSubstr("header: not valid JSON"));
  EXPECT_THAT(ErrorOf(FileOf("{} x", "")), HasSubstr("header: not valid JSON"));
  EXPECT_THAT(ErrorOf(FileOf("{\"t\":[]}", "")),
              HasSubstr("tensor \"t\": expected an object, got []"));
  EXPECT_THAT(ErrorOf(FileOf("{\"t\":" + std::string(100000, '['), "")),
              HasSubstr("nested deeper"));
}

TEST(SafetensorsTest, RefusesANameThatOccursTwice) {
  const std::string tensor = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  EXPECT_EQ(ErrorOf(FileOf(absl::StrCat("{\"t\":", tensor, ",\"t\":", tensor, "}"), "")),
            "header: the name \"t\" occurs twice");
}

TEST(SafetensorsTest, RefusesMetadataThatIsNoText) {
  EXPECT_EQ(ErrorOf(FileOf(R"({"__metadata__":[]})", "")),
            "__metadata__: expected an object, got []");
  EXPECT_EQ(ErrorOf(FileOf(R"({"__metadata__":{"a":1}})", "")),
            "__metadata__: a: expected a string, got 1");
}

TEST(SafetensorsTest, RefusesAnUnknownType) {
  EXPECT_THAT(TensorErrorOf(R"({"dtype":"F4","shape":[16],"data_offsets":[0,8]})"),
              StartsWith("tensor \"t\": dtype: expected one of BOOL, I8"));
  EXPECT_EQ(TensorErrorOf(R"({"dtype":7,"shape":[8],"data_offsets":[0,8]})"),
            "tensor \"t\": dtype: expected a string, got 7");
  EXPECT_EQ(TensorErrorOf(R"({"shape":[8],"data_offsets":[0,8]})"),
            "tensor \"t\": dtype: expected a string, got nothing");
}

TEST(SafetensorsTest, RefusesAMemberThatTheFormatDoesNotKnow) {
  EXPECT_THAT(TensorErrorOf(R"({"dtype":"U8","shape":[8],"data_offsets":[0,8],"stride":[1]})"),
              HasSubstr("\"stride\" is not supported"));
}

TEST(SafetensorsTest, RefusesAShapeThatIsNone) {
  for (const char* shape : {"8", "[-8]", "[8.0]", "[\"8\"]", "[null]", "[[8]]", "{}", "null",
                            "[9223372036854775808]", "[18446744073709551616]"}) {
    EXPECT_THAT(
        TensorErrorOf(absl::StrCat(R"({"dtype":"U8","data_offsets":[0,8],"shape":)", shape, "}")),
        StartsWith("tensor \"t\": shape: expected"))
        << shape;
  }
  std::string many = "[1";
  for (int i = 1; i < 65; ++i) many += ",1";
  EXPECT_THAT(TensorErrorOf(R"({"dtype":"U8","data_offsets":[0,1],"shape":)" + many + "]}", 1),
              HasSubstr("shape: expected at most 64 dimensions"));
}

TEST(SafetensorsTest, RefusesSizesWhoseProductOverflows) {
  // Each product is 8 or 0 when it is computed modulo 2^64.
  for (const char* shape :
       {"[9223372036854775807,9223372036854775807,8]", "[4294967296,4294967296]",
        "[2305843009213693953,8]", "[0,9223372036854775807,9223372036854775807]",
        "[9223372036854775807]", "[1152921504606846976,16]"}) {
    EXPECT_THAT(
        TensorErrorOf(absl::StrCat(R"({"dtype":"U8","data_offsets":[0,8],"shape":)", shape, "}")),
        HasSubstr("data_offsets: expected the bytes of U8 ["))
        << shape;
    EXPECT_THAT(
        TensorErrorOf(absl::StrCat(R"({"dtype":"F64","data_offsets":[0,8],"shape":)", shape, "}")),
        HasSubstr("data_offsets: expected the bytes of F64 ["))
        << shape;
  }
}

TEST(SafetensorsTest, RefusesOffsetsThatAreNotWithinTheData) {
  for (const char* offsets :
       {"[0,9]", "[8,16]", "[-8,0]", "[8,0]", "[0]", "[0,4,8]", "[]", "0", "null",
        "[0,9223372036854775808]", "[0,18446744073709551615]", "[0.0,8.0]"}) {
    EXPECT_THAT(
        TensorErrorOf(absl::StrCat(R"({"dtype":"U8","shape":[8],"data_offsets":)", offsets, "}")),
        StartsWith("tensor \"t\": data_offsets: expected"))
        << offsets;
  }
}

TEST(SafetensorsTest, RefusesASpanThatIsNotThatOfTypeAndShape) {
  EXPECT_EQ(TensorErrorOf(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
            "tensor \"t\": data_offsets: expected the bytes of F32 [3], got 8 bytes");
  EXPECT_EQ(TensorErrorOf(R"({"dtype":"F32","shape":[1],"data_offsets":[0,8]})"),
            "tensor \"t\": data_offsets: expected the bytes of F32 [1], got 8 bytes");
}

TEST(SafetensorsTest, RefusesTensorsThatShareBytes) {
  EXPECT_EQ(
      ErrorOf(FileOf(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
                               "b":{"dtype":"U8","shape":[5],"data_offsets":[3,8]}})",
                     "12345678")),
      "tensor \"b\": data_offsets: expected to begin at 4, the end of the tensor before it, got 3");
  // Both are all of it.
  EXPECT_THAT(ErrorOf(FileOf(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},
                                 "b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
                             "12")),
              HasSubstr("expected to begin at 2"));
}

TEST(SafetensorsTest, RefusesBytesThatBelongToNoTensor) {
  EXPECT_EQ(
      TensorErrorOf(R"({"dtype":"U8","shape":[7],"data_offsets":[1,8]})"),
      "tensor \"t\": data_offsets: expected to begin at 0, the end of the tensor before it, got 1");
  EXPECT_EQ(TensorErrorOf(R"({"dtype":"U8","shape":[7],"data_offsets":[0,7]})"),
            "data: expected 7 bytes for all tensors together, got 8");
  EXPECT_EQ(ErrorOf(FileOf("{}", "x")), "data: expected 0 bytes for all tensors together, got 1");
}

TEST(SafetensorsTest, RefusesEveryTruncation) {
  const std::string file = ValidFile();
  for (size_t length = 0; length < file.size(); ++length) {
    EXPECT_NE(ErrorOf(file.substr(0, length)), "no error") << length;
  }
  EXPECT_NE(ErrorOf(file + "x"), "no error");
}

TEST(SafetensorsTest, RandomDamageIsRefusedOrHarmless) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 20000; ++round) {
    std::string file = ValidFile();
    for (int i = 1 + random() % 3; i > 0; --i)
      file[random() % file.size()] = static_cast<char>(random());
    const absl::StatusOr<TensorViews> tensors = Parse(file);
    if (!tensors.ok()) continue;
    for (const auto& [name, tensor] : *tensors) {
      ASSERT_GE(tensor.bytes.data(), file.data());
      ASSERT_LE(tensor.bytes.data() + tensor.bytes.size(), file.data() + file.size());
      ASSERT_EQ(NumElements(tensor.shape), tensor.num_elements());
    }
  }
}

TEST(SafetensorsFileTest, ViewsOutliveAMoveOfTheFile) {
  const std::string path = testing::TempDir() + "/moved.safetensors";
  std::ofstream(path, std::ios::binary) << ValidFile();
  absl::StatusOr<SafetensorsFile> opened = SafetensorsFile::Open(path);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const TensorView b = *opened->Find("b");
  const SafetensorsFile file = *std::move(opened);
  EXPECT_EQ(std::string(b.bytes.data(), b.bytes.size()), "uvwxyz");
  EXPECT_EQ(file.Find("b")->bytes.data(), b.bytes.data());
}

TEST(SafetensorsFileTest, NamesThePathInItsErrors) {
  const std::string path = testing::TempDir() + "/bad.safetensors";
  EXPECT_EQ(SafetensorsFile::Open(path + ".missing").status().code(), absl::StatusCode::kNotFound);
  std::ofstream(path, std::ios::binary) << "short";
  EXPECT_EQ(SafetensorsFile::Open(path).status().message(),
            path + ": file: expected at least 8 bytes, got 5");
  std::ofstream(path, std::ios::binary) << ValidFile();
  EXPECT_EQ(SafetensorsFile::Open(path)->Find("x\n").status().message(),
            path + ": no tensor \"x\\n\"");
}

}  // namespace
}  // namespace reprise
