// This file defines Error, the one exception type of the program, and check(), which throws it. Everything else stands
// on this folder (core), and nothing in it knows what a language model is.
//
// Error is thrown on cold paths only (files, options, configuration, set-up of devices). Its message names the thing,
// what was expected, what was found and, where there is one, the remedy. An Error ends in one of three places: the main
// function of the command line, the threads of the server (which answer with an HTTP status) or the verb `chat`, which
// continues. Code that catches an Error earlier either throws it again with the place put before its message, or has
// another way to continue. Errors of the programmer are `assert`s, and input of a user never reaches one.
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

// Throws Error unless `condition` holds. The arguments are evaluated either way, so they must be cheap.
template <typename... Args>
void check(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]]
    throw Error(format, std::forward<Args>(args)...);
}

}  // namespace fidelio
