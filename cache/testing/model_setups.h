// Small caches of every kind for the model test and the fuzzer, in which every resource can be
// exhausted.

#ifndef REPRISE_CACHE_TESTING_MODEL_SETUPS_H_
#define REPRISE_CACHE_TESTING_MODEL_SETUPS_H_

#include <string>
#include <vector>

#include "reprise/cache/testing/block_manager_model.h"

namespace reprise {

struct ModelSetup {
  std::string name;
  BlockManagerModelOptions options;
  // Events that a run of several thousand calls must reach, by their names in
  // BlockManagerModel::counts().
  std::vector<std::string> events;
};

int NumModelSetups();

// REQUIRES: 0 <= i < NumModelSetups().
ModelSetup ModelSetupOf(int i);

}  // namespace reprise

#endif  // REPRISE_CACHE_TESTING_MODEL_SETUPS_H_
