#include "app/about.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>

#include "app/commit.h"
#include "kernels/cpu/linear/linear.h"

namespace fidelio::app {
namespace {

std::string command, published;

// In quotes where a shell would read it otherwise.
std::string quoted(const std::string& word) {
  const std::string plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+./,:@%";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
  std::string out = "'";
  for (char c : word) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

// The way to a file or folder is that of one machine: of a path that begins at its root, or at somebody's home, the last part.
std::string without_way(const std::string& word) {
  const size_t begin = word.starts_with("-") ? word.find('=') + 1 : 0;  // --text=/home/me/a.txt
  if (begin >= word.size() || (word[begin] != '/' && word[begin] != '~')) return word;
  const size_t end = word.find_last_not_of('/');
  const size_t last = end == std::string::npos ? end : word.rfind('/', end);
  return last == std::string::npos ? word : word.substr(0, begin) + word.substr(last + 1);
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
  command = published = "fidelio";
  for (int i = 1; i < argc; ++i) {
    command += " " + quoted(argv[i]);
    published += " " + quoted(without_way(argv[i]));
  }
}

std::string command_text() { return command; }

std::string published_command() { return published; }

std::string made_by() {
  const std::time_t now = std::time(nullptr);
  return fmt::format("{}; {:%Y-%m-%d %H:%M} UTC; {}", version_text(), *std::gmtime(&now), command);
}

}  // namespace fidelio::app
