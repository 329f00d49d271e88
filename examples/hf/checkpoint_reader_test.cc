#include "reprise/hf/checkpoint_reader.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/hf/safetensors_writer.h"
#ifdef REPRISE_TEST_ON_GPU
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace reprise {
namespace {

using testing::HasSubstr;

#ifdef REPRISE_TEST_ON_GPU
const c10::Device kDevice(c10::kCUDA, 0);
#else
const c10::Device kDevice(c10::kCPU);
#endif

// A checkpoint of the given tensors in a folder of its own.
class Folder {
 public:
  Folder(const std::string& name, std::map<std::string, at::Tensor> tensors)
      : folder_(std::filesystem::path(testing::TempDir()) / name), tensors_(std::move(tensors)) {
    std::filesystem::create_directories(folder_);
    std::vector<TensorToWrite> views;
    for (const auto& [tensor_name, tensor] : tensors_) {
      views.push_back({tensor_name,
                       {.type = ToStoredType(*FromScalarType(tensor.scalar_type())),
                        .shape = tensor.sizes().vec(),
                        .bytes = {static_cast<const char*>(tensor.const_data_ptr()),
                                  static_cast<size_t>(tensor.nbytes())}}});
    }
    const absl::Status status = WriteSafetensors(path(), views);
    CHECK(status.ok()) << status;
    auto checkpoint = Checkpoint::Open(folder_.string());
    CHECK(checkpoint.ok()) << checkpoint.status();
    checkpoint_ = std::make_shared<const Checkpoint>(*std::move(checkpoint));
  }

  std::string path() const { return (folder_ / "model.safetensors").string(); }
  CheckpointReader Reader(DType dtype) const { return {checkpoint_, kDevice, dtype}; }
  const Checkpoint& checkpoint() const { return *checkpoint_; }
  const at::Tensor& operator[](const std::string& name) const { return tensors_.at(name); }

 private:
  std::filesystem::path folder_;
  std::map<std::string, at::Tensor> tensors_;
  std::shared_ptr<const Checkpoint> checkpoint_;
};

at::Tensor Added(CheckpointReader& reader, const std::vector<TensorPart>& parts) {
  absl::StatusOr<at::Tensor> tensor = reader.Add(parts);
  CHECK(tensor.ok()) << tensor.status();
  return *std::move(tensor);
}

// The rows of each head: even ones, then odd ones.
at::Tensor Unzipped(const at::Tensor& rows, int64_t head) {
  std::vector<int64_t> sizes = rows.sizes().vec();
  std::vector<int64_t> pairs = {sizes[0] / head, head / 2, 2};
  pairs.insert(pairs.end(), sizes.begin() + 1, sizes.end());
  return rows.view(pairs).transpose(1, 2).reshape(sizes);
}

class CheckpointReaderTest : public testing::Test {
#ifdef REPRISE_TEST_ON_GPU
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
  }
#endif
};

TEST_F(CheckpointReaderTest, PartsStandOneBelowTheOtherWhateverTheThreads) {
  // 40 MB in float32: pieces of 8 MB, of which rows do not come out even.
  const Folder folder("large", {{"a", at::randn({1001, 3000})},
                                {"b", at::randn({7, 3000})},
                                {"c", at::randn({2500, 3000})}});
  for (const int num_threads : {1, 2, 5}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      SCOPED_TRACE(testing::Message() << num_threads << " threads, " << dtype);
      CheckpointReader reader = folder.Reader(dtype);
      const at::Tensor fused = Added(reader, {{"a"}, {"b"}, {"c"}});
      const at::Tensor alone = Added(reader, {{"b"}});
      int64_t last = -1;
      ASSERT_TRUE(reader
                      .Run({.num_threads = num_threads,
                            .on_progress =
                                [&](int64_t num_bytes, int64_t total_bytes) {
                                  EXPECT_GE(num_bytes, last);
                                  EXPECT_LE(num_bytes, total_bytes);
                                  last = num_bytes;
                                }})
                      .ok());
      // Alone and as it is, on the CPU, a tensor stays in the file.
      const bool is_mapped = kDevice.is_cpu() && dtype == DType::kFloat32;
      EXPECT_EQ(last, (1001 + 7 + 2500 + (is_mapped ? 0 : 7)) * int64_t{12000});
      EXPECT_TRUE(at::equal(
          fused.cpu(), at::cat({folder["a"], folder["b"], folder["c"]}).to(ToScalarType(dtype))));
      EXPECT_TRUE(at::equal(alone.cpu(), folder["b"].to(ToScalarType(dtype))));
    }
  }
}

TEST_F(CheckpointReaderTest, HeadsAreUnzippedAcrossPieces) {
  // A head of 6 rows of 1.6 MB: a piece holds no whole number of them, and 50 do not fit into one.
  const Folder folder("zipped", {{"q", at::randn({18, 400'000})},
                                 {"k", at::randn({6, 400'000})},
                                 {"bias", at::randn({24}).to(at::kHalf)}});
  CheckpointReader reader = folder.Reader(DType::kFloat32);
  const at::Tensor qk = Added(reader, {{"q", 6}, {"k", 6}});
  const at::Tensor plain = Added(reader, {{"q"}, {"k", 6}});
  const at::Tensor bias = Added(reader, {{"bias", 8}});
  ASSERT_TRUE(reader.Run({}).ok());
  EXPECT_TRUE(at::equal(qk.cpu(), at::cat({Unzipped(folder["q"], 6), Unzipped(folder["k"], 6)})));
  EXPECT_TRUE(at::equal(plain.cpu(), at::cat({folder["q"], Unzipped(folder["k"], 6)})));
  EXPECT_TRUE(at::equal(bias.cpu(), Unzipped(folder["bias"].to(at::kFloat), 8)));
}

TEST_F(CheckpointReaderTest, MatricesAreTransposedAndTheirColumnsUnzipped) {
  // Matrices of no whole number of tiles; of three dimensions in several pieces (12 MB), each of
  // which holds whole matrices.
  const Folder folder("transposed", {{"flat", at::randn({37, 50})},
                                     {"experts", at::randn({3, 700, 1430})},
                                     {"half", at::randn({4, 33, 6}).to(at::kHalf)},
                                     {"bias", at::randn({4, 6})}});
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    SCOPED_TRACE(testing::Message() << dtype);
    const at::ScalarType type = ToScalarType(dtype);
    CheckpointReader reader = folder.Reader(dtype);
    const at::Tensor flat =
        Added(reader, {{.name = "flat", .shape = {50, 37}, .is_transposed = true}});
    const at::Tensor experts =
        Added(reader, {{.name = "experts", .shape = {3 * 1430, 700}, .is_transposed = true}});
    const at::Tensor half =
        Added(reader,
              {{.name = "half", .unzipped_head = 6, .shape = {4 * 6, 33}, .is_transposed = true}});
    const at::Tensor bias = Added(reader, {{.name = "bias", .unzipped_head = 6, .shape = {24}}});
    ASSERT_TRUE(reader.Run({}).ok());
    EXPECT_TRUE(at::equal(flat.cpu(), folder["flat"].t().to(type)));
    EXPECT_TRUE(at::equal(experts.cpu(), folder["experts"].transpose(1, 2).flatten(0, 1).to(type)));
    EXPECT_TRUE(
        at::equal(half.cpu(),
                  Unzipped(folder["half"].transpose(1, 2).flatten(0, 1).contiguous(), 6).to(type)));
    EXPECT_TRUE(at::equal(bias.cpu(), Unzipped(folder["bias"].view({24}), 6).to(type)));
  }
}

TEST_F(CheckpointReaderTest, TheFirstRowsOfAHeadMayStay) {
  const Folder folder("kept", {{"q", at::randn({14, 5})}});
  CheckpointReader reader = folder.Reader(DType::kFloat32);
  // Two heads of 7 rows, of which 3 stay and 4 are 2 pairs.
  const at::Tensor q = Added(reader, {{.name = "q", .unzipped_head = 7, .kept_rows = 3}});
  ASSERT_TRUE(reader.Run({}).ok());
  const at::Tensor order =
      at::tensor(std::vector<int64_t>{0, 1, 2, 3, 5, 4, 6, 7, 8, 9, 10, 12, 11, 13});
  EXPECT_TRUE(at::equal(q.cpu(), folder["q"].index_select(0, order)));
}

TEST_F(CheckpointReaderTest, ChoosesTheDTypeThatIsWantedOrStored) {
  const Folder folder("dtypes", {{"double", at::randn({3}).to(at::kDouble)},
                                 {"half", at::randn({3}).to(at::kHalf)}});
  EXPECT_EQ(*ChooseDType(folder.checkpoint(), "half", std::nullopt), DType::kFloat16);
  EXPECT_EQ(*ChooseDType(folder.checkpoint(), "double", std::nullopt), DType::kFloat32);
  EXPECT_EQ(*ChooseDType(folder.checkpoint(), "half", DType::kBFloat16), DType::kBFloat16);
  EXPECT_EQ(ChooseDType(folder.checkpoint(), "none", std::nullopt).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(ChooseDType(folder.checkpoint(), "half", DType::kFloat64).status().message(),
            "dtype must be float32, float16 or bfloat16: got float64");
}

TEST_F(CheckpointReaderTest, NothingToReadIsDoneAtOnce) {
  const Folder folder("nothing", {{"empty", at::randn({0, 4})}});
  CheckpointReader reader = folder.Reader(DType::kFloat32);
  EXPECT_EQ(Added(reader, {{"empty"}, {"empty"}}).size(0), 0);
  int num_reports = 0;
  ASSERT_TRUE(reader.Run({.on_progress = [&](int64_t, int64_t) { ++num_reports; }}).ok());
  EXPECT_EQ(num_reports, 1);
}

TEST_F(CheckpointReaderTest, AFileThatIsShortenedMeanwhileIsAnErrorAndNoCrash) {
  const Folder folder("shortened", {{"a", at::randn({5000, 1000})}});
  CheckpointReader reader = folder.Reader(DType::kBFloat16);
  Added(reader, {{"a"}});
  ASSERT_EQ(truncate(folder.path().c_str(), 4096), 0);
  const absl::Status status = reader.Run({.num_threads = 3});
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the file was shortened"));
}

TEST_F(CheckpointReaderTest, SomeRowsOfATensorAreATensor) {
  const Folder folder("fused", {{"a", at::randn({36, 5})}, {"v", at::randn({36})}});
  const at::Tensor a = folder["a"].narrow(0, 10, 24);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    SCOPED_TRACE(testing::Message() << dtype);
    const at::ScalarType type = ToScalarType(dtype);
    CheckpointReader reader = folder.Reader(dtype);
    const TensorPart part = {.name = "a", .shape = {24, 5}, .first_row = 10};
    TensorPart sliced = part;
    sliced.rows = Share{2, 4};
    sliced.period = 12;
    sliced.columns = Share{1, 3};
    TensorPart unzipped = sliced;
    unzipped.unzipped_head = 4;
    const at::Tensor plain = Added(reader, {part});
    const at::Tensor both = Added(reader, {sliced, unzipped});
    const at::Tensor vector = Added(reader, {{.name = "v", .shape = {6}, .first_row = 30},
                                             {.name = "v", .shape = {6}, .first_row = 0}});
    ASSERT_TRUE(reader.Run({}).ok());
    EXPECT_TRUE(at::equal(plain.cpu(), a.to(type)));
    const at::Tensor slice =
        a.view({2, 12, 5}).narrow(1, 2, 4).narrow(2, 1, 3).reshape({8, 3}).to(type);
    EXPECT_TRUE(at::equal(both.cpu(), at::cat({slice, Unzipped(slice, 4)})));
    const at::Tensor v = folder["v"].to(type);
    EXPECT_TRUE(at::equal(vector.cpu(), at::cat({v.narrow(0, 30, 6), v.narrow(0, 0, 6)})));
  }
}

TEST_F(CheckpointReaderTest, RejectsRowsThatATensorDoesNotHave) {
  const Folder folder("short", {{"a", at::randn({36, 5})}});
  CheckpointReader reader = folder.Reader(DType::kFloat32);
  for (const int64_t first_row : {int64_t{-1}, int64_t{13}, int64_t{1} << 40}) {
    const absl::Status status =
        reader.Add({{.name = "a", .shape = {24, 5}, .first_row = first_row}}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << first_row;
    EXPECT_THAT(std::string(status.message()), HasSubstr("a must have [24, 5] from row "));
  }
  EXPECT_FALSE(reader.Add({{.name = "a", .shape = {5, 24}, .is_transposed = true}}).ok());
  EXPECT_FALSE(reader.Add({{.name = "a", .shape = {24, 6}, .first_row = 12}}).ok());
}

TEST_F(CheckpointReaderTest, ATensorMayHaveAnotherDTypeThanTheReader) {
  const Folder folder("float32", {{"bias", at::randn({5}).to(at::kHalf)}, {"a", at::randn({5})}});
  CheckpointReader reader = folder.Reader(DType::kBFloat16);
  const auto bias = reader.Add({{"bias"}}, DType::kFloat32);
  ASSERT_TRUE(bias.ok()) << bias.status();
  const at::Tensor a = Added(reader, {{"a"}});
  ASSERT_TRUE(reader.Run({}).ok());
  EXPECT_EQ(bias->scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(bias->cpu(), folder["bias"].to(at::kFloat)));
  EXPECT_TRUE(at::equal(a.cpu(), folder["a"].to(at::kBFloat16)));
}

TEST_F(CheckpointReaderTest, NamesTheTensorThatIsNotThereOrNoFloat) {
  const Folder folder("wrong", {{"ints", at::randn({3}).to(at::kFloat)}});
  CheckpointReader reader = folder.Reader(DType::kFloat32);
  EXPECT_EQ(reader.Add({{"absent"}}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(reader.Add({{"ints"}, {"absent"}}).status().message()),
              HasSubstr("absent"));
}

#ifndef REPRISE_TEST_ON_GPU
TEST_F(CheckpointReaderTest, WhatNeedsNoChangeIsThereBeforeAnythingIsRead) {
  const Folder folder("mapped_only", {{"a", at::randn({4, 4})}});
  CheckpointReader reader = folder.Reader(DType::kFloat32);
  EXPECT_TRUE(at::equal(Added(reader, {{"a"}}), folder["a"]));
  const at::Tensor rows = Added(reader, {{.name = "a", .shape = {2, 4}, .first_row = 1}});
  EXPECT_TRUE(at::equal(rows, folder["a"].narrow(0, 1, 2)));
}

// The largest resident set since the last reset, in bytes.
int64_t PeakResidentBytes() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

TEST_F(CheckpointReaderTest, TakesLittleMoreMemoryThanTheTensors) {
  constexpr int64_t kRows = 8192;
  constexpr int64_t kBytes = 2 * kRows * 4096 * 2;  // 134 MB in bfloat16
  const Folder folder("memory", {{"gate", at::randn({kRows, 4096}).to(at::kBFloat16)},
                                 {"up", at::randn({kRows, 4096}).to(at::kBFloat16)}});
  CheckpointReader reader = folder.Reader(DType::kBFloat16);
  std::ofstream clear_refs("/proc/self/clear_refs");
  clear_refs << "5" << std::flush;  // resets the peak (proc(5))
  if (!clear_refs.good()) GTEST_SKIP() << "the system does not let the peak be reset";
  const int64_t before = PeakResidentBytes();
  const at::Tensor fused = Added(reader, {{"gate"}, {"up"}});
  ASSERT_TRUE(reader.Run({.num_threads = 4}).ok());
  const int64_t grown = PeakResidentBytes() - before;
  EXPECT_GT(grown, kBytes * 9 / 10);  // or the measurement is useless
  EXPECT_LT(grown, kBytes * 11 / 10);
  EXPECT_TRUE(at::equal(fused, at::cat({folder["gate"], folder["up"]})));
}

#endif

// Every slice of rows and columns, over all ranks, against the whole tensor.
TEST_F(CheckpointReaderTest, RanksReadTheirRowsAndColumns) {
  const Folder folder("slices", {{"a", at::randn({37, 29})}, {"v", at::randn({37})}});
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const at::Tensor a = folder["a"].to(ToScalarType(dtype));
    const at::Tensor v = folder["v"].to(ToScalarType(dtype));
    for (const int world : {1, 2, 3, 4}) {
      for (int rank = 0; rank < world; ++rank) {
        SCOPED_TRACE(testing::Message() << dtype << ", rank " << rank << " of " << world);
        const Share rows = ShareOf(37, {.rank = rank, .world = world});
        const Share columns = ShareOf(29, {.rank = rank, .world = world});
        CheckpointReader reader = folder.Reader(dtype);
        const at::Tensor some_rows = Added(reader, {{.name = "a", .rows = rows}});
        const at::Tensor some_columns = Added(reader, {{.name = "a", .columns = columns}});
        const at::Tensor both = Added(reader, {{.name = "a", .rows = rows, .columns = columns},
                                               {.name = "a", .columns = columns}});
        const at::Tensor vector =
            Added(reader, {{.name = "v", .rows = rows}, {.name = "v", .rows = rows}});
        ASSERT_TRUE(reader.Run({}).ok());
        const at::Tensor expected_rows = a.narrow(0, rows.begin, rows.size);
        const at::Tensor expected_columns = a.narrow(1, columns.begin, columns.size);
        EXPECT_TRUE(at::equal(some_rows.cpu(), expected_rows));
        EXPECT_TRUE(at::equal(some_columns.cpu(), expected_columns));
        EXPECT_TRUE(at::equal(
            both.cpu(),
            at::cat({expected_columns.narrow(0, rows.begin, rows.size), expected_columns})));
        const at::Tensor part = v.narrow(0, rows.begin, rows.size);
        EXPECT_TRUE(at::equal(vector.cpu(), at::cat({part, part})));
      }
    }
  }
}

TEST_F(CheckpointReaderTest, RanksReadTheirRowsOfEachPeriodUnzipped) {
  // Three heads of 12 rows, of which the first 4 keep their order; and as columns of a transposed
  // tensor.
  const Folder folder("periods", {{"a", at::randn({36, 5})}, {"t", at::randn({3, 5, 12})}});
  const at::Tensor a = folder["a"];
  const at::Tensor t = folder["t"].transpose(1, 2);  // [3, 12, 5]
  CheckpointReader reader = folder.Reader(DType::kFloat32);
  const Share rows = {2, 4};
  const Share columns = {1, 3};
  const at::Tensor plain = Added(reader, {{.name = "a", .rows = rows, .period = 12}});
  const at::Tensor unzipped = Added(
      reader, {{.name = "a", .unzipped_head = 4, .rows = rows, .period = 12, .columns = columns}});
  const at::Tensor transposed = Added(reader, {{.name = "t",
                                                .unzipped_head = 4,
                                                .shape = {36, 5},
                                                .is_transposed = true,
                                                .rows = rows,
                                                .period = 12}});
  const at::Tensor transposed_columns = Added(
      reader,
      {{.name = "t", .shape = {36, 5}, .is_transposed = true, .period = 12, .columns = columns}});
  ASSERT_TRUE(reader.Run({}).ok());
  const at::Tensor a_rows = a.view({3, 12, 5}).narrow(1, 2, 4).reshape({12, 5});
  EXPECT_TRUE(at::equal(plain.cpu(), a_rows));
  EXPECT_TRUE(at::equal(unzipped.cpu(), Unzipped(a_rows, 4).narrow(1, 1, 3)));
  EXPECT_TRUE(at::equal(transposed.cpu(), Unzipped(t.narrow(1, 2, 4).reshape({12, 5}), 4)));
  EXPECT_TRUE(at::equal(transposed_columns.cpu(), t.narrow(2, 1, 3).reshape({36, 3}).contiguous()));
}

// As GPT-2 stores q, k and v of all heads: their outputs are columns of the file, side by side.
TEST_F(CheckpointReaderTest, RanksReadTheirRowsOfEachPeriodOfATransposedTensor) {
  const Folder folder("side_by_side", {{"a", at::randn({5, 36})}});
  const at::Tensor a = folder["a"].transpose(0, 1);  // [36, 5]
  CheckpointReader reader = folder.Reader(DType::kFloat32);
  const TensorPart part = {
      .name = "a", .shape = {36, 5}, .is_transposed = true, .rows = Share{2, 4}, .period = 12};
  TensorPart some_columns = part;
  some_columns.columns = Share{1, 3};
  TensorPart all = part;
  all.rows = Share{0, 12};
  TensorPart all_rows = all;
  all_rows.columns = Share{1, 3};
  const at::Tensor rows = Added(reader, {part});
  const at::Tensor both = Added(reader, {some_columns});
  const at::Tensor whole = Added(reader, {all});
  const at::Tensor columns = Added(reader, {all_rows});
  ASSERT_TRUE(reader.Run({}).ok());
  const at::Tensor expected = a.reshape({3, 12, 5}).narrow(1, 2, 4).reshape({12, 5});
  EXPECT_TRUE(at::equal(rows.cpu(), expected));
  EXPECT_TRUE(at::equal(both.cpu(), expected.narrow(1, 1, 3)));
  EXPECT_TRUE(at::equal(whole.cpu(), a.contiguous()));
  EXPECT_TRUE(at::equal(columns.cpu(), a.narrow(1, 1, 3).contiguous()));
}

TEST_F(CheckpointReaderTest, NothingButTheSliceIsRead) {
  const Folder folder("bytes", {{"a", at::randn({64, 100})}});
  CheckpointReader reader = folder.Reader(DType::kBFloat16);
  Added(reader, {{.name = "a", .rows = Share{8, 16}, .columns = Share{30, 25}}});
  int64_t total = 0;
  ASSERT_TRUE(reader.Run({.on_progress = [&](int64_t, int64_t bytes) { total = bytes; }}).ok());
  EXPECT_EQ(total, 16 * 25 * 4);
}

}  // namespace
}  // namespace reprise
