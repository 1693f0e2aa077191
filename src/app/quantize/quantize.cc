#include "app/quantize/quantize.h"

#include "app/options/card.h"
#include "app/options/texts.h"
#include "compress/preflight.h"
#include "compress/self_samples.h"
#include "core/foreign/units.h"
#include "core/progress.h"
#include "quant/atom/atom.h"
#include "quant/rotation.h"
#include "runtime/dataset.h"
#include "runtime/texts/bundled.h"
#include "train/block.h"
#include "train/salience.h"

namespace fidelio::app {
namespace {

bool has(const Quantize& o, std::string_view step) {
  return std::find(o.steps.begin(), o.steps.end(), step) != o.steps.end();
}

void set_steps(const Quantize& o, ModelQuantizer& how) {
  for (const std::string& step : o.steps)
    check(std::find(kSteps.begin(), kSteps.end(), step) != kSteps.end() || o.steps == std::vector<std::string>{"none"},
          "--steps {}: expected none, or some of {}", step, fmt::join(kSteps, ", "));
  check(how.method == Method::gptq || o.steps == kDefaultSteps,
        "--steps are those of GPTQ: leave it out with --method rtn");
  check(!has(o, "source-inputs") || !has(o, "feedback"),
        "--steps source-inputs,feedback: feedback puts right what earlier layers lost, which the source's own inputs "
        "do not show; give one of them");
  const bool plain_codes = parse_target(o.format).kind != Kind::vq && o.view_weight == 0 && !o.atom;
  check(!has(o, "curvature") || plain_codes, "--steps curvature is not for {}; leave it out",
        o.atom              ? "--atom"
        : o.view_weight > 0 ? "views"
                            : "vector codes");
  how.options.act_order = has(o, "act-order");
  how.options.range_search = has(o, "range-search") || how.method == Method::rtn;
  how.options.descend_codes = has(o, "descent");
  how.options.refit_scales = has(o, "refit");
  how.sequential = !has(o, "source-inputs");
}

// Returns the sequences of the calibration text from which gradients are computed.
std::vector<std::vector<int32_t>> gradient_sequences(const Quantize& o, const Dataset& data) {
  int64_t tokens = 0;
  std::vector<std::vector<int32_t>> sequences;
  for (const auto& s : data.sequences) {
    if (tokens >= o.gradient_tokens) break;
    tokens += static_cast<int64_t>(s.size());
    sequences.push_back(s);
  }
  return sequences;
}

const std::vector<std::string> kPaperParts = {"outliers", "salient", "residuals", "weights"};

// Removes from the defaults what `--paper` excludes. Returns the gradients that it needs, of the source on the
// calibration text.
std::map<LinearId, std::vector<float>> set_paper(const Quantize& o, const Checkpoint& source, const Dataset& data,
                                                 GptqOptions& options) {
  const auto has_part = [&](std::string_view part) {
    return std::find(o.paper.begin(), o.paper.end(), part) != o.paper.end();
  };
  options.paper = {has_part("outliers"), has_part("salient"), has_part("residuals"), has_part("weights"), o.alpha};
  train::check_known(source.config(), false);
  return train::mean_absolute_gradient(source, gradient_sequences(o, data),
                                       {.labels = true, .seed = o.seed, .threads = o.run.threads});
}

// Returns the moments of the source on the same text, for `--steps curvature`.
std::map<LinearId, std::vector<float>> moments_of(const Quantize& o, const Checkpoint& source, const Dataset& data) {
  train::check_known(source.config(), false);
  check_memory({{"the gradients' moments", train::output_moments_bytes(source.config())}}, available_memory(),
               "--steps curvature");
  const auto sequences = gradient_sequences(o, data);
  Progress progress("gradients", static_cast<int64_t>(sequences.size()));
  return train::output_moments(source, sequences, {.seed = o.seed, .threads = o.run.threads},
                               [&](int64_t) { progress.advance(); });
}

// Returns the calibration text: `tokens` in all, of which the model wrote `samples`.
Dataset calibration_data(const Quantize& o, const Checkpoint& source, int64_t context) {
  const Tokenizer tokenizer = Tokenizer::load(source.texts());
  const auto chat = ChatTemplate::load(source.texts());
  check(o.samples <= o.tokens, "--calibration-samples {} are some of the --calibration-tokens, of which there are {}",
        o.samples, o.tokens);
  Dataset data = read_dataset(o.calibration, tokenizer, chat ? &*chat : nullptr, {context, o.tokens});
  if (o.samples == 0) return data;
  const auto written =
      sample_sequences([&](const RunnerOptions& options) { return make_runner(o.run, source, options); },
                       runner_options(o.run), data.sequences, o.samples, context, o.seed);
  if (o.samples == o.tokens)
    data.sequences.clear();
  else
    data.sequences = spread_evenly(data.sequences, o.tokens - o.samples);
  data.sequences.insert(data.sequences.end(), written.begin(), written.end());
  data.tokens = 0;
  for (const auto& s : data.sequences) data.tokens += static_cast<int64_t>(s.size());
  return data;
}

std::map<LinearId, FormatSpec> formats_for(const ModelConfig& config, const Quantize& o) {
  std::map<LinearId, FormatSpec> formats;
  for (LinearId id : linears_of(config)) {
    if (is_outer(id.role) && o.embedding.empty()) continue;
    formats[id] = parse_target(is_outer(id.role) ? o.embedding : o.format);
  }
  return formats;
}

// Fills in the method, the calibration text and the format of the embedding where they were left open. A user who does
// not ask for calibration wants a model in seconds; the end of the run says that this is the rougher one
// (docs/design.md).
void settle_defaults(Quantize& o) {
  check(!o.keep_embedding || o.embedding.empty(),
        "--keep-embedding leaves the embedding as it is: leave out --embedding {}", o.embedding);
  if (!o.keep_embedding && o.embedding.empty() && !parse_target(o.format).is_dense()) o.embedding = kEmbeddingFormat;
  if (o.method == "gptq" && o.calibration.empty()) o.calibration = {bundled_text("docs-calibration.txt")};
}

// Returns "embedding and head: int8g64zs8 (...)", which tells users who think only of the linears what became of these.
std::string about_embedding(const ModelConfig& config, const Quantize& o) {
  std::string what = config.tie_embeddings ? "embedding (the head too)" : "embedding and head";
  if (config.per_layer > 0) what += ", and the table of every layer's rows";
  if (o.embedding.empty()) return fmt::format("{}: left as they are in the source", what);
  return fmt::format("{}: {} (--embedding FORMAT for another, --keep-embedding to leave them)", what, o.embedding);
}

// The same for the block that predicts a token more, "" where there is none.
std::string about_predictor(const Checkpoint& made) {
  if (!made.config().predictor) return "";
  const FormatSpec format = made.format({kPredictorLayer, Role::join});
  return fmt::format("predictor of a token more: {}\n",
                     format.is_dense()
                         ? "left as it is in the source"
                         : to_string(format) + " (--predictor FORMAT for another; drafts change no answer)");
}

nlohmann::json report_of(const QuantizedLinear& q) {
  nlohmann::json row = {{"name", to_string(q.id)}, {"format", to_string(q.weight.spec)}};
  if (q.report)
    row.update({{"relative_loss", q.report->relative_loss()},
                {"damping", q.report->damping},
                {"dead_columns", q.report->dead_columns},
                {"seconds", q.report->seconds}});
  return row;
}

nlohmann::json report_of(const Quantize& o, const Checkpoint& source, const Checkpoint& made, nlohmann::json linears) {
  return {{"output", o.out},
          {"file_bytes", made.file_bytes()},
          {"source_file_bytes", source.file_bytes()},
          {"parameters", made.parameters()},
          {"bits_per_parameter", 8.0 * static_cast<double>(made.file_bytes()) / static_cast<double>(made.parameters())},
          {"embedding", o.embedding},
          {"linears", std::move(linears)}};
}

std::vector<Stage> stages_of(const Quantize& o) {
  std::vector<Stage> stages;
  if (o.samples > 0) stages.push_back({"writing samples", 1});
  if (has(o, "curvature")) stages.push_back({"gradients", 2});
  stages.push_back({"quantising", 4});
  stages.push_back({"writing", 0.1, 0});
  return stages;
}

void set_view(const Quantize& o, ModelQuantizer& how) {
  const FormatSpec spec = parse_target(o.format);
  check(how.method == Method::gptq && spec.kind == Kind::integer && is_view_width(spec.bits, o.view_bits),
        "--view-bits {}: {} by {} has no such view; it takes --method gptq and an integer format whose planes can be "
        "cut there: 3 bits to 2, 5, 6 or 8 to 4, 7 to 4 or 6",
        o.view_bits, o.format, o.method);
  how.options.view_bits = o.view_bits, how.options.view_weight = o.view_weight;
}

// Runs calibration text through a runner in FP32. With feedback, a second runner beside it keeps the source's own
// activations.
void quantise_on_text(const Quantize& o, const Checkpoint& source, ModelQuantizer& how, ThreadPool& pool,
                      Stages& stages, std::optional<Kept>& kept, nlohmann::json& provenance,
                      const std::function<void(QuantizedLinear)>& done) {
  const int64_t context = window_length("--calibration-context", o.context, source.config());
  const Dataset data = calibration_data(o, source, context);
  if (o.samples > 0) stages.next();
  provenance["calibration_sha256"] = data.sha256;
  provenance["calibration_tokens"] = data.tokens;
  provenance["steps"] = o.steps;
  if (o.samples > 0) provenance.update({{"calibration_samples", o.samples}, {"seed", o.seed}});
  RunnerOptions options = runner_options(o.run);
  options.mode = Activations::f32;
  options.kv = KvFormat::f32;
  options.max_rows = batch_rows_for(source.config(), context, on_gpu(o.run));
  options.cache_tokens = 2 * options.max_rows;  // Ragged sequences leave their last pages partly empty.
  options.context = context;
  const auto runner = make_runner(o.run, source, options);
  kept.emplace(o, source, data, *runner);
  how.store = kept->store();
  foretell(o, source, data, *runner, pool);
  std::unique_ptr<Runner> original;
  if (has(o, "feedback")) original = make_runner(o.run, source, options);
  how.original = original.get();
  std::map<LinearId, std::vector<float>> gradients;
  if (!o.paper.empty()) {
    gradients = set_paper(o, source, data, how.options);
    how.gradients = &gradients;
    provenance["paper"] = o.paper;
  }
  std::map<LinearId, std::vector<float>> moments;
  if (has(o, "curvature")) {
    moments = moments_of(o, source, data);
    how.output_moments = &moments;
    provenance["gradient_tokens"] = o.gradient_tokens;
    stages.next();
  }
  quantize_model_gptq(*runner, source, data, how, pool, done);
}

void say(const Quantize& o, const Checkpoint& source, const Checkpoint& made, double damping,
         const nlohmann::json& report) {
  fmt::print("{}\n{}", about_embedding(source.config(), o), about_predictor(made));
  for (const auto& row : report["linears"])
    if (row.contains("damping") && (row["damping"].get<double>() > damping || row["dead_columns"].get<int64_t>() > 0))
      fmt::print("{}: damping raised to {:.3g} of the mean diagonal, {} dead columns\n", row["name"].get<std::string>(),
                 row["damping"].get<double>(), row["dead_columns"].get<int64_t>());
  fmt::print("{}: {} -> {}, {:.3f} bits/parameter of the whole file\n", o.out, bytes_text(source.file_bytes()),
             bytes_text(made.file_bytes()), report["bits_per_parameter"].get<double>());
  if (o.method == "rtn" && !parse_target(o.format).is_dense())
    fmt::print(
        "Weights are rounded to nearest, without calibration. --method gptq stays closer to the original; it says "
        "first "
        "how long it takes.\n");
}

void check_paper(const Quantize& o) {
  for (const std::string& part : o.paper)
    check(std::find(kPaperParts.begin(), kPaperParts.end(), part) != kPaperParts.end(),
          "--paper {}: expected some of {}", part, fmt::join(kPaperParts, ", "));
  check(o.paper.empty() || (parse_target(o.format).kind == Kind::vq && o.method == "gptq"),
        "--paper is about vector codes, such as vq8k12s1+r2.2, and not {} by {}", o.format, o.method);
}

// Returns the columns kept by --atom, as many as a group has.
KeptColumns kept_columns(const Quantize& o, const ModelConfig& config) {
  if (!o.atom) return {};
  check(o.method == "gptq", "--atom orders columns by what calibration shows: leave out --method {}", o.method);
  check(o.view_bits == 0, "--atom: codes of 4 bits have no view; leave out --view-bits");
  const FormatSpec spec = parse_target(o.format);
  check_can_keep(config, spec);
  return {spec.group, {}};
}

// Columns that are kept have codes of 8 bits, and therefore smaller scales than the others.
std::map<LinearId, FormatSpec> kept_formats(std::map<LinearId, FormatSpec> formats) {
  for (auto& [id, spec] : formats)
    if (!is_outer(id.role)) spec.bits = 8;
  return formats;
}

nlohmann::json origin_of(const Quantize& o, const Checkpoint& source, const KeptColumns& columns) {
  nlohmann::json about = about_source(source);
  about.update({{"method", o.method}, {"format", o.format}, {"embedding", o.embedding}});
  if (o.rotate) about.update({{"rotation", "hadamard"}, {"seed", o.seed}});
  if (o.atom) about["kept_columns"] = columns.count;
  if (o.view_bits > 0) about.update({{"view_bits", o.view_bits}, {"view_weight", o.view_weight}});
  return about;
}

}  // namespace

void quantize(Quantize o) {
  if (o.method.empty()) o.method = o.calibrated ? "gptq" : "rtn";
  check(o.method == "gptq" || o.method == "rtn", "--method {}: expected gptq or rtn", o.method);
  o.out = without_slash(o.out);
  ModelQuantizer how;
  how.method = o.method == "gptq" ? Method::gptq : Method::rtn;
  if (o.view_bits > 0) set_view(o, how);
  check_paper(o);
  settle_defaults(o);
  set_steps(o, how);
  check_new_folder(o.out);
  check_can_write({o.json});
  const Checkpoint source =
      o.rotate ? Checkpoint::open(open_rotated(o.run.model, o.seed)) : Checkpoint::open(o.run.model);
  std::map<LinearId, FormatSpec> formats = formats_for(source.config(), o);
  how.formats = one_format_each(formats);
  const std::map<LinearId, FormatSpec> predictor =
      o.rotate || o.atom ? std::map<LinearId, FormatSpec>() : predictor_formats(source, parse_target(o.predictor));
  formats.insert(predictor.begin(), predictor.end());
  if (o.tokens == 0) o.tokens = calibration_tokens_for(source.parameters(), on_gpu(o.run));
  KeptColumns columns = kept_columns(o, source.config());
  if (o.atom) how.kept = &columns;
  check_room(o, source, formats);

  nlohmann::json provenance = origin_of(o, source, columns);
  nlohmann::json linears = nlohmann::json::array();
  std::map<LinearId, LinearWeight> weights;
  ThreadPool pool(o.run.threads);
  set_words_on_interrupt(
      fmt::format("Nothing is kept: {} appears when it is complete. The same command begins anew.", o.out));
  std::optional<Stages> stages(std::in_place, "quantize", stages_of(o));
  const auto done = [&](QuantizedLinear q) {
    linears.push_back(report_of(q));
    weights.emplace(q.id, std::move(q.weight));
  };
  check_half_scales(source, o.atom ? kept_formats(formats) : formats, pool);
  std::optional<Kept> kept;
  stages->next();
  if (how.method == Method::rtn) {
    quantize_model_rtn(source, how, pool, done);
  } else {
    quantise_on_text(o, source, how, pool, *stages, kept, provenance, done);
  }
  for (auto& [id, weight] : quantize_predictor(source, predictor, pool))
    done({id, std::move(weight), std::nullopt, std::nullopt});
  stages->next();
  write_checkpoint(
      o.out, source, formats, [&](LinearId id) { return weights.at(id); }, provenance, {}, columns);
  if (kept) kept->remove();
  stages.reset();  // The lines below are printed, so the bar is removed.

  const Checkpoint made = Checkpoint::open(o.out);
  write_card(o.out, facts_of_run(made, source.texts()));
  const nlohmann::json report = report_of(o, source, made, std::move(linears));
  write_json(o.json, report);
  if (quiet(o.json)) return;
  say(o, source, made, how.options.damping, report);
}

}  // namespace fidelio::app
