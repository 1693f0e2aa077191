// This file reads, maps and atomically writes files. Only regular files are read; a pipe or a device is refused, not
// waited for. A written file is either the old one or complete: bytes go to TARGET.PID.fidelio.tmp, which is locked
// (flock) and fsynced, and only then is it renamed over the target.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/tensor.h"

namespace fidelio {

std::string read_text_file(const std::string& path);  // It throws Error with the path and the reason.
void write_file_atomically(const std::string& path, std::string_view bytes);  // It throws Error likewise.

// This is a read-only mapping of a whole file, shared by the tensors that point into it.
class MappedFile {
 public:
  static std::shared_ptr<const MappedFile> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }
  // Tells the system that these pages are no longer needed in memory. They are read again from the file if touched.
  void drop(const void* begin, size_t bytes) const;

 private:
  MappedFile() = default;
  std::string path_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// This class streams bytes into `path`; nothing is visible under that name until commit(). Destruction without commit()
// removes the temporary file. If `path` is a device or a pipe, it is left alone and Error is thrown.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void commit();  // This calls fsync, renames the file and calls fsync on its folder.

 private:
  std::string path_, temporary_;
  int fd_ = -1;
};

// This is a new folder inside an existing one. It appears under `target` complete, by one rename at commit(), or not at
// all.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(std::string target);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }  // The caller writes its files into this folder.
  void commit();

 private:
  std::string target_, path_;
  bool committed_ = false;
};

// Removes every file and folder that is being written. Afterwards no thread can begin or finish a file, so the process
// must end. Files left by a process that was killed outright are removed when the same target is next written or
// removed, as their process is gone and their lock is free.
void remove_unfinished_files() noexcept;

}  // namespace fidelio
