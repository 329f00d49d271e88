// Describes the first difference between two texts for a message. Private to the folder.

#ifndef REPRISE_DISTRIBUTED_TEXT_DIFFERENCE_H_
#define REPRISE_DISTRIBUTED_TEXT_DIFFERENCE_H_

#include <string>

namespace reprise {

// Returns `expected "...", got "..."` with up to 120 characters of each text, starting shortly
// before the first difference.
std::string TextDifference(const std::string& expected, const std::string& got);

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_TEXT_DIFFERENCE_H_
