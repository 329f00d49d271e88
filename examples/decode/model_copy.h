// A copy of the project's model that a test may modify.

#ifndef EXAMPLES_DECODE_MODEL_COPY_H_
#define EXAMPLES_DECODE_MODEL_COPY_H_

#include <string>

namespace reprise {

// Copies the model that comes with the project to a folder `name` among the test's files, and
// returns the folder's path. Replaces an existing folder.
std::string CopyDefaultModel(const std::string& name);

std::string ReadWholeFile(const std::string& path);
void WriteWholeFile(const std::string& path, const std::string& content);

}  // namespace reprise

#endif  // EXAMPLES_DECODE_MODEL_COPY_H_
