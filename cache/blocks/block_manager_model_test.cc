// Makes random calls to the block manager and the swap store, and compares them with a plain model
// of their state (cache/testing/block_manager_model.h). Makes 100,000 calls over all setups; set
// REPRISE_MODEL_CALLS=1000000 for more, and REPRISE_SEED to repeat a run.

#include "reprise/cache/testing/block_manager_model.h"

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/base/testing/test_seed.h"
#include "reprise/cache/testing/choices.h"
#include "reprise/cache/testing/model_setups.h"

namespace reprise {
namespace {

int64_t Environment(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoll(value);
}

class BlockManagerModelTest : public testing::TestWithParam<int> {};

TEST_P(BlockManagerModelTest, RandomCallsMatchAPlainModel) {
  const int64_t num_calls = Environment("REPRISE_MODEL_CALLS", 100000) / NumModelSetups();
  const unsigned seed = TestSeed();
  // Printed first, because a failure ends the process.
  std::cout << "REPRISE_SEED=" << seed << std::endl;
  const ModelSetup setup = ModelSetupOf(GetParam());
  RandomChoices choices(seed);
  BlockManagerModel model(setup.options, &choices);
  for (int64_t call = 0; call < num_calls; ++call) model.Step();
  if (num_calls < 5000) return;
  for (const std::string& event : setup.events) {
    EXPECT_GT(model.counts().count(event) ? model.counts().at(event) : 0, 0)
        << "the run never reached: " << event;
  }
}

INSTANTIATE_TEST_SUITE_P(Setups, BlockManagerModelTest, testing::Range(0, NumModelSetups()),
                         [](const testing::TestParamInfo<int>& info) {
                           return ModelSetupOf(info.param).name;
                         });

}  // namespace
}  // namespace reprise
