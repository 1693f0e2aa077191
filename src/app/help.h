// This file arranges --help and --help-all. The options of a verb stand in groups. For a verb with many options,
// `--help` shows those that most people need, and `--help-all` shows every one.
#pragma once
#include <CLI/CLI.hpp>

namespace fidelio::app {

// Prepares the form of the help and the flag --help-all, which verbs inherit, so it must be called before verbs are
// added.
void begin_help(CLI::App& app);
// Puts options into groups and says what each verb's MODEL is. It must be called after all verbs and options are added.
void arrange_help(CLI::App& app);
// Returns the help of `fidelio help VERB ...`, where `words` are the words after `help`. Returns "" where one of them
// is no verb.
std::string help_of(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace fidelio::app
