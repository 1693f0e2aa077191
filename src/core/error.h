// core: what every room stands on. Nothing in this folder knows what a language model is.
//
// Error is the one exception type. It is thrown on cold paths only (files, options, configuration, device set-up) and
// its message names the thing, what was expected, what was found and, where there is one, the remedy. It ends in one of
// three places: the command line's main, the server's threads (an answer with a status) or `chat`, which goes on. What
// catches it before either throws it on with the place put before it, or has another way to go. Programmer errors are
// `assert`s; user input never reaches one.
#pragma once
#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace fidelio {

class Error : public std::runtime_error {
 public:
  template <typename... Args>
  explicit Error(fmt::format_string<Args...> format, Args&&... args)
      : std::runtime_error(fmt::format(format, std::forward<Args>(args)...)) {}
};

// Throws Error unless `condition` holds. The arguments are evaluated either way: keep them cheap.
template <typename... Args>
void check(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]]
    throw Error(format, std::forward<Args>(args)...);
}

}  // namespace fidelio
