// This file is the verb `generate`, which writes one answer to a prompt.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <iterator>

#include "app/options/answer.h"
#include "app/options/common.h"
#include "app/options/sampling.h"
#include "app/options/served.h"

namespace fidelio::app {
namespace {

struct Generate {
  RunOptions run;
  Sampling sampling;
  DraftOptions draft;
  int64_t max_tokens = 256;
  std::string prompt, json;
  std::vector<std::string> stops;
  bool chat = false, sanitize = false;
};

// Returns the prompt of the command line or, without one or with "-", all of standard input.
std::string prompt_of(const Generate& o, bool given) {
  if (given && o.prompt != "-") return o.prompt;
  check(given || ::isatty(0) == 0, "generate: give a prompt, -p TEXT, or pipe one in; `fidelio chat` is for talking");
  std::string text(std::istreambuf_iterator<char>(std::cin), {});
  check(std::ferror(stdin) == 0, "cannot read the prompt from standard input: {}", std::strerror(errno));
  return text;
}

void generate_once(Generate o, bool given) {
  check_can_write({o.json});
  const std::string text = prompt_of(o, given);
  const TextModel model = open_model(o.run.model);
  RunnerOptions options = runner_options(o.run);
  GenerationRequest request;
  if (o.chat) {
    RenderedChat chat = rendered_chat(model, {{"user", text}}, o.sanitize);
    request.prompt = std::move(chat.ids);
    if (auto channels = channels_of(*model.chat, model.tokenizer, chat.text)) request.thinking.channels = channels;
  } else {
    request.prompt = model.tokenizer.encode(text);
  }
  check(!request.prompt.empty(), "the prompt is empty");
  request.max_tokens = o.max_tokens;
  request.stop_ids = model.stop_ids;
  request.stop_strings = o.stops;
  request.sampling = sampling_of(o.sampling, o.run.model);
  const std::vector<int32_t> prompt = request.prompt;
  const auto context = model.checkpoint.config().max_positions;
  check(static_cast<int64_t>(prompt.size()) < context,
        "the prompt has {} tokens, the model's context of {} leaves no room for an answer", prompt.size(), context);

  options.cache_tokens =
      std::min<int64_t>(context, static_cast<int64_t>(prompt.size()) + std::min<int64_t>(context, o.max_tokens));
  say_if_not_as_certified(model.checkpoint, options, options.cache_tokens);
  prepare_for_drafts(options, {&o.draft.draft, 1}, o.run, model.checkpoint.config().v);
  const auto runner = make_runner(o.run, model.checkpoint, options);
  const Draft draft = open_draft(o.draft, *runner, o.run);
  Engine engine(*runner, engine_options(model, options.mode, draft));
  const Answer a = answer(engine, std::move(request), [&](const std::string& piece) {
    if (quiet(o.json)) return;
    fmt::print("{}", for_output(piece));
    flush_output();
  });
  if (!quiet(o.json)) fmt::print("\n");
  if (a.text.empty() && o.stops.empty() && !o.chat && model.chat)
    spdlog::info("{} ended its text at once. It has a chat template: --chat asks in it", o.run.model);
  write_json(o.json, {{"prompt_ids", prompt},
                      {"ids", a.ids},
                      {"text", with_mark_tokens(a.text)},
                      {"finish_reason", std::string(name_of(a.finish_reason))},
                      {"draft", {{"drafted", a.drafted}, {"accepted", a.accepted}}},
                      {"timings",
                       {{"prompt_tokens", prompt.size()},
                        {"prompt_seconds", a.first_seconds},
                        {"generated_tokens", a.ids.size()},
                        {"generation_seconds", a.total_seconds - a.first_seconds},
                        {"tokens_per_second", a.tokens_per_second()}}}});
}

}  // namespace

void add_generate(CLI::App& app) {
  auto o = std::make_shared<Generate>();
  CLI::App* verb = app.add_subcommand("generate", "Continue a prompt, or answer it in the model's chat format");
  verb->footer(
      "Examples:\n  fidelio generate models/quill-26m --chat -p \"What is 348 + 5127?\"\n"
      "  fidelio generate models/quill-26m -p \"The package\" -n 64 --temperature 0.8 --top-p 0.95 --seed 7\n"
      "  fidelio generate models/quill-26m --chat --stop . < question.txt");
  add_model(*verb, o->run);
  CLI::Option* prompt = verb->add_option("-p,--prompt", o->prompt, "The prompt; without it, or with -, standard input");
  CLI::Option* chat = verb->add_flag("--chat", o->chat, "As a user's message in the model's chat template");
  add_sanitize(*verb, o->sanitize)->needs(chat);
  verb->add_option("-n,--max-tokens", o->max_tokens, "Longest answer in tokens")->check(above_zero());
  verb->add_option("--stop", o->stops, "The answer also ends before this text; may be repeated")
      ->allow_extra_args(false);
  add_sampling(*verb, o->sampling);
  add_draft(*verb, o->draft);
  add_run_options(*verb, o->run);
  add_json(*verb, o->json);
  verb->callback([o, prompt] { generate_once(*o, prompt->count() > 0); });
}

}  // namespace fidelio::app
