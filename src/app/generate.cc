#include <unistd.h>

#include <chrono>
#include <iostream>

#include "app/common.h"
#include "app/sampling.h"
#include "core/foreign_text.h"
#include "engine/generate.h"

namespace fidelio::app {
namespace {

// What a model writes is a stranger's text as its files are: a terminal shows control characters instead of obeying
// them, a file or pipe gets them as they are.
std::string for_output(const std::string& piece) {
  static const bool terminal = ::isatty(1) != 0;
  return terminal ? visible(piece, Lines::kept) : piece;
}

std::string chat_prompt(const TextModel& model, const std::vector<ChatMessage>& messages) {
  check(model.chat.has_value(),
        "{} has no chat template (tokenizer_config.json or chat_template.jinja); leave out --chat",
        model.checkpoint.folder());
  return model.chat->render(messages);
}

struct Answer {
  Generation generation;
  double first_seconds = 0, total_seconds = 0;  // until the first token; in all
};

// Runs one request, handing pieces of text to `print` as they become final.
Answer answer(Runner& runner, const TextModel& model, GenerationRequest request, Activations mode,
              const std::function<void(const std::string&)>& print) {
  StreamingDetokenizer detokenizer(model.tokenizer);
  Answer result;
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  GenerationOptions options;
  options.mode = mode;
  options.tokenizer = &model.tokenizer;
  options.on_token = [&](int64_t, int32_t id) {
    if (result.first_seconds == 0) result.first_seconds = elapsed();
    print(detokenizer.push(id));
  };
  result.generation = std::move(generate(runner, {std::move(request)}, options).front());
  print(detokenizer.finish());
  result.total_seconds = elapsed();
  return result;
}

struct Generate {
  RunOptions run;
  Sampling sampling;
  int64_t max_tokens = 256;
  std::string prompt, json;
  bool chat = false;
};

void generate_once(const Generate& o) {
  const TextModel model = open_model(o.run.model);
  RunnerOptions options = runner_options(o.run);
  GenerationRequest request;
  request.prompt = o.chat ? model.tokenizer.encode(chat_prompt(model, {{"user", o.prompt}}), false)
                          : model.tokenizer.encode(o.prompt);
  check(!request.prompt.empty(), "the prompt is empty");
  request.max_tokens = o.max_tokens;
  request.stop_ids = model.stop_ids;
  request.sampling = sampling_of(o.sampling, o.run.model);
  const std::vector<int32_t> prompt = request.prompt;
  const auto context = model.checkpoint.config().max_positions;
  check(static_cast<int64_t>(prompt.size()) < context,
        "the prompt has {} tokens, the model's context of {} leaves no room for an answer", prompt.size(), context);

  options.cache_tokens = std::min<int64_t>(context, static_cast<int64_t>(prompt.size()) + o.max_tokens);
  const auto runner = make_runner(o.run, model.checkpoint, options);
  const Answer a = answer(*runner, model, std::move(request), options.mode, [&](const std::string& piece) {
    if (quiet(o.json)) return;
    fmt::print("{}", for_output(piece));
    std::fflush(stdout);
  });
  if (!quiet(o.json)) fmt::print("\n");
  const auto made = static_cast<double>(a.generation.ids.size());
  write_json(o.json, {{"prompt_ids", prompt},
                      {"ids", a.generation.ids},
                      {"text", a.generation.text},
                      {"finish_reason", std::string(name_of(a.generation.finish_reason))},
                      {"timings",
                       {{"prompt_tokens", prompt.size()},
                        {"prompt_seconds", a.first_seconds},
                        {"generated_tokens", a.generation.ids.size()},
                        {"generation_seconds", a.total_seconds - a.first_seconds},
                        {"tokens_per_second", made > 1 ? (made - 1) / (a.total_seconds - a.first_seconds) : 0}}}});
}

void chat(const Generate& o) {
  const TextModel model = open_model(o.run.model);
  const RunnerOptions options = runner_options(o.run);
  const auto runner = make_runner(o.run, model.checkpoint, options);
  std::vector<ChatMessage> messages;
  const bool terminal = ::isatty(0) != 0;
  for (std::string line;;) {
    if (terminal) fmt::print("> ");
    std::fflush(stdout);
    if (!std::getline(std::cin, line)) break;
    if (line.empty()) continue;
    messages.push_back({"user", line});
    GenerationRequest request;
    request.prompt = model.tokenizer.encode(chat_prompt(model, messages), false);
    request.max_tokens = o.max_tokens;
    request.stop_ids = model.stop_ids;
    request.sampling = sampling_of(o.sampling, o.run.model);
    const auto context = model.checkpoint.config().max_positions;
    if (static_cast<int64_t>(request.prompt.size()) >= context) {
      fmt::print("The conversation has {} tokens and fills the model's context of {}; it starts anew.\n",
                 request.prompt.size(), context);
      messages.clear();
      continue;
    }
    const Answer a = answer(*runner, model, std::move(request), options.mode, [](const std::string& piece) {
      fmt::print("{}", for_output(piece));
      std::fflush(stdout);
    });
    fmt::print("\n");
    messages.push_back({"assistant", a.generation.text});
  }
}

}  // namespace

void add_generate(CLI::App& app) {
  auto o = std::make_shared<Generate>();
  CLI::App* verb = app.add_subcommand("generate", "Continue a prompt, or answer it in the model's chat format");
  verb->footer(
      "Examples:\n  fidelio generate models/quill-26m --chat --prompt \"What is 348 + 5127?\"\n"
      "  fidelio generate models/quill-26m --prompt \"The package\" --max-tokens 64 --temperature 0.8 --top-p 0.95 "
      "--seed 7");
  add_model(*verb, o->run);
  verb->add_option("--prompt", o->prompt, "The prompt")->required();
  verb->add_flag("--chat", o->chat, "As a user's message in the model's chat template");
  verb->add_option("--max-tokens", o->max_tokens, "Longest answer in tokens")->check(above_zero());
  add_sampling(*verb, o->sampling);
  add_run_options(*verb, o->run);
  add_json(*verb, o->json);
  verb->callback([o] { generate_once(*o); });
}

void add_chat(CLI::App& app) {
  auto o = std::make_shared<Generate>();
  CLI::App* verb = app.add_subcommand("chat", "Talk to a model; one message a line, end with Ctrl-D");
  verb->footer("Example:\n  fidelio chat models/quill-26m");
  add_model(*verb, o->run);
  verb->add_option("--max-tokens", o->max_tokens, "Longest answer in tokens")->check(above_zero());
  add_sampling(*verb, o->sampling);
  add_run_options(*verb, o->run);
  verb->callback([o] { chat(*o); });
}

}  // namespace fidelio::app
