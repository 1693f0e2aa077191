// Reading (regular files only: a pipe or device is refused, not waited for), mapping and atomic writing: a file is the
// old one or complete, as bytes go to TARGET.PID.fidelio.tmp, locked (flock), are fsynced, and only then renamed over it.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/tensor.h"

namespace fidelio {

std::string read_text_file(const std::string& path);                          // throws Error with path and reason
void write_file_atomically(const std::string& path, std::string_view bytes);  // likewise

// A read-only mapping of a whole file. Shared by the tensors that point into it.
class MappedFile {
 public:
  static std::shared_ptr<const MappedFile> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }
  // Tells the system that these pages are no longer wanted in memory (they are read again from the file if touched).
  void drop(const void* begin, size_t bytes) const;

 private:
  MappedFile() = default;
  std::string path_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Streams bytes into `path`; nothing is visible under that name until commit(). Destruction without commit removes the
// temporary file. A device or a pipe of that name is left alone: Error.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void commit();  // fsync, rename, fsync of the folder

 private:
  std::string path_, temporary_;
  int fd_ = -1;
};

// A folder in an existing one that appears under `target` complete, by one rename at commit(), or not at all.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(std::string target);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }  // fill this one
  void commit();

 private:
  std::string target_, path_;
  bool committed_ = false;
};

// Removes what is being written; no thread can begin or finish a file after it, so the process must end. What one leaves
// that was killed outright goes when the same target is next written or removed: its process is gone and its lock free.
void remove_unfinished_files() noexcept;

}  // namespace fidelio
