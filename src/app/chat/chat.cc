// This file is the verb `chat`, a conversation with a model at a terminal or over pipes.
#include <unistd.h>

#include <charconv>
#include <iostream>
#include <map>
#include <optional>

#include "app/chat/line_editor.h"
#include "app/options/answer.h"
#include "app/options/common.h"
#include "app/options/sampling.h"
#include "app/options/served.h"
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
  bool no_history = false, sanitize = false;
};

constexpr const char* kHelp =
    "/help            this list\n"
    "/regen           answer the last message again, otherwise if tokens are sampled\n"
    "/set NAME VALUE  temperature, top-k, top-p, min-p, repetition-penalty, seed or max-tokens; /set alone shows them\n"
    "/system TEXT     a system message, for the conversation that begins with it; without TEXT: none\n"
    "/reset           begin a new conversation\n"
    "/exit            end (so does Ctrl-D)\n"
    "//TEXT           send a message that begins with /\n"
    "A message of several lines: paste it, end each line but the last with \\, or write it between two \"\"\".\n"
    "Ctrl-C stops an answer; at the prompt, pressed twice, it ends the chat.\n";

// This puts lines from a terminal or a pipe together to messages.
class Messages {
 public:
  explicit Messages(const std::string& history) {
    if (::isatty(0) == 0) return;
    catcher_.emplace();
    editor_.emplace(history);
  }
  // Returns the next message, or nothing at the end of the input.
  std::optional<std::string> next() {
    for (bool warned = false;;) {
      std::optional<std::string> message = whole();
      if (message) return message;
      if (ended_ || warned) return {};
      fmt::print("Ctrl-C once more ends the chat; so does Ctrl-D.\n");
      warned = true;
    }
  }
  // Returns the object that notes Ctrl-C for the chat. It is null where the input is no terminal.
  InterruptCatcher* catcher() { return catcher_ ? &*catcher_ : nullptr; }

 private:
  static constexpr std::string_view kQuotes = "\"\"\"";

  // Returns a message of one line, or of several that \ or quotes hold together. Returns nothing if the input ended
  // before it or Ctrl-C was pressed in it.
  std::optional<std::string> whole() {
    std::optional<std::string> text = line("> ");
    if (!text) return {};
    if (text->starts_with(kQuotes)) {
      text->erase(0, kQuotes.size());
      while (!text->ends_with(kQuotes)) {
        const std::optional<std::string> more = line(". ");
        if (!more && !ended_) return {};
        if (!more) return text;  // An unclosed message ends with the input.
        *text += (text->empty() ? "" : "\n") + *more;
      }
      text->resize(text->size() - kQuotes.size());
      if (text->ends_with('\n')) text->pop_back();
      return text;
    }
    while (text->ends_with('\\')) {
      text->pop_back();
      const std::optional<std::string> more = line(". ");
      if (!more && !ended_) return {};
      if (!more) return text;
      *text += "\n" + *more;
    }
    return text;
  }

  std::optional<std::string> line(const std::string& prompt) {
    if (editor_) {
      Typed typed = editor_->read(prompt, *catcher_);
      ended_ = typed.end == Typed::End::input_ended;
      return typed.end == Typed::End::line ? std::optional(std::move(typed.text)) : std::nullopt;
    }
    std::string text;
    ended_ = !std::getline(std::cin, text);
    if (ended_) return {};
    if (text.ends_with('\r')) text.pop_back();
    return text;
  }

  std::optional<InterruptCatcher> catcher_;
  std::optional<LineEditor> editor_;
  bool ended_ = false;
};

RunnerOptions options_for(const Chat& o, const TextModel& model) {
  RunnerOptions options = runner_options(o.run);
  prepare_for_drafts(options, {&o.draft.draft, 1}, o.run, model.checkpoint.config().v);
  return options;
}

class Conversation {
 public:
  // `catcher` stops an answer; null stops nothing.
  Conversation(const Chat& o, const TextModel& model, InterruptCatcher* catcher)
      : o_(o),
        model_(model),
        catcher_(catcher),
        sampling_(sampling_of(o.sampling, o.run.model)),
        max_tokens_(o.max_tokens),
        options_(options_for(o, model)),
        runner_(make_runner(o.run, model.checkpoint, options_)),
        draft_(open_draft(o.draft, *runner_, o.run)),
        engine_(*runner_, engine_options(model, options_.mode, draft_)),
        colours_(::isatty(1) != 0 && ::isatty(0) != 0) {
    begin(o.system);
  }

  // Returns false to end the chat.
  bool take(std::string line) {
    const bool one_line = line.find('\n') == std::string::npos;  // Pasted text may begin with a path.
    if (line.starts_with("//") && one_line)
      line.erase(0, 1);
    else if (line.starts_with("/") && one_line)
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
    } else if (name == "/regen") {
      again();
    } else if (name == "/set") {
      set(at == std::string::npos ? "" : line.substr(at));
    } else {
      if (name != "/help") fmt::print("There is no {}.\n", name.substr(0, 40));
      fmt::print("{}", kHelp);
    }
    return true;
  }

  // Answers the last message again. Sampling would choose the same tokens from the same seed.
  void again() {
    if (messages_.size() < 2 || messages_.back().role != "assistant")
      return fmt::print("There is no answer to give again.\n"), void();
    messages_.pop_back();
    const std::string message = messages_.back().content;
    messages_.pop_back();
    ++sampling_.seed;
    if (sampling_.temperature <= 0)
      fmt::print("The answer will be the same, as the likeliest token is chosen each time: /set temperature 0.7\n");
    talk(message);
  }

  // Handles "top-p 0.9"; "" shows the present settings.
  void set(const std::string& words) {
    const size_t space = words.find(' ');
    const std::string name = words.substr(0, space);
    const std::string value = space == std::string::npos ? "" : words.substr(words.find_first_not_of(' ', space));
    const std::map<std::string, double*> numbers = {{"temperature", &sampling_.temperature},
                                                    {"top-p", &sampling_.top_p},
                                                    {"min-p", &sampling_.min_p},
                                                    {"repetition-penalty", &sampling_.repetition_penalty}};
    const std::map<std::string, int64_t*> counts = {{"top-k", &sampling_.top_k}, {"max-tokens", &max_tokens_}};
    const SamplingOptions before = sampling_;
    const int64_t longest_before = max_tokens_;
    const auto read = [&](auto& to) {
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), to);
      check(error == std::errc() && end == value.data() + value.size(), "/set {}: expected a number, got \"{}\"",
            foreign(name), foreign(value));
    };
    try {
      if (const auto number = numbers.find(name); number != numbers.end())
        read(*number->second);
      else if (const auto count = counts.find(name); count != counts.end())
        read(*count->second);
      else if (name == "seed")
        read(sampling_.seed);
      else if (!name.empty())
        throw Error("/set {}: expected temperature, top-k, top-p, min-p, repetition-penalty, seed or max-tokens",
                    foreign(name));
      validate(sampling_);
      check(max_tokens_ > 0, "/set max-tokens: expected a number above 0");
    } catch (const Error& error) {
      sampling_ = before, max_tokens_ = longest_before;
      return fmt::print("{}\n", error.what()), void();
    }
    for (const auto& [what, number] : numbers) fmt::print("{} {:g}, ", what, *number);
    fmt::print("top-k {}, seed {}, max-tokens {}\n", sampling_.top_k, sampling_.seed, max_tokens_);
  }

  // At a terminal, a message that cannot be answered is reported and dropped, and the conversation goes on. An example
  // is a system message that the model's template refuses.
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
    request.max_tokens = max_tokens_;
    request.stop_ids = model_.stop_ids;
    request.sampling = sampling_;
    const auto context = model_.checkpoint.config().max_positions;
    if (static_cast<int64_t>(request.prompt.size()) >= context) {
      const bool alone = messages_.size() == (system_.empty() ? 1u : 2u);
      begin(system_);
      fmt::print("{} has {} tokens and fills the model's context of {}; {}.\n",
                 alone ? "The message" : "The conversation", request.prompt.size(), context,
                 alone ? "it is left out" : "a new one begins with this message");
      return alone ? void() : say(line);
    }
    expect_thinking(model_, prompt, request);
    const Thinking thinking = request.thinking;
    ThinkingDimmer dimmer(thinking);
    if (catcher_) catcher_->forget();
    const Answer a = answer(
        engine_, std::move(request),
        [&](const std::string& piece) {
          fmt::print("{}", colours_ ? dimmer.push(piece) : for_output(piece));
          flush_output();
        },
        catcher_);
    if (catcher_ && a.interrupted) catcher_->forget();
    fmt::print("{}\n", colours_ ? dimmer.finish() : "");
    if (colours_)
      fmt::print("\033[2m[{} tokens, {:.1f} tokens/s{}]\033[0m\n", a.ids.size(), a.tokens_per_second(),
                 a.interrupted                              ? ", stopped"
                 : a.finish_reason == FinishReason::length  ? ", cut off at --max-tokens"
                 : a.finish_reason == FinishReason::context ? ", cut off at the end of the context"
                                                            : "");
    messages_.push_back({"assistant", said_in(a.text, thinking)});
  }

  const Chat& o_;
  const TextModel& model_;
  InterruptCatcher* catcher_;
  SamplingOptions sampling_;
  int64_t max_tokens_;
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
  Messages input(o.no_history ? "" : state_file("chat-history"));
  say_if_not_as_certified(model.checkpoint, runner_options(o.run), model.checkpoint.config().max_positions);
  Conversation conversation(o, model, input.catcher());
  if (terminal)
    fmt::print("{}, {}. /help lists the commands, Ctrl-C stops an answer, Ctrl-D ends.\n", folder_name(o.run.model),
               bytes_text(model.checkpoint.file_bytes()));
  while (const auto message = input.next())
    if (!conversation.take(*message)) return;
  if (terminal) fmt::print("\n");  // The prompt of the shell gets a line of its own.
}

}  // namespace

void add_chat(CLI::App& app) {
  auto o = std::make_shared<Chat>();
  CLI::App* verb = app.add_subcommand("chat", "Talk to a model at the terminal; /help lists what else there is");
  verb->footer("Examples:\n  fidelio chat models/quill-26m\n  fidelio chat models/quill-26m --temperature 0");
  add_model(*verb, o->run);
  verb->add_option("-n,--max-tokens", o->max_tokens, "Longest answer in tokens")->check(above_zero());
  verb->add_option("--system", o->system, "A system message");
  add_sanitize(*verb, o->sanitize);
  add_sampling(*verb, o->sampling, true);
  verb->add_flag("--no-history", o->no_history, "Keep no list of typed lines for the next chat");
  add_draft(*verb, o->draft);
  add_run_options(*verb, o->run);
  verb->callback([o] { chat(*o); });
}

}  // namespace fidelio::app
