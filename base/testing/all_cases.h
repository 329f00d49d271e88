// Whether tests of large matrices take every case. Usually they take some, so that all tests together end in minutes.
#ifndef REPRISE_BASE_TESTING_ALL_CASES_H_
#define REPRISE_BASE_TESTING_ALL_CASES_H_

#include <cstdlib>
#include <string_view>

namespace reprise {

// --config=all_cases, a check of tools/check_all.sh, sets the variable.
inline bool TakesAllCases() {
  const char* const value = std::getenv("REPRISE_ALL_CASES");
  return value != nullptr && std::string_view(value) == "yes";
}

}  // namespace reprise

#endif  // REPRISE_BASE_TESTING_ALL_CASES_H_
