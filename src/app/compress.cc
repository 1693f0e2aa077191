#include <algorithm>
#include <filesystem>
#include <set>

#include "app/compressor.h"

namespace fidelio::app {
namespace {

// What a plan may choose from unless --formats says otherwise: 8-bit scales and groups of 64 are worth 10-14% of KL at
// equal size, grids more below 4 bits (docs/results.md).
const std::vector<std::string> kDefaultFormats = {"lut2g64",    "lut3g64",    "lut4g64",    "int3g64zs8", "int4g64zs8",
                                                  "int5g64zs8", "int6g64zs8", "int7g64zs8", "int8g64zs8"};

// What vLLM serves: integers with FP16 scales, a zero point at 4 and 8 bits only, the head dense (notes of
// compressed-tensors).
const std::vector<std::string> kVllmFormats = {"int2g64", "int3g64", "int4g64z", "int5g64",
                                               "int6g64", "int7g64", "int8g64z"};

// The texts that come with the program, found beside it: build/fidelio -> models/data.
std::string bundled_text(const char* name) {
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  return (program.parent_path().parent_path() / "models" / "data" / name).lexically_normal().string();
}

void settle_defaults(CompressOptions& o) {
  if (o.calibration.empty()) o.calibration = {bundled_text("docs-calibration.txt")};
  if (o.texts.empty()) o.texts = {bundled_text("docs-heldout.txt")};
  if (o.formats.empty()) o.formats = o.profile == "vllm" ? kVllmFormats : kDefaultFormats;
  while (o.out.size() > 1 && o.out.back() == '/') o.out.pop_back();
}

// Everything a profile asks of a plan is asked of what the plan may choose from.
void apply_profile(CompressOptions& o) {
  if (o.profile.empty()) return;
  check(o.profile == "vllm", "--profile {}: expected vllm", o.profile);
  check(o.grouping == "fused",
        "--profile vllm: q k v and gate up are fused there and must share a format; leave out --grouping {}",
        o.grouping);
  o.keep_embedding = true;
  for (const std::string& name : o.formats) {
    const FormatSpec f = parse_format(name);
    check(f.kind == Kind::integer && f.scale == ScaleKind::f16, "--profile vllm: {} is not integers with FP16 scales",
          name);
    check(f.symmetric || f.bits == 4 || f.bits == 8,
          "--profile vllm: {} has a zero point, which is served at 4 and 8 bits only; offer {} instead", name,
          to_string(FormatSpec{Kind::integer, f.bits, f.group, true, f.scale}));
  }
}

// Format strings are canonical: one of them twice would be two candidates that are one.
void check_formats(const CompressOptions& o) {
  std::set<std::string> seen;
  for (const std::string& name : o.formats)
    check(seen.insert(to_string(parse_format(name))).second, "--formats names {} twice", name);
}

void one_of(const std::string& option, const std::string& value, const std::vector<std::string>& allowed) {
  check(std::find(allowed.begin(), allowed.end(), value) != allowed.end(), "{} {}: expected {}", option, value,
        fmt::join(allowed, " or "));
}

void check_options(const CompressOptions& o) {
  const bool tasks = !o.questions.file.empty();
  check((o.ear > 0 || o.kl > 0) + (o.bits > 0) + (o.bytes > 0) + tasks == 1,
        "compress: give a target, --ear X or --kl X, or --tasks FILE --accuracy-drop X, or a size, --bits B or --bytes "
        "N");
  check(tasks == (o.accuracy_drop > 0), "--tasks and --accuracy-drop go together: how much accuracy may be lost");
  one_of("--grouping", o.grouping, {"fused", "single"});
  one_of("--method", o.method, {"single", "every", "linear", "shapley", "unified"});
  one_of("--allocate-by", o.allocate_by, {"kl", "ear"});
  one_of("--search", o.search, {"ilp", "evolve"});
  check(o.search == "ilp" || (o.bits == 0 && o.bytes == 0),
        "--search evolve makes a plan smaller at the same fidelity; with a size (--bits, --bytes) there is nothing to "
        "make smaller");
  check(o.method != "linear" || !is_coarse(parse_activations(o.run.activations)),
        "--method linear puts noise into dense weights, which do not see 8-bit activations as codes do; with "
        "--activations a8, a6, a4 and aw give single, every, shapley or unified");
  check_new_folder(o.out);
  check_can_write({o.json, o.table, o.page});
}

void compress(CompressOptions o) {
  check_options(o);
  settle_defaults(o);
  apply_profile(o);
  check_formats(o);
  const std::unique_ptr<Ranks> ranks = launched_ranks();
  nlohmann::json report;
  try {
    Compressor compressor(o, *ranks);
    report = o.dry_run ? compressor.dry_run() : compressor.run();
  } catch (const std::exception& error) {
    ranks->give_up(error.what());
    throw;
  }
  if (!ranks->first()) return;
  write_json(o.json, report);
  if (o.dry_run || quiet(o.json)) return;
  const auto& ear = report["certificate"]["ear"];
  fmt::print("{}: {} -> {}, {:.3f} bits/parameter; certified EAR {:.5f} [{:.5f}, {:.5f}] on {} tokens of unseen text\n",
             o.out, bytes_text(report["source_file_bytes"]), bytes_text(report["file_bytes"]),
             report["bits_per_parameter"].get<double>(), ear["value"].get<double>(), ear["ci95"][0].get<double>(),
             ear["ci95"][1].get<double>(), report["certificate"]["tokens"].get<int64_t>());
}

}  // namespace

void add_compress(CLI::App& app) {
  auto o = std::make_shared<CompressOptions>();
  CLI::App* verb = app.add_subcommand(
      "compress", "Find the smallest model that has a fidelity, and certify it on text the search has not seen");
  verb->footer(
      "Examples:\n  fidelio compress models/quill-26m --ear 0.99 -o quill-99\n"
      "  fidelio compress models/quill-26m --tasks models/data/tasks.jsonl --limit 100 --accuracy-drop 0.02 -o "
      "quill-tasks\n  mpirun -np 8 fidelio compress MODEL --ear 0.99 --method unified -o OUT");
  add_model(*verb, o->run);
  verb->add_option("--ear", o->ear, "Expected acceptance rate to reach: the lower confidence bound on unseen text")
      ->check(above_zero())
      ->check(from_to(0, 1));
  verb->add_option("--kl", o->kl, "KL in nats a token to stay below: the upper confidence bound")->check(above_zero());
  CLI::Option* tasks = add_questions(*verb, o->questions);
  const auto before = verb->get_options();
  verb->add_option("--accuracy-drop", o->accuracy_drop,
                   "Share of the model's accuracy on the questions that may be lost")
      ->check(from_to(0, 1));
  verb->add_option("--calibration-bits", o->calibration_bits,
                   "Size of the plan at which the loss of accuracy is counted")
      ->check(above_zero());
  group_with_tasks(*verb, before, tasks);
  verb->add_option("--bits", o->bits,
                   "Instead of a target: the best fidelity within so many bits a parameter, of the whole file")
      ->check(above_zero());
  verb->add_option("--bytes", o->bytes,
                   "Instead of a target: the best fidelity within so many bytes, of the whole file")
      ->check(above_zero());
  verb->add_option("-o,--output", o->out, "Folder to write; it appears complete or not at all")->required();
  verb->add_option("--formats", o->formats,
                   "Formats a plan may choose from (default: grids of 2-4 bits, integers of 3-8 bits, groups of 64, "
                   "8-bit scales)")
      ->delimiter(',');
  verb->add_option("--grouping", o->grouping,
                   "fused: q k v and gate up share a format, as vLLM needs; single: every linear alone");
  verb->add_option(
      "--profile", o->profile,
      "What the plan must suit. vllm: symmetric integers, zero points at 4 and 8 bits, head and embedding dense");
  verb->add_flag("--keep-embedding", o->keep_embedding, "Leave embedding and head as they are");
  verb->add_option("--method", o->method,
                   "How sensitivities are measured. single: every group in one format, the others by the error of "
                   "their weights; every: every group in every format; linear: by noise; shapley, unified: by "
                   "permutations");
  verb->add_option("--permutations", o->permutations, "Permutations of shapley and unified")
      ->check(CLI::Range(2, 1 << 20));
  verb->add_option("--sensitivity-error", o->target_se,
                   "Stop permutations when their standard errors are below this share of the total; 0: use them all")
      ->check(from_to(0, 1));
  verb->add_option("--calibration", o->calibration,
                   "Calibration text (default: the documentation text that comes with fidelio); may be repeated");
  verb->add_option(
      "--text", o->texts,
      "Text to search on and certify with (default: the held-out text that comes with fidelio); may be repeated");
  verb->add_option("--calibration-tokens", o->tokens,
                   "Tokens the quantisers see (default: 131072; fewer above 100 million parameters, 32768 at least)")
      ->check(above_zero());
  verb->add_option(
          "--calibration-samples", o->samples,
          "How many of them the model writes itself, at temperature 1, each sequence begun with a few tokens of "
          "the text")
      ->check(zero_or_more());
  verb->add_option("--search-tokens", o->search_tokens,
                   "Tokens sensitivities are measured on (default: 4096; fewer above 100 million parameters, 2048 at "
                   "least)")
      ->check(above_zero());
  verb->add_option("--context", o->context,
                   "Length of the windows of all texts (default: 512, or the model's context if that is shorter)")
      ->check(CLI::Range(16, 1 << 20));
  verb->add_option("--allocate-by", o->allocate_by,
                   "What adds up over groups: kl (it does), or ear (1 - EAR, as the paper has it; for comparison)");
  verb->add_option("--search", o->search,
                   "ilp: the knapsack's answer, measured and corrected; evolve: evolution goes on from there");
  verb->add_option("--generations", o->generations, "Of --search evolve")->check(CLI::Range(1, 1 << 20));
  verb->add_option("--max-trials", o->max_trials, "Plans measured before giving up")->check(above_zero());
  verb->add_option("--seed", o->seed, "Of noise, permutations and samples");
  verb->add_flag("--dry-run", o->dry_run, "Say what memory and time this would take, and stop");
  verb->add_flag("--fresh", o->fresh, "Begin anew even if OUTPUT.journal holds the work of a run that was interrupted");
  verb->add_option("--report", o->page, "Write a page about the plan to this HTML file");
  verb->add_option("--table", o->table, "Write the sensitivity table to this JSON file");
  add_run_options(*verb, o->run);
  add_json(*verb, o->json);
  verb->callback([o] { compress(*o); });
}

}  // namespace fidelio::app
