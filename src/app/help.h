// app: --help and --help-all. The options of a verb stand in groups. `--help` shows the options that most people need, of a
// verb that has many, and `--help-all` shows every one.
#pragma once
#include <CLI/CLI.hpp>

namespace fidelio::app {

// Before verbs are added: they inherit the form of the help and the flag --help-all.
void begin_help(CLI::App& app);
// After all verbs are there with their options: puts options into groups and says what each verb's MODEL is.
void arrange_help(CLI::App& app);
// The help of `fidelio help VERB ...`, of which `words` stand behind `help`; "" where one of them is no verb.
std::string help_of(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace fidelio::app
