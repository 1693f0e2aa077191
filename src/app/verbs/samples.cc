// This file is the verb `samples`, which lets a model write documents of its own.
#include <algorithm>

#include "app/options/common.h"
#include "app/options/texts.h"
#include "compress/self_samples.h"
#include "core/file.h"
#include "core/hash.h"
#include "runtime/texts/corpus.h"

namespace fidelio::app {
namespace {

struct SampleOptions {
  RunOptions run;
  std::string output, json;
  std::vector<std::string> starts;
  int64_t documents = 60, tokens = 512;
  uint64_t seed = 0;
};

// Writes one document for each sequence, up to the place where the model ended it.
void write_samples(const SampleOptions& o) {
  check_output_name(o.output);
  check_can_write({o.output, o.json});
  const TextModel model = open_model(o.run.model);
  const int64_t length = window_length("--tokens", o.tokens, model.checkpoint.config());
  const std::vector<std::string> texts =
      o.starts.empty() ? std::vector{bundled_texts(o.run.model).calibration} : o.starts;
  std::vector<std::vector<int32_t>> starts;
  for (const Document& d : read_corpus(texts, model.tokenizer, model.chat ? &*model.chat : nullptr, length).documents)
    starts.emplace_back(d.ids.begin(), d.ids.begin() + static_cast<int64_t>(std::min<size_t>(d.ids.size(), 64)));
  const auto maker = [&](const RunnerOptions& options) { return make_runner(o.run, model.checkpoint, options); };
  std::string lines;
  int64_t count = 0, tokens = 0;
  for (std::vector<int32_t>& ids :
       sample_sequences(maker, runner_options(o.run), starts, o.documents * length, length, o.seed)) {
    const auto end = std::find_first_of(ids.begin(), ids.end(), model.stop_ids.begin(), model.stop_ids.end());
    ids.erase(end, ids.end());
    tokens += static_cast<int64_t>(ids.size());
    lines += nlohmann::json{{"id", fmt::format("sample-{}-{}", o.seed, count++)},
                            {"domain", "own-samples"},
                            {"text", model.tokenizer.decode(ids)}}
                 .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
             "\n";
  }
  write_file_atomically(o.output, lines);
  write_json(o.json, {{"output", o.output}, {"documents", count}, {"tokens", tokens}, {"sha256", sha256_hex(lines)}});
  if (!quiet(o.json))
    fmt::print("{}: {} documents, {} tokens, domain own-samples, SHA-256 {}\n", o.output, count, tokens,
               sha256_hex(lines));
}

}  // namespace

void add_samples(CLI::App& app) {
  auto o = std::make_shared<SampleOptions>();
  CLI::App* verb = app.add_subcommand(
      "samples", "Have the model write documents of its own, a domain for --text of compress and certify");
  verb->footer(
      "Example:\n  fidelio samples models/quill-26m -o own.jsonl\n"
      "  fidelio compress models/quill-26m --ear 0.98 --text my-docs:docs --text own.jsonl -o quill-98");
  add_model(*verb, o->run);
  verb->add_option("-o,--output", o->output, "JSONL file to write, a document a line")->required();
  verb->add_option("--documents", o->documents, "So many, each with random numbers of its own")->check(above_zero());
  verb->add_option("--tokens", o->tokens, "Of each, at most: a document ends where the model ends it")
      ->check(CLI::Range(16, 1 << 20));
  verb->add_option("--starts", o->starts,
                   "Text whose documents' first few tokens begin the samples (default: the calibration text that comes "
                   "with fidelio); may be repeated")
      ->check(text_source());
  verb->add_option("--seed", o->seed, "Of the samples, drawn at temperature 1");
  add_run_options(*verb, o->run);
  add_json(*verb, o->json);
  verb->callback([o] { write_samples(*o); });
}

}  // namespace fidelio::app
