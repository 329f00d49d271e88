// Where two texts differ, for messages. Private to the folder.

#ifndef REPRISE_DISTRIBUTED_TEXT_DIFFERENCE_H_
#define REPRISE_DISTRIBUTED_TEXT_DIFFERENCE_H_

#include <string>

namespace reprise {

// `expected "...", got "..."`: up to 120 characters of both, from a little before they begin to differ.
std::string TextDifference(const std::string& expected, const std::string& got);

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_TEXT_DIFFERENCE_H_
