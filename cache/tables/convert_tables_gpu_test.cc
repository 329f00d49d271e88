// Tests that tables converted on the device match tables converted on the host, including faults.

#include <cuda_runtime_api.h>

#include <random>

#include "gtest/gtest.h"
#include "reprise/base/testing/builder_twins.h"
#include "reprise/base/testing/device_array.h"
#include "reprise/base/testing/test_seed.h"
#include "reprise/cache/tables/convert_tables.h"
#include "reprise/cache/testing/conversion_cases.h"

namespace reprise {
namespace {

class ConvertTablesGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!HasCudaDevice()) GTEST_SKIP() << "no GPU on this machine";
  }

  // Captures one graph per shape and format, and replays it over random tables.
  static void Compare(int num_shapes, int num_replays);
};

class ConvertTablesSmallGpuTest : public ConvertTablesGpuTest {};

void ConvertTablesGpuTest::Compare(int num_shapes, int num_replays) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  for (int i = 0; i < num_shapes; ++i) {
    for (const ConversionForm form : kAllConversionForms) {
      ConversionShape shape = {.form = form,
                               .num_rows = i == 0   ? 0
                                           : i == 1 ? 700  // more than two rounds of 256
                                                    : below(40),
                               .max_blocks = 1 + below(i % 5 == 4 ? 400 : 30),
                               .block_size = 1 + below(20)};
      shape.max_indices = (1 + below(4)) * (shape.num_rows + 1) * shape.max_blocks / 4;
      if (form != ConversionForm::kPackedToPadded) {
        shape.selection = {.keys = static_cast<TableKeys>(below(3)), .window_left = below(60)};
      }
      BuilderTwins<ConvertTablesArgs> twins(
          [&](ArrayCarver& carver) { return CarveConversion(shape, carver); }, LaunchConvertTables);
      for (int replay = 0; replay < num_replays; ++replay) {
        twins.Poison();
        DrawConversion(random, replay % 2 == 0 ? 0 : 0.1, twins.args());
        ASSERT_EQ(twins.Compare(ConvertTablesOnHost), "")
            << "shape " << i << ", form " << static_cast<int>(form) << ", replay " << replay;
      }
    }
  }
}

TEST_F(ConvertTablesGpuTest, AllFormatsMatchTheHost) { Compare(300, 20); }

TEST_F(ConvertTablesSmallGpuTest, AllFormatsMatchTheHost) { Compare(4, 4); }

// Needs no GPU: the arguments are rejected before any launch.
TEST(ConvertTablesLaunchTest, RejectsTheArgumentsThatTheCheckRejects) {
  for (const RefusedConversion& refused : RefusedConversions()) {
    EXPECT_EQ(LaunchConvertTables(refused.args, nullptr).message(), refused.message);
  }
}

}  // namespace
}  // namespace reprise
