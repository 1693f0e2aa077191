// fidelio: makes open-weight language models smaller and faster and proves how little they changed.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <new>
#include <thread>

#include "app/common.h"
#include "core/file.h"
#include "core/foreign_text.h"

namespace {

int signal_pipe[2];

void pass_on(int signal) {
  const int before = errno;
  const auto number = static_cast<unsigned char>(signal);
  [[maybe_unused]] const ssize_t written = ::write(signal_pipe[1], &number, 1);
  errno = before;
}

// SIGINT, SIGTERM and SIGHUP: files being written are removed and the process ends with 128 + signal. A handler may do next to nothing, so it
// wakes a thread that may call anything. (Blocking the signals and waiting for them there does not do: OpenBLAS starts
// threads before main(), and those would still take the signal and die of it.) A signal ignored from the start, as by
// nohup, stays ignored.
void end_cleanly_on_signals() {
  fidelio::check(::pipe2(signal_pipe, O_CLOEXEC) == 0, "cannot make a pipe");
  std::thread([] {
    unsigned char number = 0;
    while (::read(signal_pipe[0], &number, 1) != 1) {
    }
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

int run(int argc, char** argv) {
  CLI::App app{"fidelio makes open-weight language models smaller and faster and proves how little they changed.",
               "fidelio"};
  app.set_version_flag("--version", FIDELIO_VERSION);
  app.require_subcommand(0,
                         1);  // none is refused below: CLI11 would speak of a missing one where an unknown one is given
  using namespace fidelio::app;
  for (auto add :
       {add_inspect, add_compress, add_certify, add_quantize, add_export, add_eval, add_recovery, add_compare,
        add_noise, add_gamma, add_generate, add_chat, add_bench, add_synth, add_tokenize, add_logits})
    add(app);
  try {
    app.parse(argc, argv);  // runs the verb
    if (app.get_subcommands().empty()) throw CLI::RequiredError("A verb");
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    end_cleanly_on_signals();
    spdlog::set_default_logger(spdlog::stderr_logger_mt("fidelio"));  // standard output belongs to results
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "fidelio: out of memory\n");
  } catch (const std::exception& error) {
    fmt::print(stderr, "fidelio: {}\n", fidelio::foreign(error.what(), fidelio::Lines::kept, 3000));
  }
  return 1;
}
