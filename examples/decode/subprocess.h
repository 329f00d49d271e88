// Runs a program to its end: for tests of command lines.
//
//   SubprocessResult result = RunSubprocess({"/path/decode", "--top_k", "-1"}, {});
//   EXPECT_EQ(result.exit_code, 1);

#ifndef EXAMPLES_DECODE_SUBPROCESS_H_
#define EXAMPLES_DECODE_SUBPROCESS_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace reprise {

struct SubprocessOptions {
  std::string folder = {};                            // to start in; empty: the current one
  std::map<std::string, std::string> variables = {};  // added to the environment
};

struct SubprocessResult {
  std::optional<int> exit_code;  // nullopt: ended by a signal
  std::string out;
  std::string err;
};

// `arguments` starts with the program. Standard input is empty. CHECK-fails if the system refuses.
SubprocessResult RunSubprocess(const std::vector<std::string>& arguments,
                               const SubprocessOptions& options);

}  // namespace reprise

#endif  // EXAMPLES_DECODE_SUBPROCESS_H_
