// A file of choices that were made by measurement, so that later processes make the same ones: a
// text for each key. Several processes may use one file at the same time.
//
//   ChoiceFile file("/var/cache/reprise/linear_choices");
//   if (std::optional<std::string> choice = file.Find(key)) ...
//   REPRISE_RETURN_IF_ERROR(file.Put(key, choice));
//
// The file is text: a line that names its form, then a line for each choice, of the key, the choice
// and a checksum of both, separated by tabs. A file that does not exist is empty. One that is
// damaged is taken as empty, with one warning, and replaced by the next Put(). No LibTorch.
//
// Thread safety: none for an object.

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
  // Reads the file at `path`; the folder need not exist yet.
  explicit ChoiceFile(std::string path);

  // As of the last time the file was read: at first, and by Put().
  std::optional<std::string> Find(const std::string& key) const;

  // Adds the choice to what the file holds now, unless it has one for the key, and replaces the
  // file at once: who reads it meanwhile finds the old or the new one. Of two processes that put at
  // the same time, the choice of one may be lost. Returns the choice that the file has for the key.
  // Errors: InvalidArgument if a text is empty or has tabs or line ends; Unavailable, naming the
  // path, if the file cannot be written.
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
// nullopt if the text is not exactly what FormatChoices() makes of some choices.
std::optional<ChoiceTexts> ParseChoices(const std::string& text);
}  // namespace internal

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_CHOICES_CHOICE_FILE_H_
