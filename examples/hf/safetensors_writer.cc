#include "reprise/hf/safetensors_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/hf/strict_json.h"
#include "reprise/hf/utf8.h"

namespace reprise {
namespace {

using nlohmann::json;

std::vector<const TensorToWrite*> LayoutOrder(absl::Span<const TensorToWrite> tensors) {
  std::vector<const TensorToWrite*> order;
  for (const TensorToWrite& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const TensorToWrite* a, const TensorToWrite* b) {
    const int a_size = SizeOf(a->tensor.type);
    const int b_size = SizeOf(b->tensor.type);
    return a_size != b_size ? a_size > b_size : a->name < b->name;
  });
  return order;
}

// The length and the header.
absl::StatusOr<std::string> MakeHeader(absl::Span<const TensorToWrite* const> order) {
  json header = json::object();
  int64_t offset = 0;
  for (const TensorToWrite* const entry : order) {
    const auto& [name, tensor] = *entry;
    const auto refuse = [&name = name](const std::string& message) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", DescribeJson(name), ": ", message));
    };
    if (name == "__metadata__") return refuse("the name is taken by the format");
    if (FindInvalidUtf8(name)) return refuse("the name is not UTF-8");
    if (header.contains(name)) return refuse("the name occurs twice");
    const int64_t size = static_cast<int64_t>(tensor.bytes.size());
    const std::optional<int64_t> num_elements = NumElements(tensor.shape);
    if (!num_elements || size % SizeOf(tensor.type) != 0 ||
        *num_elements != size / SizeOf(tensor.type)) {
      return refuse(absl::StrCat("expected the bytes of ", std::string(StoredTypeName(tensor.type)),
                                 " ", ShapeString(tensor.shape), ", got ", size, " bytes"));
    }
    header[name] = {{"dtype", StoredTypeName(tensor.type)},
                    {"shape", tensor.shape},
                    {"data_offsets", {offset, offset + size}}};
    offset += size;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string result(8, '\0');
  static_assert(std::endian::native == std::endian::little, "the format is little-endian");
  const uint64_t header_bytes = text.size();
  std::memcpy(result.data(), &header_bytes, sizeof(header_bytes));
  return result + text;
}

absl::Status SystemError(const std::string& path, int error) {
  return absl::InternalError(absl::StrCat("cannot write ", path, ": ", std::strerror(error)));
}

// A new file next to `path`, removed again unless it has been renamed to `path`.
class NewFile {
 public:
  explicit NewFile(const std::string& path) : path_(path) {
    // Of several that write the same file at once, the last to finish wins. O_EXCL: never through a
    // link at that path.
    for (int i = 0; fd_ < 0 && i < 100; ++i) {
      temporary_ = absl::StrCat(path, ".", getpid(), ".", i, ".partial");
      fd_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (fd_ < 0 && errno != EEXIST) break;
    }
    if (fd_ < 0) status_ = SystemError(path_, errno);
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() {
    if (fd_ < 0) return;
    close(fd_);
    if (!is_renamed_) unlink(temporary_.c_str());
  }

  void Append(std::string_view bytes) {
    while (status_.ok() && !bytes.empty()) {
      const ssize_t written = write(fd_, bytes.data(), bytes.size());
      if (written > 0) {
        bytes.remove_prefix(written);
      } else if (written == 0 || errno != EINTR) {
        status_ = SystemError(path_, written == 0 ? EIO : errno);
      }
    }
  }

  // Gives the file its name. Returns the first error of this or any call before.
  absl::Status Finish() {
    if (!status_.ok()) return status_;
    if (fsync(fd_) != 0 || rename(temporary_.c_str(), path_.c_str()) != 0) {
      return SystemError(path_, errno);
    }
    is_renamed_ = true;
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  std::string temporary_;
  int fd_ = -1;
  bool is_renamed_ = false;
  absl::Status status_;
};

}  // namespace

absl::Status WriteSafetensors(const std::string& path, absl::Span<const TensorToWrite> tensors) {
  const std::vector<const TensorToWrite*> order = LayoutOrder(tensors);
  REPRISE_ASSIGN_OR_RETURN(const std::string header, MakeHeader(order));
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected a file, got a folder, a device or a pipe"));
  }
  NewFile file(path);
  file.Append(header);
  for (const TensorToWrite* const entry : order) {
    file.Append(std::string_view(entry->tensor.bytes.data(), entry->tensor.bytes.size()));
  }
  return file.Finish();
}

}  // namespace reprise
