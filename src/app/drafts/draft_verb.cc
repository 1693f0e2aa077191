#include "app/drafts/draft_verb.h"

#include "app/options/texts.h"
#include "core/foreign/units.h"
#include "core/progress.h"
#include "runtime/texts/bundled.h"

namespace fidelio::app {
namespace {

struct DraftVerb {
  RunOptions run;
  DraftChoiceOptions how;
  std::string json, bytes;
  bool dry = false;
};

void add_draft_tuning(CLI::App& verb, DraftTuning& o) {
  CLI::Option* tune = verb.add_flag(
      "--tune", o.on,
      "Tune copies towards the model, on answers, calibration text and samples that the model writes as they begin");
  verb.add_option("--tune-steps", o.steps, "Steps of that (default: 300 on a CPU, 1000 on a GPU)")
      ->check(zero_or_more())
      ->needs(tune);
  verb.add_option("--tune-windows", o.windows, "Windows a step (default: 8 on a CPU, 32 on a GPU)")
      ->check(above_zero())
      ->needs(tune);
  verb.add_option("--tune-samples", o.samples,
                  "Tokens that the model writes for it (default: 262144 on a CPU, 4194304 on a GPU)")
      ->check(zero_or_more())
      ->needs(tune);
}

}  // namespace

void settle_draft_defaults(DraftChoiceOptions& o) {
  if (o.prompts.file.empty()) o.prompts.file = bundled_text("chat.txt");
  if (o.calibration.empty()) o.calibration = {bundled_text("docs-calibration.txt")};
}

nlohmann::json choose_and_say(const RunOptions& run, const DraftChoiceOptions& o, bool quietly) {
  const nlohmann::json report = choose_draft(run, o, [&](const std::string& text) {
    if (!quietly) print_beside_progress(text + "\n");
  });
  if (!quietly) fmt::print("{}", draft_table(report));
  return report;
}

void add_draft_verb(CLI::App& app) {
  auto o = std::make_shared<DraftVerb>();
  o->how.prompts.limit = 48;
  CLI::App* verb = app.add_subcommand(
      "draft", "Set up speculative decoding: try several drafts and keep the fastest in the model's folder");
  verb->footer(
      "Examples:\n  fidelio draft quill-99\n"
      "  fidelio draft quill-99 --kinds 4,lut3g64 --prompts models/data/tasks.jsonl --threads 2\n"
      "  fidelio draft quill-99 --tune --device cuda --by-bytes\n"
      "  fidelio generate quill-99 --chat --draft auto -p \"What is 348 + 5127?\"");
  add_model(*verb, o->run);
  verb->add_option("--kinds", o->how.kinds,
                   "Drafts to try: a number of high bits of the codes, the format of a copy, or mtp, the model's own "
                   "block that predicts a token more (default: 4, if the model's codes can be cut to that, lut4g64, "
                   "lut3g64, and mtp if the model has it; on a GPU int4g128z in place of lut3g64, unless --by-bytes)")
      ->delimiter(',');
  verb->add_option("--prompts", o->how.prompts.file,
                   "A prompt a line: text, or of a .jsonl file JSON with \"prompt\" or \"question\" (default: the "
                   "questions that come with fidelio)");
  verb->add_option("--limit", o->how.prompts.limit, "Prompts to answer: half for calibration, half to measure on")
      ->check(CLI::Range(8, 1 << 20));
  verb->add_option("--max-tokens", o->how.prompts.max_tokens, "Longest answer in tokens")->check(CLI::Range(32, 4096));
  verb->add_flag("--plain", o->how.prompts.plain, "Continue the bare prompts, without the chat template");
  verb->add_option("--temperature", o->how.temperature, "Of every second answer; the others are greedy")
      ->check(above_zero());
  verb->add_option("--calibration", o->how.calibration,
                   "Calibration text of copies beside the answers; may be repeated");
  verb->add_option("--calibration-tokens", o->how.tokens, "Tokens of it")->check(above_zero());
  verb->add_option("--drafts", o->how.most, "Tokens guessed at once, at most")->check(CLI::Range(1, 16));
  verb->add_option(
          "--head-tokens", o->how.head_tokens,
          "Try each draft also with a head of this many tokens, the most frequent ones, which are then all that it "
          "guesses (default: a quarter of the vocabulary; 0: never)")
      ->check(zero_or_more());
  verb->add_option("--bytes", o->bytes, "Memory that a copy may take: 1200000, 1.2MB, 1.2MiB");
  verb->add_flag("--by-bytes", o->how.by_bytes,
                 "Choose by the bytes that drafts read, not by times on this machine: for a model that is to run on "
                 "another, whose memory is what a step waits for");
  add_draft_tuning(*verb, o->how.tuning);
  verb->add_flag("--dry-run", o->dry, "Only measure: write nothing into the model's folder");
  add_run_options(*verb, o->run);
  add_json(*verb, o->json);
  verb->callback([o] {
    check_can_write({o->json});
    if (!o->bytes.empty()) o->how.bytes = parse_bytes(o->bytes);
    o->how.keep = !o->dry;
    settle_draft_defaults(o->how);
    write_json(o->json, choose_and_say(o->run, o->how, quiet(o->json)));
  });
}

}  // namespace fidelio::app
