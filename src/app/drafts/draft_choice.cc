#include "app/drafts/draft_choice.h"

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <numeric>

#include "app/options/draft.h"
#include "core/file.h"
#include "core/foreign/json.h"
#include "core/foreign/units.h"
#include "core/own_files.h"
#include "engine/generate.h"
#include "eval/report/table.h"
#include "io/checkpoint_files.h"
#include "quant/quantize_model.h"
#include "runtime/dataset.h"
#include "runtime/page_table.h"

namespace fidelio::app {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSideBySide = 16;  // This many answers are written at once.
constexpr double kWorthIt = 1.02;    // Less than that is noise in the times of a few steps.

struct Copy {
  std::map<LinearId, FormatSpec> formats;
  std::map<LinearId, LinearWeight> weights;
  nlohmann::json tuned;  // It is null if the copy is not tuned.
  std::unique_ptr<Runner> runner;
  int64_t bytes = 0;
};
struct DraftKind {
  std::string name, draft;  // These are the kind as it was asked for, and as `--draft auto` will use it.
  Runner* runner = nullptr;
  Reading reading;
  std::shared_ptr<Copy> copy;         // It is null if the draft is a part of the model.
  std::shared_ptr<Runner> predictor;  // It is null if the draft is no predictor.
  std::vector<int32_t> head_tokens;   // It is empty if the whole head is used.
  int64_t bytes = 0;                  // It counts the memory of the draft.
  double share = 1;
  DraftQuality quality;
  double seconds = 0;  // It is the time of a step.
  Prediction greedy, sampled;
  double speedup() const { return std::sqrt(greedy.speedup * sampled.speedup); }
};

std::vector<WrittenAnswer> write_answers(Runner& model, Reading reading, std::vector<GenerationRequest> requests,
                                         double temperature) {
  std::vector<WrittenAnswer> answers;
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].sampling.temperature = i % 2 == 0 ? 0 : temperature;
    answers.push_back({requests[i].prompt, static_cast<int64_t>(requests[i].prompt.size()), i % 2 == 1});
  }
  const std::vector<Generation> made =
      generate(model, std::move(requests), {.reading = reading, .max_sequences = kSideBySide});
  for (size_t i = 0; i < made.size(); ++i)
    answers[i].ids.insert(answers[i].ids.end(), made[i].ids.begin(), made[i].ids.end());
  return answers;
}

// Every second answer of either kind is used for measuring; the others are added to the data that copies are made with.
std::vector<WrittenAnswer> keep_half(const std::vector<WrittenAnswer>& answers, Dataset& data) {
  std::vector<WrittenAnswer> kept;
  for (size_t i = 0; i < answers.size(); ++i) {
    const auto size = static_cast<int64_t>(answers[i].ids.size());
    if (size < answers[i].begin + kCycle) continue;  // This answer ended at once.
    if (i / 2 % 2 == 1)
      kept.push_back(answers[i]);
    else
      data.sequences.push_back(answers[i].ids), data.tokens += size;
  }
  return kept;
}

// An embedding or head of 3 bits and fewer loses much and saves little.
FormatSpec outer_format(FormatSpec format) {
  format.bits = std::max(format.bits, 4);
  return format;
}

void quantise_copy(const RunOptions& run, const Checkpoint& model, const Dataset& data, const FormatSpec& format,
                   Copy& copy) {
  ModelQuantizer how;
  for (LinearId id : linears_of(model.config())) copy.formats[id] = id.layer >= 0 ? format : outer_format(format);
  how.formats = one_format_each(copy.formats);
  RunnerOptions options = runner_options(run);
  options.mode = Activations::f32;
  options.kv = KvFormat::f32;
  int64_t longest = 0;
  for (const auto& s : data.sequences) longest = std::max(longest, static_cast<int64_t>(s.size()));
  options.max_rows = std::max<int64_t>(longest, 2048);
  options.cache_tokens = 2 * options.max_rows;
  options.context = longest;
  const auto runner = make_runner(run, model, options);
  ThreadPool pool(run.threads);
  quantize_model_gptq(*runner, model, data, how, pool,
                      [&](QuantizedLinear q) { copy.weights[q.id] = std::move(q.weight); });
  for (const auto& [id, weight] : copy.weights) copy.bytes += weight.stored_bytes();
}

double share_of(const DraftKind& kind, const Runner& model) {
  return static_cast<double>(kind.runner->bytes_read(kind.reading)) /
         static_cast<double>(model.bytes_read(kind.reading.activations));
}

int64_t predictor_bytes(const Checkpoint& checkpoint) {
  int64_t bytes = 0;
  for (const LinearId id : predictor_linears_of(checkpoint.config())) {
    const Shape shape = shape_of(checkpoint.config(), id);
    bytes += stored_bytes(checkpoint.format(id), shape[0], shape[1]);
  }
  return bytes;
}

// Makes the runner and the reading of a kind. Returns false where it would be too large.
bool make_kind(const RunOptions& run, const DraftChoiceOptions& o, const Checkpoint& checkpoint, Runner& model,
               const Dataset& data, CopyTuner* tuner, DraftKind& kind) {
  const Activations mode = parse_activations(run.activations);
  if (is_high_bits(kind.name)) {
    kind.reading = {mode, kind.name[0] - '0'};
    kind.runner = &model;
    kind.draft = kind.name;
  } else if (is_predictor(kind.name)) {
    kind.bytes = predictor_bytes(checkpoint);
    kind.predictor = model.make_predictor(checkpoint);
    kind.runner = kind.predictor.get();
    kind.reading = mode;
    kind.draft = kind.name;
  } else {
    Copy& copy = *(kind.copy = std::make_shared<Copy>());
    quantise_copy(run, checkpoint, data, parse_target(kind.name), copy);
    kind.bytes = copy.bytes;
    if (o.bytes > 0 && kind.bytes > o.bytes) return false;
    if (tuner) copy.tuned = tuner->tune(copy.formats, copy.weights);
    copy.runner = model.make_draft(checkpoint);
    for (const auto& [id, weight] : copy.weights) copy.runner->set_linear(id, copy.runner->pack(weight));
    kind.runner = copy.runner.get();
    kind.reading = mode;
    kind.draft = "copy";
  }
  kind.share = share_of(kind, model);
  return true;
}

// Returns, in ascending order, the tokens that are most frequent in the data, and those that end an answer. If the data
// has too few, the first tokens of the vocabulary follow, which merges of frequent text made first.
std::vector<int32_t> frequent_tokens(const Dataset& data, const TextModel& model, int64_t wanted) {
  const auto v = static_cast<size_t>(model.checkpoint.config().v);
  const size_t count = std::min(v, wanted < 0 ? (v + 3) / 4 : static_cast<size_t>(wanted));
  std::vector<int64_t> seen(v);
  for (const auto& sequence : data.sequences)
    for (int32_t id : sequence) ++seen[static_cast<size_t>(id)];
  for (int32_t id : model.stop_ids) seen[static_cast<size_t>(id)] = std::numeric_limits<int64_t>::max();
  std::vector<int32_t> ids(v);
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::stable_sort(ids, std::greater(), [&](int32_t id) { return seen[static_cast<size_t>(id)]; });
  ids.resize(count);
  std::ranges::sort(ids);
  return ids;
}

// Returns the same kind with a draft vocabulary of these tokens alone. Returns nothing where the format of the head
// does not allow it, or too little would be saved.
std::optional<DraftKind> with_short_head(const Checkpoint& checkpoint, const Runner& model, const DraftKind& whole,
                                         const std::vector<int32_t>& tokens) {
  const LinearId id = head_of(checkpoint.config());
  const LinearWeight head = whole.copy ? whole.copy->weights.at(id) : checkpoint.linear(id);
  if (tokens.empty() || std::ssize(tokens) == head.out || head.spec.kind == Kind::vq) return std::nullopt;
  DraftKind kind = whole;
  kind.head_tokens = tokens;
  kind.reading.short_head = true;
  kind.runner->set_short_head(head, tokens);
  kind.bytes += head.stored_bytes() * std::ssize(tokens) / head.out;
  kind.share = share_of(kind, model);
  return kWorthIt * kind.share > whole.share ? std::nullopt : std::optional(std::move(kind));
}

// Returns the kinds that were asked for, each of which the model must support. If none was asked for, it returns the
// usual kinds that the model supports.
std::vector<std::string> kinds_to_try(const RunOptions& run, const DraftChoiceOptions& o, const Runner& model) {
  const Activations mode = parse_activations(run.activations);
  std::vector<std::string> kinds = o.kinds;
  // Grids are more accurate at the same bytes, but on a GPU integers stream at the rate of memory and grids do not.
  if (o.kinds.empty()) kinds = {"4", "lut4g64", on_gpu(run) && !o.by_bytes ? "int4g128z" : "lut3g64"};
  if (o.kinds.empty() && model.options().predictor) kinds.emplace_back("mtp");
  std::erase_if(kinds, [&](const std::string& kind) {
    if (!is_high_bits(kind) || model.bytes_read({mode, kind[0] - '0'}) < model.bytes_read(mode)) return false;
    check(o.kinds.empty(),
          "--kinds {}: no layer of {} has integers that can be cut to {} bits; give formats of a copy, as lut4g64",
          kind, run.model, kind);
    return true;
  });
  return kinds;
}

nlohmann::json to_json(const DraftKind& k, const StepTimes& times) {
  const auto prediction = [](const Prediction& p) {
    return nlohmann::json{{"drafts", p.drafts}, {"speedup", p.speedup}};
  };
  return {{"kind", k.name},
          {"head_tokens", k.head_tokens.size()},
          {"bytes", k.bytes},
          {"tuned", k.copy ? k.copy->tuned : nlohmann::json()},
          {"bytes_share", k.share},
          {"greedy_agreement", k.quality.greedy},
          {"ear", k.quality.ear},
          {"coupled_agreement", k.quality.coupled},
          {"greedy_by_step", k.quality.greedy_by_step},
          {"coupled_by_step", k.quality.coupled_by_step},
          {"rows", k.quality.rows},
          {"draft_seconds", k.seconds},
          {"verify_seconds", times.verify},
          {"greedy", prediction(k.greedy)},
          {"sampled", prediction(k.sampled)}};
}

// Times all kinds side by side and returns the fastest, or null if none is worth it. It adds a row of the report for
// each. With `by_bytes`, a step is assumed to wait for memory alone, so verifying several rows takes the time of one.
const DraftKind* time_and_choose(Runner& model, Reading reading, std::vector<DraftKind>& kinds,
                                 const WrittenAnswer& amid, int64_t most, bool by_bytes, nlohmann::json& rows) {
  std::vector<DraftReading> drafts;
  for (const DraftKind& kind : kinds) drafts.push_back({kind.runner, kind.reading});
  const StepTimes times = measure_times(model, reading, drafts, amid, most);
  const std::vector<double> verify = by_bytes ? std::vector<double>(times.verify.size(), 1) : times.verify;
  const DraftKind* best = nullptr;
  for (size_t i = 0; i < kinds.size(); ++i) {
    DraftKind& kind = kinds[i];
    kind.seconds = times.drafts[i];
    const double draft = by_bytes ? kind.share : kind.seconds;
    kind.greedy = predict(kind.quality.greedy_by_step, verify, draft);
    kind.sampled = predict(kind.quality.coupled_by_step, verify, draft);
    rows.push_back(to_json(kind, times));
    if (kind.speedup() > (best ? best->speedup() : kWorthIt)) best = &kind;
  }
  return best;
}

// Tells whether the copy in a model's folder was written by fidelio. A run may have ended between writing it and the
// line that names it.
bool is_our_copy(const std::string& copy) {
  try {
    return parse_json(Checkpoint::open(copy).provenance(), copy).value("method", "") == "draft";
  } catch (const std::exception&) {
    return false;
  }
}

// Tells whether a file is a choice that fidelio wrote and, with `copy`, whether it names a copy.
bool is_our_choice(const std::string& file, bool copy = false) {
  try {
    const nlohmann::json choice = read_json_object(file);
    return choice.contains("draft") && choice.contains("weights_sha256") &&
           (!copy || choice.contains("copy_weights_sha256"));
  } catch (const std::exception&) {
    return false;
  }
}

// Reports before the work any obstacle to write_choice(), which removes only a choice and a copy written by fidelio.
void check_can_keep(const std::string& folder) {
  const std::string choice = draft_choice_file(folder), copy = draft_folder(folder);
  check(fs::is_directory(folder), "{} is a file: a draft is kept in a model's folder", folder);
  check(!fs::exists(choice) || is_our_choice(choice), "{} is there and is no choice of ours: move or remove it",
        choice);
  const bool there = fs::exists(fs::symlink_status(copy));
  check(!there || (!fs::is_symlink(copy) && (is_our_copy(copy) || is_our_choice(choice, true))),
        "{} is there and is no draft of ours: move it", copy);
  const std::vector<std::string> foreign = foreign_in(copy, is_checkpoint_file);
  check(foreign.empty(), "{} holds {}, which is no part of a draft: move it", copy,
        foreign.empty() ? "" : foreign.front());
  check_can_write({choice});
}

// Both appear complete: the folder first, then the line that names it. The previous choice stays until the copy is
// there.
void write_choice(const std::string& folder, const Checkpoint& model, const DraftKind* best, nlohmann::json report) {
  const bool copied = best && best->copy;
  const TemporaryFolder beside(draft_folder(folder));
  const std::string copy = beside.path() + "/copy";
  if (copied) {
    write_checkpoint(copy, model, best->copy->formats, [&](LinearId id) { return best->copy->weights.at(id); },
                     {{"method", "draft"}, {"format", best->name}, {"of_weights_sha256", model.weights_sha256()}});
    report["copy_weights_sha256"] = Checkpoint::open(copy).weights_sha256();
  }
  fs::remove(draft_choice_file(folder));
  const std::vector<std::string> foreign = remove_ours(draft_folder(folder), is_checkpoint_file);
  check(foreign.empty(), "{} holds {}, which is no part of a draft: move it", draft_folder(folder),
        foreign.empty() ? "" : foreign.front());
  if (copied) fs::rename(copy, draft_folder(folder));
  write_file_atomically(draft_choice_file(folder), report.dump(1) + "\n");
}

}  // namespace

nlohmann::json choose_draft(const RunOptions& run, const DraftChoiceOptions& o,
                            const std::function<void(const std::string&)>& note) {
  const TextModel model = open_model(run.model);
  check_columns_once(model.checkpoint);
  if (o.keep) check_can_keep(run.model);
  const ModelConfig& config = model.checkpoint.config();
  const bool predicts = config.predictor && !config.rotated;
  for (const std::string& kind : o.kinds) {
    if (is_predictor(kind))
      check(predicts,
            "--kinds {}: {} has no block that predicts a token more ({}.*) or one that cannot be run here; "
            "give other kinds",
            kind, run.model, kind);
    else if (!is_high_bits(kind))
      parse_target(kind);
  }
  std::vector<GenerationRequest> requests = read_prompts(o.prompts, {}, model);
  constexpr size_t kFewest = 4;  // Either half needs a greedy and a sampled answer.
  check(requests.size() >= kFewest, "{}: prompts to choose a draft by: expected {} or more, a line each, got {}",
        o.prompts.file, kFewest, requests.size());
  Dataset data;
  if (!o.calibration.empty())
    data = read_dataset(o.calibration, model.tokenizer, model.chat ? &*model.chat : nullptr,
                        {std::min<int64_t>(512, model.checkpoint.config().max_positions), o.tokens});
  RunnerOptions options = runner_options(run);
  int64_t longest = 0;
  for (const GenerationRequest& r : requests) longest = std::max(longest, static_cast<int64_t>(r.prompt.size()));
  options.cache_tokens = kSideBySide * (longest + o.prompts.max_tokens + 2 * kPageTokens);
  options.context = std::min<int64_t>(model.checkpoint.config().max_positions, longest + o.prompts.max_tokens);
  options.max_logit_rows = kSideBySide * kCycle;
  prepare_for_drafts(options, o.kinds, run, model.checkpoint.config().v);
  if (o.kinds.empty()) options.predictor = predicts;
  const auto runner = make_runner(run, model.checkpoint, options);
  const Reading reading = options.mode;
  const std::vector<std::string> tried = kinds_to_try(run, o, *runner);
  note(fmt::format("writing {} answers", requests.size()));
  const std::vector<WrittenAnswer> answers = write_answers(*runner, reading, std::move(requests), o.temperature);
  const std::vector<WrittenAnswer> measured = keep_half(answers, data);
  check(!measured.empty() && !data.sequences.empty(),
        "the model ends its answers to {} at once: there is nothing to measure a draft on", o.prompts.file);
  const WrittenAnswer& amid =
      *std::max_element(measured.begin(), measured.end(),
                        [](const WrittenAnswer& a, const WrittenAnswer& b) { return a.ids.size() < b.ids.size(); });
  std::optional<CopyTuner> tuner;
  if (o.tuning.on) tuner.emplace(run, model, data, o.tuning, o.keep ? draft_folder(run.model) : std::string());
  const std::vector<int32_t> tokens = frequent_tokens(data, model, o.head_tokens);
  std::vector<DraftKind> kinds;
  for (const std::string& name : tried) {
    DraftKind kind;
    kind.name = name;
    note(fmt::format("{}: making and measuring it", name));
    if (!make_kind(run, o, model.checkpoint, *runner, data, tuner ? &*tuner : nullptr, kind)) {
      note(fmt::format("{}: {} are more than allowed", name, bytes_text(kind.bytes)));
      continue;
    }
    std::optional<DraftKind> shorter = with_short_head(model.checkpoint, *runner, kind, tokens);
    const size_t before = kinds.size();
    kinds.push_back(std::move(kind));
    if (shorter && o.bytes > 0 && shorter->bytes > o.bytes)
      note(fmt::format("{}: {} with a head of {} tokens are more than allowed", name, bytes_text(shorter->bytes),
                       tokens.size()));
    else if (shorter)
      kinds.push_back(std::move(*shorter));
    for (DraftKind& made : std::span(kinds).subspan(before))
      made.quality = measure_quality(*runner, reading, *made.runner, made.reading, measured, o.temperature);
  }
  nlohmann::json rows = nlohmann::json::array();
  const DraftKind* best = time_and_choose(*runner, reading, kinds, amid, o.most + 1, o.by_bytes, rows);
  nlohmann::json report = {{"draft", best ? best->draft + "+lookup" : "lookup"},
                           {"kind", best ? best->name : "lookup"},
                           {"by_bytes", o.by_bytes},
                           {"temperature", o.temperature},
                           {"weights_sha256", model.checkpoint.weights_sha256()},
                           {"kinds", rows}};
  if (best && !best->head_tokens.empty()) report["head_tokens"] = best->head_tokens;
  if (o.keep) write_choice(run.model, model.checkpoint, best, report);
  return report;
}

std::string draft_table(const nlohmann::json& report) {
  Table table{"",
              "reads: share of the model's bytes that a guess reads. right: share of guesses that the model would have "
              "chosen itself. speed: of answers beside the model alone, and how many tokens are guessed at once.",
              {"draft", "memory", "reads", "right, greedy", "right, sampled", "speed, greedy", "speed, sampled"},
              {}};
  const nlohmann::json* best = nullptr;
  for (const nlohmann::json& k : report["kinds"]) {
    const auto share = [&](const char* key) { return fmt::format("{:.1f}%", 100 * k[key].get<double>()); };
    const auto speed = [&](const char* how) {
      const auto drafts = k[how]["drafts"].get<int64_t>();
      return drafts == 0 ? std::string("not used")
                         : fmt::format("{:.2f} times, {}", k[how]["speedup"].get<double>(), drafts);
    };
    const auto tokens = k["head_tokens"].get<int64_t>();
    const auto kind = k["kind"].get<std::string>();
    const std::string name = is_high_bits(kind)   ? fmt::format("{} high bits", kind)
                             : is_predictor(kind) ? "the model's predictor"
                                                  : "copy in " + kind;
    table.rows.push_back({tokens > 0 ? fmt::format("{}, {} tokens", name, tokens) : name,
                          bytes_text(k["bytes"].get<int64_t>()), share("bytes_share"), share("greedy_agreement"),
                          share("coupled_agreement"), speed("greedy"), speed("sampled")});
    const bool same_head = tokens == (report.contains("head_tokens") ? std::ssize(report["head_tokens"]) : 0);
    if (report["kind"] == kind && same_head) best = &k;
  }
  std::string text = table.rows.empty() ? "" : to_text(table);
  if (!best)
    return text +
           "No draft of these pays here. --draft auto guesses from the text alone (lookup), which costs nothing.\n";
  const auto times = [&](const char* how) { return (*best)[how]["speedup"].get<double>(); };
  return text + fmt::format(
                    "The fastest is {}, which --draft auto uses: answers come {:.2f} times as fast when greedy, {:.2f} "
                    "times at temperature {:g}{}, and stay the same.\n",
                    report["draft"].get<std::string>(), times("greedy"), times("sampled"),
                    report["temperature"].get<double>(),
                    report["by_bytes"].get<bool>() ? " where memory is all that a step waits for" : "");
}

}  // namespace fidelio::app
