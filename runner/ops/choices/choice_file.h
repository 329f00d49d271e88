// A file that stores choices made by measurement, as a text for each key, so that later processes
// make the same choices. Several processes may use one file at the same time.
//
//   ChoiceFile file("/var/cache/reprise/linear_choices");
//   if (std::optional<std::string> choice = file.Find(key)) ...
//   REPRISE_RETURN_IF_ERROR(file.Put(key, choice));
//
// The file is text. The first line names the format. Each further line holds a key, a choice and a
// checksum of both, separated by tabs. A file that does not exist counts as empty. A damaged file
// also counts as empty: it causes one warning, and the next Put() replaces it. Does not depend on
// LibTorch.
//
// Thread safety: not thread-safe. Two ChoiceFiles of one process with the same path must not call
// Put() at the same time, because they write the same temporary file.

#ifndef REPRISE_RUNNER_OPS_CHOICES_CHOICE_FILE_H_
#define REPRISE_RUNNER_OPS_CHOICES_CHOICE_FILE_H_

#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace reprise {

using ChoiceTexts = std::map<std::string, std::string>;

class ChoiceFile {
 public:
  // Reads the file at `path`. The folder does not have to exist yet.
  explicit ChoiceFile(std::string path);

  // Returns the choice for `key` as of the last read of the file, by the constructor or by Put(),
  // or nullopt.
  std::optional<std::string> Find(const std::string& key) const;

  // Reads the file. If it has no choice for the key, adds the choice and replaces the file
  // atomically: concurrent readers find either the old or the new file. If two processes call Put()
  // at the same time, the choice of one may be lost. Returns the choice that the file has for the
  // key. Errors: InvalidArgument if a text is empty or contains tabs or line ends; Unavailable,
  // naming the path, if the file cannot be written.
  absl::StatusOr<std::string> Put(const std::string& key, const std::string& choice);

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool has_warned_ = false;
  ChoiceTexts choices_;

  void Read();
};

namespace internal {
std::string FormatChoices(const ChoiceTexts& choices);
// Returns nullopt if the text is not the exact output of FormatChoices() for some choices.
std::optional<ChoiceTexts> ParseChoices(const std::string& text);
}  // namespace internal

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_CHOICES_CHOICE_FILE_H_
