#include "core/file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <vector>

namespace fidelio {
namespace {

namespace fs = std::filesystem;

// Temporary files and folders being written, with the descriptor that holds their lock. A name is created, renamed and
// removed under the mutex, so that whoever holds it knows all there are. Never destroyed: a signal may come while the
// program returns from main.
std::mutex& unfinished_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
std::map<std::string, int>& unfinished() {
  static auto* names = new std::map<std::string, int>;
  return *names;
}

// The caller holds the mutex.
void forget(const std::string& path) {
  const auto found = unfinished().find(path);
  if (found == unfinished().end()) return;
  if (found->second >= 0) ::close(found->second);
  unfinished().erase(found);
}

std::string folder_of(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// The process in TARGET.PID.tmp, or 0.
pid_t writer_in(const std::string& name, const std::string& target) {
  if (!name.starts_with(target + ".") || !name.ends_with(".tmp") || name.size() < target.size() + 6) return 0;
  const std::string pid = name.substr(target.size() + 1, name.size() - target.size() - 5);
  if (pid.empty() || pid.size() > 9 || pid.find_first_not_of("0123456789") != std::string::npos) return 0;
  return static_cast<pid_t>(std::stol(pid));
}

// Removes what processes that are gone left of `target`. Gone: no process has the id, and nobody holds the lock (the
// writer may be in another container or on another machine, where ids mean something else).
void remove_leftovers(const std::string& target) {
  std::error_code ignored;
  const std::string name = fs::path(target).filename().string();
  std::vector<fs::path> found;
  for (fs::directory_iterator item(folder_of(target), ignored), end; !ignored && item != end; item.increment(ignored))
    if (writer_in(item->path().filename().string(), name) > 0) found.push_back(item->path());
  for (const fs::path& path : found) {
    const pid_t writer = writer_in(path.filename().string(), name);
    if (::kill(writer, 0) == 0 || errno != ESRCH) continue;
    const int fd = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) continue;
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) fs::remove_all(path, ignored);
    ::close(fd);
  }
}

// A rename would put a file in the place of a device or a pipe, or of the name of an open stream, as /dev/stdout is.
void check_replaceable(const std::string& path) {
  std::error_code ignored;
  const fs::file_status there = fs::status(path, ignored);
  const bool stream = fs::read_symlink(path, ignored).string().starts_with("/proc/");
  check(
      !stream && (!fs::exists(there) || fs::is_regular_file(there) || fs::is_directory(there)),
      "cannot write {}: expected the name of a file, got that of a device, a pipe or an open stream, where nothing can "
      "appear complete or not at all",
      path);
}

}  // namespace

void remove_unfinished_files() noexcept {
  unfinished_mutex().lock();  // for good
  std::error_code ignored;
  for (const auto& [path, lock] : unfinished()) fs::remove_all(path, ignored);
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
  const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);  // a pipe without a writer would wait
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
  check_replaceable(path_);
  temporary_ = fmt::format("{}.{}.tmp", path_, ::getpid());
  remove_leftovers(path_);
  std::lock_guard lock(unfinished_mutex());
  ::unlink(temporary_.c_str());  // of an earlier process with our id; never followed, never written into
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  check(fd_ >= 0, "cannot write {}: {}", path_, std::strerror(errno));
  ::flock(fd_, LOCK_EX | LOCK_NB);
  unfinished()[temporary_] = fd_;
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  std::lock_guard lock(unfinished_mutex());
  ::unlink(temporary_.c_str());
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
  {
    std::lock_guard lock(unfinished_mutex());
    const int renamed = ::rename(temporary_.c_str(), path_.c_str());
    check(renamed == 0, "cannot write {}: {}", path_, std::strerror(errno));
    forget(temporary_);
    fd_ = -1;
  }
  const int folder = ::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    ::fsync(folder);
    ::close(folder);
  }
}

TemporaryFolder::TemporaryFolder(std::string target) : target_(std::move(target)) {
  while (target_.size() > 1 && target_.back() == '/') target_.pop_back();
  path_ = fmt::format("{}.{}.tmp", target_, ::getpid());
  remove_leftovers(target_);
  std::lock_guard lock(unfinished_mutex());
  std::error_code failure;
  fs::remove_all(path_, failure);
  fs::create_directory(path_, failure);  // not its parents: they would be left behind
  check(!failure, "cannot create folder {}: {}", target_, failure.message());
  const int fd = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd >= 0) ::flock(fd, LOCK_EX | LOCK_NB);
  unfinished()[path_] = fd;
}

TemporaryFolder::~TemporaryFolder() {
  if (committed_) return;
  std::lock_guard lock(unfinished_mutex());
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  forget(path_);
}

void TemporaryFolder::commit() {
  std::lock_guard lock(unfinished_mutex());
  const int renamed = ::rename(path_.c_str(), target_.c_str());
  check(renamed == 0, "cannot write {}: {}", target_, std::strerror(errno));
  committed_ = true;
  forget(path_);
}

void remove_at_once(const std::string& path) {
  const std::string removed = path + ".removed";
  remove_leftovers(removed);
  std::error_code failure;
  if (!fs::exists(fs::symlink_status(path, failure))) return;
  const std::string temporary = fmt::format("{}.{}.tmp", removed, ::getpid());
  {
    std::lock_guard lock(unfinished_mutex());
    fs::remove_all(temporary, failure);
    const int renamed = ::rename(path.c_str(), temporary.c_str());
    check(renamed == 0, "cannot remove {}: {}", path, std::strerror(errno));
    unfinished()[temporary] = -1;
  }
  fs::remove_all(temporary, failure);
  std::lock_guard lock(unfinished_mutex());
  forget(temporary);
  check(!failure, "cannot remove {}: {}", temporary, failure.message());
}

}  // namespace fidelio
