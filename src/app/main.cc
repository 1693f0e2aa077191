// This file is the program fidelio, which makes open-weight language models smaller and faster and proves how little
// they changed.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <new>
#include <set>
#include <system_error>
#include <thread>

#include "app/about.h"
#include "app/chat/line_editor.h"
#include "app/drafts/draft_verb.h"
#include "app/help.h"
#include "app/options/common.h"
#include "app/options/interrupt.h"
#include "app/options/suggest.h"
#include "app/verbs/serve.h"
#include "app/verbs/tune.h"
#include "core/file.h"
#include "core/foreign/foreign_text.h"
#include "core/own_files.h"
#include "core/progress.h"
#include "core/standard_error.h"

namespace {

int signal_pipe[2];

void pass_on(int signal) {
  const int before = errno;
  const auto number = static_cast<unsigned char>(signal);
  [[maybe_unused]] const ssize_t written = ::write(signal_pipe[1], &number, 1);
  errno = before;
}

// Opens a closed standard stream to nothing. Otherwise the first file or pipe that is opened would get its number, and
// printed text would go there. The stream cannot be written either, so results that nobody can receive are an error, as
// on a full disk.
void hold_standard_streams() {
  for (int stream : {0, 1, 2})
    if (::fcntl(stream, F_GETFD) < 0 && ::open("/dev/null", O_RDONLY) != stream) ::_exit(1);
}

// On SIGINT, SIGTERM and SIGHUP, files being written are removed and the process ends with 128 + signal. A handler may
// do almost nothing, so it wakes a thread that may call anything. (Blocking the signals and waiting for them in that
// thread does not work: a library may start threads of its own before main(), and those would still take the signal and
// die of it.) A signal that was ignored from the start, as by nohup, stays ignored.
void end_cleanly_on_signals() {
  fidelio::check(::pipe2(signal_pipe, O_CLOEXEC) == 0, "cannot make a pipe");
  std::thread([] {
    unsigned char number = 0;
    do {
      while (::read(signal_pipe[0], &number, 1) != 1) {
      }
    } while (fidelio::app::signal_was_caught(number));
    fidelio::app::leave_terminal_as_it_was();
    const std::string words = fidelio::words_on_interrupt();
    if (!words.empty()) fidelio::print_error("\n" + words + "\n");
    fidelio::remove_unfinished_files();
    ::_exit(128 + number);
  }).detach();
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action = {};
    ::sigaction(signal, nullptr, &action);
    if (action.sa_handler == SIG_IGN) continue;
    action.sa_handler = pass_on;
    action.sa_flags = SA_RESTART;
    ::sigaction(signal, &action, nullptr);
  }
  // A closed pipe and a file beyond the shell's limit are errors of write(), reported like any other.
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
}

using namespace fidelio::app;

// Prints the log messages of all rooms as lines on standard error, since standard output belongs to results. A line
// that was printed already, for example about a model that is opened twice, is not repeated, unless it is an error.
class PlainLines final : public spdlog::sinks::base_sink<std::mutex> {
  void sink_it_(const spdlog::details::log_msg& message) override {
    const std::string text = fmt::format("{}{}\n", message.level >= spdlog::level::warn ? "Warning: " : "",
                                         std::string_view(message.payload.data(), message.payload.size()));
    if (printed_.insert(text).second || message.level >= spdlog::level::err)
      fidelio::print_beside_progress(text, stderr);
  }
  void flush_() override {}
  std::set<std::string> printed_;
};

void log_plainly() {
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("fidelio", std::make_shared<PlainLines>()));
}

// Adds --progress to verbs that may take long.
void add_progress(CLI::App& app) {
  for (CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    const std::string name = verb->get_name();
    if (name == "inspect" || name == "generate" || name == "chat" || name == "tokenize" || name == "logits" ||
        name == "gamma" || name == "bench" || name == "serve")
      continue;
    verb->add_option_function<std::string>(
            "--progress",
            [](const std::string& mode) {
              fidelio::set_progress_mode(mode == "plain"  ? fidelio::ProgressMode::plain
                                         : mode == "json" ? fidelio::ProgressMode::json
                                         : mode == "none" ? fidelio::ProgressMode::none
                                                          : fidelio::ProgressMode::automatic);
            },
            "On standard error: auto (a bar on a terminal, else plain), plain, json (a line each second), none")
        ->check(CLI::IsMember({"auto", "plain", "json", "none"}));
  }
}

// CLI11 turns a whole number beyond 64 bits into the nearest 64-bit number, and a negative one into a very large one
// where only positive ones are allowed (--seed -1). These are reported instead.
std::string about_whole_number(const std::string& text, bool below_zero) {
  char* end = nullptr;
  errno = 0;
  if (below_zero)
    std::strtoll(text.c_str(), &end, 0);
  else
    std::strtoull(text.c_str(), &end, 0);
  const bool whole = !text.empty() && *end == '\0' && (below_zero || text[0] != '-');
  if (!whole) return fmt::format("\"{}\" is not a whole number{}", text, below_zero ? "" : " from 0");
  return errno == ERANGE ? fmt::format("{} does not fit in 64 bits", text) : "";
}

void check_whole_numbers(CLI::App& app) {
  for (CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    check_whole_numbers(*verb);
    for (CLI::Option* option : verb->get_options()) {
      const std::string type = option->get_type_name().substr(0, option->get_type_name().find(':'));
      if (type != "INT" && type != "UINT") continue;
      option->check(
          CLI::Validator([type](const std::string& text) { return about_whole_number(text, type == "INT"); }, ""));
    }
  }
}

// Returns the default of an option, for --help. Returns "" where that is nothing, or a number that the option itself
// would not accept and that stands for "not given".
std::string default_of(CLI::Option& option) {
  std::string value = option.capture_default_str()->get_default_str();
  option.default_str("");  // CLI11 would print it between the type and the range.
  if (value.starts_with('[')) value = value.substr(1, value.size() - 2);
  const bool zero_is_said = option.get_description().find('0') != std::string::npos ||
                            option.get_type_name().find("NONNEGATIVE") != std::string::npos;
  return value.starts_with('-') || (value == "0" && !zero_is_said) ? "" : value;
}

// Adds the default of every option to its text in --help, unless the text says it already.
void say_defaults(CLI::App& app) {
  for (CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    say_defaults(*verb);
    for (CLI::Option* option : verb->get_options()) {
      const std::string value = default_of(*option), words = option->get_description();
      if (!value.empty() && !option->get_required() && words.find("default") == std::string::npos)
        option->description(fmt::format("{} (default: {})", words, value));
    }
  }
}

// The verbs come in the order in which a new user meets them. `--help` shows them in this order, and tools/fidelio.bash
// reads them from there.
void add_verbs(CLI::App& app) {
  struct Verbs {
    const char* about;
    std::vector<void (*)(CLI::App&)> add;
  };
  const std::vector<Verbs> all = {
      {"Make a smaller model", {add_compress, add_certify, add_quantize, add_tune, add_draft_verb, add_export}},
      {"Use one", {add_chat, add_generate, add_serve}},
      {"Measure", {add_eval, add_recovery, add_compare, add_noise, add_gamma, add_bench}},
      {"Look at a model, and make what others read", {add_inspect, add_tokenize, add_logits, add_samples, add_synth}}};
  for (const Verbs& verbs : all)
    for (auto add : verbs.add) {
      add(app);
      app.get_subcommands([](const CLI::App*) { return true; }).back()->group(verbs.about);
    }
  app.footer(
      "Examples:\n"
      "  fidelio compress MODEL --ear 0.98 -o OUT  makes the smallest model whose next-token probabilities overlap\n"
      "                                            the original's by 98% on average, and certifies that\n"
      "  fidelio chat OUT                          lets you talk to it\n"
      "  fidelio help VERB                         shows the options that matter most, with examples\n"
      "  fidelio VERB --help-all                   shows every option");
}

std::vector<std::string> verbs_of(const CLI::App& app) {
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; }))
    verbs.push_back(verb->get_name());
  return verbs;
}

int refuse(const std::string& message) {
  fidelio::print_error(message + "\nRun with --help for more information.\n");
  return 2;
}

// CLI11 would say that all arguments were unexpected, in reverse order.
std::string about_unknown_verb(const CLI::App& app, const std::string& word) {
  const std::string verb = verb_for(word, verbs_of(app));
  return fmt::format("There is no verb \"{}\"{}", word,
                     verb.empty() ? fmt::format("; there are {}", fmt::join(verbs_of(app), ", "))
                                  : fmt::format("; did you mean {}?", verb));
}

// Checks a verb that has verbs of its own (`bench`) and was given none of them or an unknown word. Returns "" if all is
// well.
std::string about_part(const CLI::App& verb, int argc, char** argv) {
  const std::vector<std::string> parts = verbs_of(verb);
  if (parts.empty() ||
      (argc > 2 && (argv[2][0] == '-' || std::find(parts.begin(), parts.end(), argv[2]) != parts.end())))
    return "";
  const std::string all = fmt::format("{}", fmt::join(parts, ", "));
  if (argc == 2) return fmt::format("{} needs one of {}", verb.get_name(), all);
  const std::string near = nearest_word(argv[2], parts);
  return fmt::format("There is no {} {}; {}", verb.get_name(), argv[2],
                     near.empty() ? "there are " + all : fmt::format("did you mean {}?", near));
}

// Handles `fidelio help compress`, and `fidelio` alone, which does nothing and therefore fails.
int show_help(const CLI::App& app, const std::vector<std::string>& words) {
  const std::string text = help_of(app, words);
  if (text.empty() && words.size() > 1)
    return refuse(fmt::format("There is no verb \"{}\"; `fidelio help {}` lists what there is", fmt::join(words, " "),
                              words.front()));
  if (text.empty()) return refuse(about_unknown_verb(app, words.front()));
  fmt::print("{}", text);
  return 0;
}

int run(int argc, char** argv) {
  CLI::App app{"fidelio makes open-weight language models smaller and faster and proves how little they changed.",
               "fidelio"};
  begin_help(app);
  app.set_version_flag("--version", version_text(), "What this program is: version, commit, kernels");
  app.require_subcommand(0, 1);  // A missing verb is refused below, with the list of verbs.
  add_verbs(app);
  add_progress(app);
  check_whole_numbers(app);
  say_defaults(app);
  arrange_help(app);
  remember_command(argc, argv);
  if (argc == 1) return show_help(app, {}), refuse("A verb is required");
  if (argv[1] == std::string("help")) return show_help(app, {argv + 2, argv + argc});
  const std::vector<std::string> verbs = verbs_of(app);
  if (argc > 1 && argv[1][0] != '-' && std::find(verbs.begin(), verbs.end(), argv[1]) == verbs.end())
    return refuse(about_unknown_verb(app, argv[1]));
  if (argc > 1 && argv[1][0] != '-')
    if (const std::string wrong = about_part(*app.get_subcommand(argv[1]), argc, argv); !wrong.empty())
      return refuse(wrong);
  try {
    app.parse(argc, argv);  // This runs the verb.
    if (app.get_subcommands().empty()) return show_help(app, {}), refuse("A verb is required");
  } catch (const CLI::ExtrasError&) {
    return refuse(about_unknown_option(app, app.remaining(true)));
  } catch (const CLI::RequiredError& error) {
    return refuse(about_missing(app, error.what()));
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return 0;
}

// Results that were printed and could not be written are an error of every verb. Finished outputs stay and are named,
// so nobody makes them again. If the reader has left (`| head`), nothing else is reported.
int about_lost_output(bool nobody_reads) {
  const std::vector<std::string> made = fidelio::finished_outputs();
  std::string there;
  if (!made.empty()) there = "; made all the same, and whole: " + made.front();
  if (made.size() > 1) there += fmt::format(" and {} more", made.size() - 1);
  if (!nobody_reads || !made.empty())
    fidelio::print_error(fmt::format("fidelio: cannot write to standard output{}\n", there));
  return nobody_reads ? 128 + SIGPIPE : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    hold_standard_streams();
    end_cleanly_on_signals();
    log_plainly();
    const int code = run(argc, argv);
    flush_output();
    return code;
  } catch (const std::bad_alloc&) {
    fidelio::print_error("fidelio: out of memory\n");
  } catch (const std::filesystem::filesystem_error& error) {
    fidelio::print_error(fmt::format("fidelio: cannot use {}: {}\n",
                                     fidelio::foreign(error.path1().string(), fidelio::Lines::escaped, 120),
                                     error.code().message()));
  } catch (const std::system_error& error) {
    const bool nobody_reads = error.code() == std::errc::broken_pipe;
    if (nobody_reads || std::ferror(stdout) != 0) return about_lost_output(nobody_reads);
    fidelio::print_error(fmt::format("fidelio: {}\n", error.what()));
  } catch (const std::exception& error) {
    fidelio::print_error(fmt::format("fidelio: {}\n", fidelio::foreign(error.what(), fidelio::Lines::kept, 3000)));
  }
  return 1;
}
