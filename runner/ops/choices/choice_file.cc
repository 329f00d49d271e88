#include "reprise/runner/ops/choices/choice_file.h"

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "glog/logging.h"

namespace reprise {
namespace {

constexpr char kForm[] = "reprise choices 1\n";

// FNV-1a. Detects damage, not deliberate changes.
uint64_t Checksum(const std::string& text) {
  uint64_t sum = 0xcbf29ce484222325u;
  for (const char c : text) sum = (sum ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return sum;
}

bool IsText(const std::string& text) {
  return !text.empty() && text.find_first_of("\t\r\n") == std::string::npos;
}

// Returns nullopt if the file does not exist or cannot be opened.
std::optional<std::string> ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

std::string internal::FormatChoices(const ChoiceTexts& choices) {
  std::string text = kForm;
  for (const auto& [key, choice] : choices) {
    const std::string line = absl::StrCat(key, "\t", choice);
    absl::StrAppend(&text, line, "\t", absl::StrFormat("%016x", Checksum(line)), "\n");
  }
  return text;
}

std::optional<ChoiceTexts> internal::ParseChoices(const std::string& text) {
  if (!absl::StartsWith(text, kForm)) return std::nullopt;
  ChoiceTexts choices;
  std::vector<std::string> lines = absl::StrSplit(text.substr(sizeof(kForm) - 1), '\n');
  // A non-empty last element means that the last line has no line end.
  if (!lines.back().empty()) return std::nullopt;
  lines.pop_back();
  for (const std::string& line : lines) {
    const std::vector<std::string> parts = absl::StrSplit(line, '\t');
    if (parts.size() != 3) return std::nullopt;
    choices[parts[0]] = parts[1];
  }
  // Also verifies the order and the checksums.
  if (FormatChoices(choices) != text) return std::nullopt;
  return choices;
}

ChoiceFile::ChoiceFile(std::string path) : path_(std::move(path)) { Read(); }

void ChoiceFile::Read() {
  choices_.clear();
  const std::optional<std::string> text = ReadAll(path_);
  if (!text.has_value()) return;
  if (std::optional<ChoiceTexts> choices = internal::ParseChoices(*text)) {
    choices_ = *std::move(choices);
  } else if (!has_warned_) {
    LOG(WARNING) << path_ << " is damaged or not a choice file, and is ignored";
    has_warned_ = true;
  }
}

std::optional<std::string> ChoiceFile::Find(const std::string& key) const {
  const auto found = choices_.find(key);
  if (found == choices_.end()) return std::nullopt;
  return found->second;
}

absl::StatusOr<std::string> ChoiceFile::Put(const std::string& key, const std::string& choice) {
  for (const auto& [name, text] : {std::pair("key", &key), std::pair("choice", &choice)}) {
    if (!IsText(*text)) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, " must not be empty or contain tabs or line ends: got \"", *text, "\""));
    }
  }
  Read();
  const auto [entry, is_new] = choices_.emplace(key, choice);
  if (!is_new) return entry->second;
  const auto failed = [&](const std::string& why) {
    return absl::UnavailableError(absl::StrCat(path_, " cannot be written: ", why));
  };
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) return failed(error.message());
  const std::string own = absl::StrCat(path_, ".", getpid(), ".new");
  {
    std::ofstream file(own, std::ios::binary | std::ios::trunc);
    file << internal::FormatChoices(choices_);
    file.close();
    if (!file) {
      std::filesystem::remove(own, error);
      return failed("the new file was not written");
    }
  }
  std::filesystem::rename(own, path_, error);
  if (!error) return choice;
  const std::string why = error.message();
  std::filesystem::remove(own, error);
  return failed(why);
}

}  // namespace reprise
