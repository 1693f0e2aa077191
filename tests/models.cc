// This file has the functions of tests/models.h: folders for tests, copies of models, and commands run in a shell.
#include "models.h"

#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

extern char** environ;

namespace fidelio {
namespace fs = std::filesystem;

TestFolder::TestFolder() {
  std::string name = (fs::temp_directory_path() / "fidelio-laws-XXXXXX").string();
  check(::mkdtemp(name.data()) != nullptr, "cannot make a folder like {}", name);
  path_ = name;
}

TestFolder::~TestFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void copy_model(const std::string& from, const std::string& to) {
  fs::create_directories(to);
  for (const auto& entry : fs::directory_iterator(from)) {
    const fs::path copy = to / entry.path().filename();
    if (entry.is_directory()) {
      copy_model(entry.path(), copy);
      continue;
    }
    fs::copy_file(entry.path(), copy);
    fs::permissions(copy, fs::perms::owner_write, fs::perm_options::add);
  }
}

std::vector<std::string> entries(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    names.push_back(entry.path().lexically_relative(folder));
  std::sort(names.begin(), names.end());
  return names;
}

CommandResult run_command(const std::string& folder, const std::string& command) {
  const TestFolder outputs;  // It is outside `folder`, in which tests search for leftovers.
  const std::string script = fmt::format("cd '{}' || exit 99\nfidelio() {{ '{}' \"$@\"; }}\n{{ {}\n}} >'{}' 2>'{}'",
                                         folder, FIDELIO_PROGRAM, command, outputs / "out", outputs / "err");
  std::string shell = "/bin/sh", flag = "-c", text = script;
  char* arguments[] = {shell.data(), flag.data(), text.data(), nullptr};
  pid_t child = 0;
  check(::posix_spawn(&child, shell.c_str(), nullptr, nullptr, arguments, environ) == 0, "cannot start {}", shell);
  int status = 0;
  check(::waitpid(child, &status, 0) == child, "lost the child {}", child);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_text_file(outputs / "out"),
          read_text_file(outputs / "err")};
}

}  // namespace fidelio
