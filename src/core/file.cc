#include "core/file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>

#include "core/own_files.h"

namespace fidelio {
namespace {

namespace fs = std::filesystem;

// This map holds the temporary files and folders being written, each with the descriptor that holds its lock. A name is
// created, renamed and removed under the mutex, so a thread that holds the mutex sees every one of them. The mutex and
// the map are never destroyed, because a signal may arrive while the program returns from main.
std::mutex& unfinished_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
std::map<std::string, int>& unfinished() {
  static auto* names = new std::map<std::string, int>;
  return *names;
}

// This set holds the outputs that are complete: each was renamed from its temporary name to its own.
std::set<std::string>& finished() {
  static auto* names = new std::set<std::string>;
  return *names;
}

// Drops `path` from the map and closes its lock. The caller holds the mutex.
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

// No other program ends its names with this.
constexpr std::string_view kTemporary = ".fidelio.tmp";
std::string temporary_name(const std::string& target) { return fmt::format("{}.{}{}", target, ::getpid(), kTemporary); }

// Returns the process id in a name TARGET.PID.fidelio.tmp, or 0 where the name has not that form.
pid_t writer_in(const std::string& name, const std::string& target) {
  if (!name.starts_with(target + ".") || !name.ends_with(kTemporary)) return 0;
  const size_t others = target.size() + 1 + kTemporary.size();
  if (name.size() <= others) return 0;
  const std::string pid = name.substr(target.size() + 1, name.size() - others);
  if (pid.empty() || pid.size() > 9 || pid.find_first_not_of("0123456789") != std::string::npos) return 0;
  return static_cast<pid_t>(std::stol(pid));
}

// Returns the target of a name TARGET.PID.fidelio.tmp, also where the target is called TARGET.removed. Any other name
// is returned as it is.
std::string without_temporary(const std::string& name) {
  if (!name.ends_with(kTemporary)) return name;
  const size_t dot = name.rfind('.', name.size() - kTemporary.size() - 1);
  if (dot == std::string::npos || writer_in(name, name.substr(0, dot)) == 0) return name;
  const std::string target = name.substr(0, dot);
  return target.ends_with(".removed") ? target.substr(0, target.size() - 8) : target;
}

std::vector<fs::path> inside(const fs::path& folder, std::error_code& failure) {
  std::vector<fs::path> all;
  for (fs::directory_iterator item(folder, failure), end; !failure && item != end; item.increment(failure))
    all.push_back(item->path());
  return all;
}

// Removes a file, or a folder with all it holds. However deep the folder is, it opens one descriptor at a time, so the
// one that was closed last is enough; std::filesystem::remove_all holds one for every level. Links are removed and not
// followed.
std::error_code remove_tree(const fs::path& path) {
  std::error_code failure, ignored;
  if (fs::symlink_status(path, ignored).type() == fs::file_type::directory)
    for (const fs::path& item : inside(path, failure)) {
      const std::error_code within = remove_tree(item);
      if (within) failure = within;
    }
  std::error_code own;
  fs::remove(path, own);
  return failure ? failure : own;
}

// Removes temporary files of `target` left by processes that are gone. A process counts as gone if no process has its
// id and nobody holds the lock. Both are needed, as the writer may be in another container or on another machine, where
// ids mean something else.
void remove_leftovers(const std::string& target) {
  std::error_code ignored;
  const std::string name = fs::path(target).filename().string();
  std::vector<fs::path> found;
  for (const fs::path& path : inside(folder_of(target), ignored))
    if (writer_in(path.filename().string(), name) > 0) found.push_back(path);
  for (const fs::path& path : found) {
    const pid_t writer = writer_in(path.filename().string(), name);
    if (::kill(writer, 0) == 0 || errno != ESRCH) continue;
    const int fd = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) continue;
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) remove_tree(path);
    ::close(fd);
  }
}

// A rename would replace a device, a pipe or the name of an open stream (such as /dev/stdout) by a file, so such paths
// are refused.
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
  unfinished_mutex().lock();  // The mutex stays locked until the process ends.
  try {
    for (const auto& [path, lock] : unfinished()) {
      if (lock >= 0) ::close(lock);  // There may be no other descriptor left with which to list the folder.
      // The writing thread may create a file or a folder inside while this one lists and removes, hence the retries.
      std::error_code ignored;
      for (int tries = 0; tries < 1000 && fs::exists(fs::symlink_status(path, ignored)); ++tries) remove_tree(path);
    }
  } catch (const std::exception&) {  // There was no memory for a name. What is left is removed by the next writer.
  }
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
  // Without O_NONBLOCK, opening a pipe that has no writer would wait.
  const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
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
  // Only whole pages strictly inside the range are dropped, so the pages of neighbours stay.
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
  const uintptr_t last = (reinterpret_cast<uintptr_t>(begin) + bytes) / page * page;
  if (last > first) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  check_replaceable(path_);
  temporary_ = temporary_name(path_);
  remove_leftovers(path_);
  std::lock_guard lock(unfinished_mutex());
  // A file of this name is left from an earlier process with the same id. It is neither followed nor written into.
  ::unlink(temporary_.c_str());
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
  // fsync is called before check(), whose arguments are evaluated in any order, perhaps errno first.
  const int synced = ::fsync(fd_);
  check(synced == 0, "cannot write {}: {}", path_, std::strerror(errno));
  {
    std::lock_guard lock(unfinished_mutex());
    const int renamed = ::rename(temporary_.c_str(), path_.c_str());
    check(renamed == 0, "cannot write {}: {}", path_, std::strerror(errno));
    forget(temporary_);
    finished().insert(path_);
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
  path_ = temporary_name(target_);
  remove_leftovers(target_);
  std::lock_guard lock(unfinished_mutex());
  remove_tree(path_);
  std::error_code failure;
  fs::create_directory(path_, failure);  // Parent folders are not created, as they would be left behind.
  check(!failure, "cannot create folder {}: {}", target_, failure.message());
  const int fd = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  const int reason = errno;
  if (fd < 0) fs::remove(path_, failure);  // The folder could neither be locked now nor listed later.
  check(fd >= 0, "cannot create folder {}: {}", target_, std::strerror(reason));
  ::flock(fd, LOCK_EX | LOCK_NB);
  unfinished()[path_] = fd;
}

TemporaryFolder::~TemporaryFolder() {
  if (committed_) return;
  std::lock_guard lock(unfinished_mutex());
  // The lock is closed first, as its descriptor may be the only one with which the folder can be listed.
  forget(path_);
  remove_tree(path_);
}

void TemporaryFolder::commit() {
  std::lock_guard lock(unfinished_mutex());
  const int renamed = ::rename(path_.c_str(), target_.c_str());
  check(renamed == 0, "cannot write {}: {}", target_, std::strerror(errno));
  committed_ = true;
  forget(path_);
  finished().insert(target_);
}

std::vector<std::string> finished_outputs() {
  std::lock_guard lock(unfinished_mutex());
  std::vector<std::string> folders, files;
  std::error_code ignored;
  for (const std::string& name : finished()) {
    if (!fs::exists(name, ignored)) continue;
    // A file whose folder was reported as a whole is not reported again.
    const bool told = finished().contains(fs::path(name).parent_path().string());
    if (!told) (fs::is_directory(name, ignored) ? folders : files).push_back(name);
  }
  folders.insert(folders.end(), files.begin(), files.end());
  return folders;
}

namespace {

void list_within(const fs::path& folder, const std::string& prefix, std::vector<std::string>& names) {
  std::error_code failure;
  for (const fs::path& path : inside(folder, failure)) {
    const std::string name = prefix + path.filename().string();
    std::error_code ignored;
    if (fs::symlink_status(path, ignored).type() == fs::file_type::directory) list_within(path, name + "/", names);
    names.push_back(name);  // A folder comes after what it holds.
  }
  check(!failure, "cannot look into {}: {}", folder.string(), failure.message());
}

// Tells whether the program writes a file of this name. Every part of the name is first freed of what makes it
// temporary.
bool is_ours(const std::string& name, const OwnNames& ours) {
  std::string plain;
  for (const fs::path& part : fs::path(name)) plain += (plain.empty() ? "" : "/") + without_temporary(part.string());
  return ours(plain);
}

// Removes a folder in which every file is ours.
void remove_whole(const std::string& folder) {
  const std::string temporary = temporary_name(folder + ".removed");
  {
    std::lock_guard lock(unfinished_mutex());
    remove_tree(temporary);
    const int renamed = ::rename(folder.c_str(), temporary.c_str());
    check(renamed == 0, "cannot remove {}: {}", folder, std::strerror(errno));
    unfinished()[temporary] = -1;
  }
  const std::error_code failure = remove_tree(temporary);
  std::lock_guard lock(unfinished_mutex());
  forget(temporary);
  check(!failure, "cannot remove {}: {}", temporary, failure.message());
}

}  // namespace

std::vector<std::string> foreign_in(const std::string& folder, const OwnNames& ours) {
  std::vector<std::string> names;
  if (fs::is_directory(folder)) list_within(folder, "", names);
  std::erase_if(names, [&](const std::string& name) { return is_ours(name, ours); });
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> remove_ours(const std::string& folder, const OwnNames& ours) {
  remove_leftovers(folder + ".removed");
  if (!fs::is_directory(folder)) return {};
  const std::vector<std::string> foreign = foreign_in(folder, ours);
  if (foreign.empty() && !fs::is_symlink(folder)) {
    remove_whole(folder);
    return {};
  }
  std::vector<std::string> names;
  list_within(folder, "", names);
  for (const std::string& name : names) {
    std::error_code failure;
    const std::string path = folder + "/" + name;
    if (!is_ours(name, ours)) continue;
    fs::remove(path, failure);
    check(!failure || failure == std::errc::directory_not_empty, "cannot remove {}: {}", path, failure.message());
  }
  return foreign;
}

}  // namespace fidelio
