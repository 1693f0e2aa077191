#include <unistd.h>

#include <clocale>
#include <cstdlib>
#include <iostream>
#include <optional>

#ifdef FIDELIO_LIBEDIT
#include <editline/readline.h>
#endif

#include "app/options/answer.h"
#include "app/options/common.h"
#include "app/options/sampling.h"
#include "core/foreign/foreign_text.h"
#include "core/foreign/units.h"

namespace fidelio::app {
namespace {

struct Chat {
  RunOptions run;
  Sampling sampling;
  DraftOptions draft;
  int64_t max_tokens = 1024;
  std::string system;
  bool sanitize = false;
};

constexpr const char* kHelp =
    "/help           this list\n"
    "/system TEXT    a system message, for the conversation that begins with it; without TEXT: none\n"
    "/reset          begin a new conversation\n"
    "/exit           end (so does Ctrl-D)\n"
    "//TEXT          send a message that begins with /\n"
    "Ctrl-C stops an answer; at the prompt it ends the program.\n";

// A line from the user; nothing at the end of input. At a terminal with line editing and a history of this chat.
std::optional<std::string> read_line(bool terminal) {
#ifdef FIDELIO_LIBEDIT
  if (terminal) {
    char* typed = ::readline("> ");
    if (typed == nullptr) return {};
    std::string line = typed;
    if (!line.empty()) ::add_history(typed);
    std::free(typed);
    return line;
  }
#endif
  if (terminal) {
    fmt::print("> ");
    flush_output();
  }
  std::string line;
  if (!std::getline(std::cin, line)) return {};
  if (!line.empty() && line.back() == '\r') line.pop_back();
  return line;
}

RunnerOptions options_for(const Chat& o, const TextModel& model) {
  RunnerOptions options = runner_options(o.run);
  options.high_bits = high_bits_of({&o.draft.draft, 1}, o.run, model.checkpoint.config().v);
  return options;
}

class Conversation {
 public:
  Conversation(const Chat& o, const TextModel& model)
      : o_(o),
        model_(model),
        options_(options_for(o, model)),
        runner_(make_runner(o.run, model.checkpoint, options_)),
        draft_(open_draft(o.draft, *runner_, o.run)),
        engine_(*runner_, engine_options(model, options_.mode, draft_)),
        colours_(::isatty(1) != 0 && ::isatty(0) != 0) {
    begin(o.system);
  }

  // False to end.
  bool take(std::string line) {
    if (line.starts_with("//"))
      line.erase(0, 1);
    else if (line.starts_with("/"))
      return command(line);
    if (!line.empty()) talk(line);
    return true;
  }

 private:
  void begin(const std::string& system) {
    messages_.clear();
    system_ = system;
    if (!system.empty()) messages_.push_back({"system", system});
  }

  bool command(const std::string& line) {
    const std::string name = line.substr(0, line.find(' '));
    const size_t at = line.find_first_not_of(' ', name.size());
    if (name == "/exit" || name == "/quit" || name == "/bye") return false;
    if (name == "/system") {
      begin(at == std::string::npos ? "" : line.substr(at));
      fmt::print("{}; a new conversation begins.\n",
                 system_.empty() ? "No system message" : "The system message is set");
    } else if (name == "/reset" || name == "/clear") {
      begin(system_);
      fmt::print("A new conversation begins.\n");
    } else {
      if (name != "/help") fmt::print("There is no {}.\n", name.substr(0, 40));
      fmt::print("{}", kHelp);
    }
    return true;
  }

  // At a terminal what could not be answered, such as a system message that the model's template refuses, is said, and
  // the conversation goes on without it.
  void talk(const std::string& line) {
    const size_t before = messages_.size();
    try {
      say(line);
    } catch (const Error& error) {
      if (::isatty(0) == 0) throw;
      messages_.resize(before);
      fmt::print("{}\n", foreign(error.what(), Lines::kept, 3000));
    }
  }

  void say(const std::string& line) {
    messages_.push_back({"user", line});
    GenerationRequest request;
    RenderedChat chat = rendered_chat(model_, messages_, o_.sanitize);
    const std::string prompt = std::move(chat.text);
    request.prompt = std::move(chat.ids);
    request.max_tokens = o_.max_tokens;
    request.stop_ids = model_.stop_ids;
    request.sampling = sampling_of(o_.sampling, o_.run.model);
    const auto context = model_.checkpoint.config().max_positions;
    if (static_cast<int64_t>(request.prompt.size()) >= context) {
      const bool alone = messages_.size() == (system_.empty() ? 1u : 2u);
      begin(system_);
      fmt::print("{} has {} tokens and fills the model's context of {}; {}.\n",
                 alone ? "The message" : "The conversation", request.prompt.size(), context,
                 alone ? "it is left out" : "a new one begins with this message");
      return alone ? void() : say(line);
    }
    const size_t last = prompt.find_last_not_of(" \n");
    ThinkingDimmer dimmer(last != std::string::npos && prompt.substr(0, last + 1).ends_with("<think>"));
    const InterruptCatcher catcher;
    const Answer a = answer(
        engine_, std::move(request),
        [&](const std::string& piece) {
          fmt::print("{}", colours_ ? dimmer.push(for_output(piece)) : for_output(piece));
          flush_output();
        },
        &catcher);
    fmt::print("{}\n", colours_ ? dimmer.finish() : "");
    if (colours_)
      fmt::print("\033[2m[{} tokens, {:.1f} tokens/s{}]\033[0m\n", a.ids.size(), a.tokens_per_second(),
                 a.interrupted                              ? ", stopped"
                 : a.finish_reason == FinishReason::length  ? ", cut off at --max-tokens"
                 : a.finish_reason == FinishReason::context ? ", cut off at the end of the context"
                                                            : "");
    messages_.push_back({"assistant", a.text});
  }

  const Chat& o_;
  const TextModel& model_;
  RunnerOptions options_;
  std::unique_ptr<Runner> runner_;
  Draft draft_;
  Engine engine_;
  bool colours_;
  std::string system_;
  std::vector<ChatMessage> messages_;
};

void chat(const Chat& o) {
  const bool terminal = ::isatty(0) != 0;
  const TextModel model = open_model(o.run.model);
  check(model.chat.has_value(), "{} has no chat template ({}); `fidelio generate` continues bare text", o.run.model,
        chat_template_places(model.checkpoint.texts()));
  Conversation conversation(o, model);
  if (terminal) {
    std::setlocale(LC_CTYPE, "");  // so that line editing counts letters, not bytes
    fmt::print("{}, {}. /help lists the commands, Ctrl-C stops an answer, Ctrl-D ends.\n", folder_name(o.run.model),
               bytes_text(model.checkpoint.file_bytes()));
  }
  while (const auto line = read_line(terminal))
    if (!conversation.take(*line)) return;
  if (terminal) fmt::print("\n");  // the shell's prompt gets a line of its own
}

}  // namespace

void add_chat(CLI::App& app) {
  auto o = std::make_shared<Chat>();
  CLI::App* verb = app.add_subcommand("chat", "Talk to a model; one message a line, /help lists what else there is");
  verb->footer("Example:\n  fidelio chat models/quill-26m --recommended");
  add_model(*verb, o->run);
  verb->add_option("-n,--max-tokens", o->max_tokens, "Longest answer in tokens")->check(above_zero());
  verb->add_option("--system", o->system, "A system message");
  add_sanitize(*verb, o->sanitize);
  add_sampling(*verb, o->sampling);
  add_draft(*verb, o->draft);
  add_run_options(*verb, o->run);
  verb->callback([o] { chat(*o); });
}

}  // namespace fidelio::app
