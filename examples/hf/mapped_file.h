// Unstable: any version may change this header (docs/embedding.md).
//
// A file's bytes, read-only, without copying them: weights are paged in as they are read, and
// shared with every other process that maps the same file.
//
//   REPRISE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open("model.safetensors"));
//   Parse(file.bytes());
//
// Thread safety: as any const object. The bytes live as long as the object, and stay where they are
// when it is moved. They are the file's, not a copy: if another process shortens the file while it
// is mapped, this process ends with SIGBUS.

#ifndef REPRISE_HF_MAPPED_FILE_H_
#define REPRISE_HF_MAPPED_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace reprise {

class MappedFile {
 public:
  // Follows symbolic links. Never blocks on a pipe.
  // Errors, all naming `path`:
  //   NotFound            there is no such file
  //   PermissionDenied    it may not be read
  //   InvalidArgument     it is a folder, a device or a pipe, or it is empty
  //   Internal            the system refused for another reason, given in its words
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  // At least one byte, and aligned to a page; empty after this object has been moved from.
  absl::Span<const char> bytes() const { return bytes_; }

  // Copies out.size() bytes from `offset` on. Reads the file instead of the mapping, so that none
  // of the mapping's pages become resident in this process. May be called by several threads at
  // once.
  // REQUIRES: they are within bytes(). Errors: Internal, naming the file: in the system's words, or
  // that it has been shortened.
  absl::Status Read(int64_t offset, absl::Span<char> out) const;

  // As given to Open().
  const std::string& path() const { return path_; }

 private:
  MappedFile(std::string path, int descriptor, absl::Span<const char> bytes);

  std::string path_;
  int descriptor_ = -1;
  absl::Span<const char> bytes_;
};

}  // namespace reprise

#endif  // REPRISE_HF_MAPPED_FILE_H_
