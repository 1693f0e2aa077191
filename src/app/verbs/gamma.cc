// This file is the verb `gamma`, which predicts and measures what symmetric grids would cost each weight matrix.
#include "sensitivity/gamma.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "app/about.h"
#include "app/options/common.h"
#include "app/options/texts.h"
#include "core/file.h"
#include "core/progress.h"
#include "eval/report/html.h"
#include "eval/studies/grids.h"
#include "quant/quantize.h"

namespace fidelio::app {
namespace {

struct Gamma {
  RunOptions run;
  std::string json, page, symmetric, asymmetric;
  std::vector<std::string> texts;
  WindowOptions windows{.context = 0, .windows = 40};  // 0 means window_length().
  int bits = 4, group = 128;
};

struct Linear {
  std::string name;
  GammaLaw law;
};

std::vector<Linear> laws_of(const Gamma& o, const Checkpoint& checkpoint) {
  std::vector<Linear> linears;
  for (LinearId id : linears_of(checkpoint.config())) {
    const LinearWeight w = checkpoint.linear(id);
    check(w.spec.is_dense(), "{}: {} is {}; gamma is about the weights before they are quantised", o.run.model,
          to_string(id), to_string(w.spec));
    const std::vector<float> values = decode(w);
    check(std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); }),
          "{}: {} holds NaN or infinity: the file is damaged", o.run.model, to_string(id));
    linears.push_back({to_string(id), gamma_law(values, w.out, w.in, o.group, o.bits)});
    checkpoint.drop(id);
  }
  return linears;
}

// Measures the weights of one side: those of a checkpoint, or the source's rounded to the nearest between the ends of
// each range.
std::vector<FidelityReport> measure_side(const Gamma& o, const Checkpoint& source, const std::string& made,
                                         const FormatSpec& format, Runner& reference,
                                         const std::vector<EvalText>& texts, KeptStreams& kept, Progress& progress) {
  const RunnerOptions& options = reference.options();
  const std::unique_ptr<Runner> candidate = make_runner(o.run, source, options);
  ThreadPool pool(o.run.threads);
  std::optional<Checkpoint> given;
  if (!made.empty()) {
    given = Checkpoint::open(made);
    check(given->config().v == source.config().v && given->config().L == source.config().L &&
              given->config().d == source.config().d,
          "{} has other shapes than {}: it was not made from it", made, o.run.model);
  }
  const auto weight = [&](LinearId id) {
    if (given) return given->linear(id);
    const LinearWeight w = source.linear(id);
    return quantize_rtn(format, decode(w), w.out, w.in, {.range_search = false, .importance = {}}, pool);
  };
  const CompareOptions how{.windows = o.windows,
                           .reference_mode = options.mode,
                           .candidate_mode = options.mode,
                           .top_k = 10,
                           .bootstrap = {}};
  return layer_by_layer(reference, *candidate, weight, texts, how, pool, kept, [&] { progress.advance(); });
}

GridStudy study_of(Gamma o, const Checkpoint& checkpoint) {
  const TextModel model = open_model(o.run.model);
  o.windows.context = window_length("--context", o.windows.context, checkpoint.config());
  RunnerOptions options = runner_options(o.run);
  options.max_rows = std::max<int64_t>(options.max_rows, o.windows.context);
  options.cache_tokens = 2 * options.max_rows;
  options.context = o.windows.context;
  const std::vector<EvalText> texts = read_texts(o.texts, model.tokenizer);
  const auto reference = make_runner(o.run, checkpoint, options);
  KeptStreams kept;
  Progress progress("gamma", 2 * checkpoint.config().L);
  set_words_on_interrupt("Nothing is kept of this study; the same command begins anew.");
  GridStudy study;
  const std::string name = fmt::format("int{}{}", o.bits, o.group == 0 ? "c" : fmt::format("g{}", o.group));
  const auto measure = [&](GridSide& side, const std::string& made, const std::string& grid) {
    const FormatSpec format = parse_target(grid);
    side.name = made.empty() ? to_string(format) : folder_name(made);
    side.layers = measure_side(o, checkpoint, made, format, *reference, texts, kept, progress);
  };
  measure(study.symmetric, o.symmetric, name);
  measure(study.asymmetric, o.asymmetric, name + "z");
  return study;
}

Table law_table(const Gamma& o, const std::vector<Linear>& linears) {
  Table table{
      "The law, matrix by matrix",
      fmt::format("At {} bits in groups of {}. A grid around zero has gamma^2 times the rounding variance of one "
                  "on the group's own range. Predicted: from the ranges; measured: from the errors.",
                  o.bits, o.group == 0 ? std::string("a row") : fmt::format("{}", o.group)),
      {"matrix", "gamma", "gamma^2 predicted", "variance measured", "ratio", "worst group"},
      {}};
  for (const auto& [name, law] : linears)
    table.rows.push_back({name, number_text(law.gamma(), 4), number_text(law.predicted, 4),
                          number_text(law.measured, 4), number_text(law.measured / law.predicted, 4),
                          number_text(law.largest, 3)});
  return table;
}

std::string page(const Gamma& o, const std::vector<Linear>& linears, const std::optional<GridStudy>& study) {
  std::string body = "<p class=\"lead\">What a grid of values around zero costs the weights of " +
                     escape_html(folder_name(o.run.model)) +
                     " beside one laid over each group's own range, with as many bits.</p>\n";
  if (study) {
    const GridSide &s = study->symmetric, &a = study->asymmetric;
    const NamedReport whole[] = {{s.name, &s.layers.back()}, {a.name, &a.layers.back()}};
    const std::vector<Table> numbers = tables(*study);
    body +=
        "<p>" +
        escape_html(fmt::format(
            "{} against {}, the weight matrices of all layers, on {} tokens of {} in {} windows. A flip "
            "is a position where the most likely next token becomes another; entropy says how "
            "unsure the original is there.",
            s.name, a.name, s.layers.back().positions(), fmt::join(o.texts, ", "), s.layers.back().windows.size())) +
        "</p>\n" + svg_chart(flips_chart(whole)) + svg_chart(ratio_chart(*study)) + to_html(numbers[0]) +
        svg_chart(layers_chart(*study)) + to_html(numbers[1]);
  }
  return html_page("Symmetric and asymmetric grids: " + folder_name(o.run.model), body + to_html(law_table(o, linears)),
                   made_by());
}

void gamma(const Gamma& o) {
  check_can_write({o.json, o.page});
  const Checkpoint checkpoint = Checkpoint::open(o.run.model);
  const std::vector<Linear> linears = laws_of(o, checkpoint);
  std::optional<GridStudy> study;
  if (!o.texts.empty()) study = study_of(o, checkpoint);
  if (!quiet(o.json)) {
    fmt::print("{}", to_text(law_table(o, linears)));
    if (study)
      for (const Table& table : tables(*study)) fmt::print("\n{}", to_text(table));
  }
  nlohmann::json report = {{"bits", o.bits}, {"group", o.group}, {"linears", nlohmann::json::array()}};
  for (const auto& [name, law] : linears)
    report["linears"].push_back({{"linear", name},
                                 {"gamma", law.gamma()},
                                 {"predicted", law.predicted},
                                 {"measured", law.measured},
                                 {"largest", law.largest}});
  if (study) report["text"] = to_json(*study);
  write_json(o.json, report);
  if (!o.page.empty()) write_file_atomically(o.page, page(o, linears, study));
}

}  // namespace

void add_gamma(CLI::App& app) {
  auto o = std::make_shared<Gamma>();
  o->run.activations = "f32";
  CLI::App* verb =
      app.add_subcommand("gamma",
                         "What symmetric grids would cost each weight matrix: predicted and measured ratio of "
                         "rounding variances; on a text, flips and EAR layer by layer");
  verb->footer(
      "Examples:\n  fidelio gamma models/quill-26m --bits 4 --group 128\n"
      "  fidelio gamma models/quill-26m --text models/data/docs-heldout.txt --report gamma.html");
  verb->add_option("MODEL", o->run.model, "Model folder with dense weights")->required()->check(model_folder());
  verb->add_option("--bits", o->bits, "Bits of the grids")->check(CLI::Range(2, 8));
  verb->add_option("--group", o->group, "Columns that share a range; 0 = the whole row")->check(CLI::Range(0, 1 << 20));
  CLI::Option* text = verb->add_option(
      "--text", o->texts,
      "Also measure both grids on this text: flips by entropy, EAR and KL layer after layer; may be repeated");
  verb->add_option("--symmetric", o->symmetric,
                   "Model folder made from MODEL by `quantize`, instead of rounding on the symmetric grid")
      ->check(model_folder())
      ->needs(text);
  verb->add_option("--asymmetric", o->asymmetric, "The same for the asymmetric one")
      ->check(model_folder())
      ->needs(text);
  verb->add_option("--context", o->windows.context,
                   "Window length in tokens (default: 512, or the model's context if that is shorter)")
      ->check(CLI::Range(2, 1 << 24))
      ->needs(text);
  verb->add_option("--windows", o->windows.windows, "Only this many windows of each text, the first ones; 0 = all")
      ->check(zero_or_more())
      ->needs(text);
  add_device(*verb, o->run);
  add_report(*verb, o->page);
  add_json(*verb, o->json);
  verb->callback([o] { gamma(*o); });
}

}  // namespace fidelio::app
