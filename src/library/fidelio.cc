#include "library/fidelio.h"

#include <unistd.h>

#include <cstdlib>
#include <new>

#include "app/options/suggest.h"
#include "core/foreign/foreign_text.h"
#include "library/notes.h"
#include "library/open_model.h"

using fidelio::library::OpenModel;
using fidelio::library::PulledAnswer;

// These are the types that the header names only. Locks of a parent process may be held for ever in its child, so the
// process is compared before anything else is touched.
struct fidelio_model {
  pid_t process = ::getpid();
  std::shared_ptr<OpenModel> open;
};
struct fidelio_answer {
  pid_t process = ::getpid();
  std::shared_ptr<OpenModel> open;
  std::shared_ptr<PulledAnswer> pulled;
  std::string piece{};
};

namespace fidelio::library {
namespace {

constexpr size_t kLongestMessage = 3000;

thread_local std::string message, noted;

fidelio_result failed(fidelio_result result, std::string_view words) {
  message = foreign(words, Lines::kept, kLongestMessage);
  return result;
}

fidelio_result forked() {
  return failed(FIDELIO_FORKED,
                "the model was opened before this process was forked, and its threads stayed behind; open it here");
}

// Runs f, and turns what it throws into a result and a message.
template <typename F>
fidelio_result guarded(F&& f) noexcept {
  try {
    return f();
  } catch (const Closed& error) {
    return failed(FIDELIO_CLOSED, error.what());
  } catch (const Error& error) {
    return failed(FIDELIO_REFUSED, error.what());
  } catch (const std::bad_alloc&) {
    return failed(FIDELIO_NO_MEMORY, "out of memory");
  } catch (const std::exception& error) {
    return failed(FIDELIO_FAULT, error.what());
  } catch (...) {
    return failed(FIDELIO_FAULT, "an exception without words");
  }
}

// Reads the words as the command line does.
app::ServedOptions options_of(int count, const char* const* words) {
  app::ServedOptions options;
  CLI::App app{"", "fidelio"};
  CLI::App* model = app.add_subcommand("Model");
  app::add_model(*model, options.run);
  model->add_option("--name", options.name);
  app::add_served(*model, options);
  std::vector<std::string> reversed(words, words + count);  // CLI11 takes words from the end.
  std::reverse(reversed.begin(), reversed.end());
  reversed.push_back("Model");
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::ExtrasError&) {
    throw Error("{}", app::about_unknown_option(app, app.remaining(true)));
  } catch (const CLI::RequiredError& error) {
    throw Error("{}", app::about_missing(app, error.what()));
  } catch (const CLI::ParseError& error) {
    throw Error("{}", error.what());
  }
  return options;
}

}  // namespace
}  // namespace fidelio::library

using namespace fidelio::library;

const char* fidelio_version(void) { return FIDELIO_VERSION; }

const char* fidelio_message(void) { return message.c_str(); }

const char* fidelio_notes(void) {
  guarded([] { return noted = take_notes(), FIDELIO_OK; });
  return noted.c_str();
}

fidelio_result fidelio_open(int count, const char* const* words, fidelio_model** model) {
  *model = nullptr;
  return guarded([&] {
    collect_notes();
    auto made = std::make_unique<fidelio_model>();
    made->open = std::make_shared<OpenModel>(options_of(count, words));
    *model = made.release();
    return FIDELIO_OK;
  });
}

fidelio_result fidelio_about(fidelio_model* model, const char** text) {
  *text = model->open->about().c_str();
  return FIDELIO_OK;
}

fidelio_result fidelio_ask(fidelio_model* model, const char* method, const char* path, const char* body,
                           size_t body_bytes, fidelio_answer** answer) {
  *answer = nullptr;
  if (model->process != ::getpid()) return forked();
  return guarded([&] {
    auto made = std::make_unique<fidelio_answer>();
    made->open = model->open;
    made->pulled = model->open->ask(method, path, std::string(body, body_bytes));
    *answer = made.release();
    return FIDELIO_OK;
  });
}

fidelio_result fidelio_next(fidelio_answer* answer, int milliseconds, const char** piece, size_t* bytes) {
  if (answer->process != ::getpid()) return forked();
  return guarded([&] {
    switch (answer->pulled->next(std::chrono::milliseconds(milliseconds), answer->piece)) {
      case PulledAnswer::Next::nothing_yet:
        return FIDELIO_WAIT;
      case PulledAnswer::Next::over:
        return FIDELIO_END;
      case PulledAnswer::Next::closed:
        throw Closed();
      case PulledAnswer::Next::piece:
        break;
    }
    *piece = answer->piece.data();
    *bytes = answer->piece.size();
    return FIDELIO_OK;
  });
}

int fidelio_status(const fidelio_answer* answer) {
  return answer->process == ::getpid() ? answer->pulled->status() : 0;
}

// In a child process nothing can be freed that has threads or locks.
void fidelio_drop(fidelio_answer* answer) {
  if (answer == nullptr || answer->process != ::getpid()) return;
  guarded([&] { return answer->open->drop(answer->pulled), FIDELIO_OK; });
  delete answer;
}

fidelio_result fidelio_logits(fidelio_model* model, const int32_t* ids, int64_t count, float** logits,
                              int64_t* vocabulary) {
  *logits = nullptr;
  if (model->process != ::getpid()) return forked();
  std::unique_ptr<float, decltype(&std::free)> values(nullptr, &std::free);
  const fidelio_result result = guarded([&] {
    *vocabulary = model->open->logits({ids, static_cast<size_t>(std::max<int64_t>(0, count))}, [&](int64_t number) {
      values.reset(static_cast<float*>(std::malloc(static_cast<size_t>(number) * sizeof(float))));
      if (values == nullptr) throw std::bad_alloc();
      return values.get();
    });
    return FIDELIO_OK;
  });
  if (result == FIDELIO_OK) *logits = values.release();
  return result;
}

void fidelio_release(float* logits) { std::free(logits); }

fidelio_result fidelio_close(fidelio_model* model) {
  if (model->process != ::getpid()) return forked();
  return guarded([&] { return model->open->close(), FIDELIO_OK; });
}

void fidelio_free(fidelio_model* model) {
  if (model == nullptr || model->process != ::getpid()) return;
  guarded([&] { return model->open->close(), FIDELIO_OK; });
  delete model;
}
