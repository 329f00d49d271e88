// Small caches of every kind for the model test and the fuzzer: little room, so that all runs out.

#ifndef CACHE_TESTING_MODEL_SETUPS_H_
#define CACHE_TESTING_MODEL_SETUPS_H_

#include <string>
#include <vector>

#include "cache/testing/block_manager_model.h"

namespace reprise {

struct ModelSetup {
  std::string name;
  BlockManagerModelOptions options;
  // What a run of some thousand calls must meet, by the names of BlockManagerModel::counts().
  std::vector<std::string> events;
};

int NumModelSetups();

// REQUIRES: 0 <= i < NumModelSetups().
ModelSetup ModelSetupOf(int i);

}  // namespace reprise

#endif  // CACHE_TESTING_MODEL_SETUPS_H_
