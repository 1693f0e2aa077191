#include "core/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>

namespace fidelio {
namespace {

// Temporary files and folders being written, for remove_unfinished_files().
std::mutex unfinished_mutex;
std::set<std::string> unfinished;

void remember(const std::string& path) {
  std::lock_guard lock(unfinished_mutex);
  unfinished.insert(path);
}
void forget(const std::string& path) {
  std::lock_guard lock(unfinished_mutex);
  unfinished.erase(path);
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

}  // namespace

void remove_unfinished_files() noexcept {
  std::lock_guard lock(unfinished_mutex);
  std::error_code ignored;
  for (const std::string& path : unfinished) std::filesystem::remove_all(path, ignored);
  unfinished.clear();
}

std::string read_text_file(const std::string& path) {
  const auto file = MappedFile::open(path);
  return {reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()};
}

void write_file_atomically(const std::string& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  check(fd >= 0, "cannot open {}: {}", path, std::strerror(errno));
  struct stat info {};
  const bool known = ::fstat(fd, &info) == 0;
  if (!known || !S_ISREG(info.st_mode)) {
    ::close(fd);
    throw Error("cannot read {}: {}", path, known ? "not a regular file" : std::strerror(errno));
  }
  std::shared_ptr<MappedFile> file(new MappedFile);
  file->path_ = path;
  file->size_ = static_cast<size_t>(info.st_size);
  if (file->size_ > 0) {
    void* p = ::mmap(nullptr, file->size_, PROT_READ, MAP_PRIVATE, fd, 0);
    const int reason = errno;
    ::close(fd);
    if (p == MAP_FAILED) {
      file->size_ = 0;
      throw Error("cannot map {}: {}", path, std::strerror(reason));
    }
    file->data_ = static_cast<std::byte*>(p);
  } else {
    ::close(fd);
  }
  return file;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(data_, size_);
}

void MappedFile::drop(const void* begin, size_t bytes) const {
  // Whole pages strictly inside the range, so that neighbours' pages stay.
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
  const uintptr_t last = (reinterpret_cast<uintptr_t>(begin) + bytes) / page * page;
  if (last > first) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  temporary_ = fmt::format("{}.{}.tmp", path_, ::getpid());
  remember(temporary_);
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) {
    const int reason = errno;
    forget(temporary_);
    throw Error("cannot write {}: {}", path_, std::strerror(reason));
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) {
    ::close(fd_);
    ::unlink(temporary_.c_str());
  }
  forget(temporary_);
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    check(n > 0, "cannot write {}: {}", path_, std::strerror(errno));
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void AtomicFile::commit() {
  const int synced = ::fsync(fd_);  // before the check: its arguments are evaluated in any order, errno first
  check(synced == 0, "cannot write {}: {}", path_, std::strerror(errno));
  const int closed = ::close(fd_);
  fd_ = -1;
  if (closed != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int reason = errno;
    ::unlink(temporary_.c_str());
    throw Error("cannot write {}: {}", path_, std::strerror(reason));
  }
  forget(temporary_);
  const int folder = ::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    ::fsync(folder);
    ::close(folder);
  }
}

TemporaryFolder::TemporaryFolder(std::string target) : target_(std::move(target)) {
  while (target_.size() > 1 && target_.back() == '/') target_.pop_back();
  path_ = fmt::format("{}.{}.tmp", target_, ::getpid());
  remember(path_);
  std::error_code failure;
  std::filesystem::remove_all(path_, failure);
  std::filesystem::create_directory(path_, failure);  // not its parents: they would be left behind
  if (failure) {
    forget(path_);
    throw Error("cannot create folder {}: {}", target_, failure.message());
  }
}

TemporaryFolder::~TemporaryFolder() {
  if (committed_) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
  forget(path_);
}

void TemporaryFolder::commit() {
  const int renamed = ::rename(path_.c_str(), target_.c_str());
  check(renamed == 0, "cannot write {}: {}", target_, std::strerror(errno));
  committed_ = true;
  forget(path_);
}

}  // namespace fidelio
