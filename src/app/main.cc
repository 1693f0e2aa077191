// fidelio: makes open-weight language models smaller and faster and proves how little they changed.
#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <new>
#include <thread>

#include "app/common.h"
#include "core/file.h"

namespace {

// SIGINT and SIGTERM are blocked in every thread and waited for in this one, where any function may be called: files being
// written are removed and the process ends.
void end_cleanly_on_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals] {
    int signal = 0;
    sigwait(&signals, &signal);
    fidelio::remove_unfinished_files();
    _exit(128 + signal);
  }).detach();
  ::signal(SIGPIPE, SIG_IGN);
}

int run(int argc, char** argv) {
  CLI::App app{"fidelio makes open-weight language models smaller and faster and proves how little they changed.", "fidelio"};
  app.set_version_flag("--version", FIDELIO_VERSION);
  app.require_subcommand(1);
  using namespace fidelio::app;
  for (auto add : {add_inspect, add_compress, add_certify, add_quantize, add_eval, add_generate, add_chat, add_bench, add_synth, add_tokenize, add_logits}) add(app);
  try {
    app.parse(argc, argv);  // runs the verb
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  end_cleanly_on_signals();
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "fidelio: out of memory\n");
  } catch (const std::exception& error) {
    fmt::print(stderr, "fidelio: {}\n", error.what());
  }
  return 1;
}
