#include "app/about.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>

#include "app/commit.h"
#include "kernels/cpu/linear/linear.h"

namespace fidelio::app {
namespace {

std::string command;

// Puts a word in quotes where a shell would read it otherwise.
std::string quoted(const std::string& word) {
  const std::string plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+./,:@%";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
  std::string out = "'";
  for (char c : word) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

// Removes the folders of a path, which are private and mean nothing elsewhere: "--text=/home/me/a.txt" becomes
// "--text=a.txt".
std::string without_folders(std::string word) {
  while (word.size() > 1 && word.ends_with('/')) word.pop_back();
  const size_t value = word.starts_with("-") ? word.find('=') : std::string::npos;
  const size_t begin = value == std::string::npos ? 0 : value + 1, slash = word.rfind('/');
  return slash == std::string::npos || slash < begin ? word : word.substr(0, begin) + word.substr(slash + 1);
}

}  // namespace

std::string version_text() {
  const auto isas = cpu::supported_isas();
  std::string best = "portable";
  for (cpu::Isa isa : isas) best = cpu::name_of(isa);
#ifdef FIDELIO_CUDA
  const char* cuda = "with CUDA";
#else
  const char* cuda = "without CUDA";
#endif
  return fmt::format("fidelio {}, commit {}, cpu {}, {}", FIDELIO_VERSION, FIDELIO_COMMIT, best, cuda);
}

void remember_command(int argc, char** argv) {
  command = "fidelio";
  for (int i = 1; i < argc; ++i) command += " " + quoted(without_folders(argv[i]));
}

std::string command_text() { return command; }

std::string made_by() {
  const std::time_t now = std::time(nullptr);
  return fmt::format("{}; {:%Y-%m-%d %H:%M} UTC; {}", version_text(), *std::gmtime(&now), command);
}

}  // namespace fidelio::app
