// Whether tests of large matrices run all cases. By default they run a subset, so that all tests
// finish within minutes.
#ifndef REPRISE_BASE_TESTING_ALL_CASES_H_
#define REPRISE_BASE_TESTING_ALL_CASES_H_

#include <cstdlib>
#include <string_view>

namespace reprise {

// Set by --config=all_cases, one of the checks of tools/check_all.sh.
inline bool TakesAllCases() {
  const char* const value = std::getenv("REPRISE_ALL_CASES");
  return value != nullptr && std::string_view(value) == "yes";
}

}  // namespace reprise

#endif  // REPRISE_BASE_TESTING_ALL_CASES_H_
