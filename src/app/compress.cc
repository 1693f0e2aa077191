#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "alloc/search.h"
#include "app/certificate.h"
#include "app/common.h"
#include "app/compress_page.h"
#include "app/preflight.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/progress.h"
#include "model/dataset.h"
#include "sensitivity/candidates.h"
#include "sensitivity/journal.h"

namespace fidelio::app {
namespace {

struct Compress {
  RunOptions run;
  double ear = 0, kl = 0, bits = 0;
  int64_t bytes = 0;
  std::string out, json, table, page, profile, method = "single";
  std::vector<std::string> calibration, texts, formats;
  std::string grouping = "fused";
  bool keep_embedding = false, fresh = false, dry_run = false;
  int64_t tokens = 131072, search_tokens = 4096, context = 512;
  int permutations = 8, max_trials = 6;
  double target_se = 0;
  uint64_t seed = 0;
};

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

void settle_defaults(Compress& o) {
  if (o.calibration.empty()) o.calibration = {bundled_text("docs-calibration.txt")};
  if (o.texts.empty()) o.texts = {bundled_text("docs-heldout.txt")};
  if (o.formats.empty()) o.formats = o.profile == "vllm" ? kVllmFormats : kDefaultFormats;
  while (o.out.size() > 1 && o.out.back() == '/') o.out.pop_back();
}

// Everything a profile asks of a plan is asked of what the plan may choose from.
void apply_profile(Compress& o) {
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

// Whole seconds since the last call, under the name of what was done.
class Stopwatch {
 public:
  void lap(const std::string& name) {
    const auto now = std::chrono::steady_clock::now();
    laps.emplace_back(name, std::chrono::duration<double>(now - last_).count());
    last_ = now;
  }
  std::vector<std::pair<std::string, double>> laps;

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

class Compressor {
 public:
  explicit Compressor(const Compress& o) : o_(o), model_(open_model(o.run.model)), pool_(o.run.threads) {
    const ModelConfig& config = model_.checkpoint.config();
    context_ = std::min<int64_t>(o.context, config.max_positions);
    texts_ = split_texts(o.texts, model_.tokenizer, context_);
    target_.ear = o.ear > 0 ? std::optional(o.ear) : std::nullopt;
    target_.kl = o.kl > 0 ? std::optional(o.kl) : std::nullopt;
    groups_ = groups_of(config, o.grouping == "fused" ? Grouping::fused : Grouping::single, !o.keep_embedding);
    for (const std::string& f : o.formats) formats_.push_back(parse_format(f));
    read_calibration();
  }

  // Memory before anything large is made; then, for a dry run, time.
  nlohmann::json dry_run() {
    const std::vector<MemoryNeed> needs = memory_needs(size());
    const int64_t available = available_memory();
    nlohmann::json memory = nlohmann::json::array();
    for (const MemoryNeed& need : needs) {
      note(fmt::format("{:<52} {:>10}", need.what, bytes_text(need.bytes)));
      memory.push_back({{"what", need.what}, {"bytes", need.bytes}});
    }
    note(fmt::format("{:<52} {:>10}   of {} available", "memory", bytes_text(total(needs)), bytes_text(available)));
    check_memory(needs, available);
    reference_ = make_runner(o_.run, model_.checkpoint, options(Activations::f32));
    const TimeNeed time = time_need(size(), *reference_, calibration_, pool_);
    note(fmt::format("{:<52} {:>8.0f} s", "quantising the candidates", time.candidates));
    note(fmt::format("{:<52} {:>8.0f} s   at most", "sensitivities", time.sensitivities));
    note(fmt::format("{:<52} {:>8.0f} s   at most", "search and certificate", time.search));
    note(fmt::format("{:<52} {:>8.0f} s", "time", time.total()));
    return {{"memory", memory},
            {"memory_bytes", total(needs)},
            {"available_bytes", available},
            {"seconds",
             {{"candidates", time.candidates},
              {"sensitivities", time.sensitivities},
              {"search", time.search},
              {"total", time.total()}}}};
  }

  nlohmann::json run() {
    check_memory(memory_needs(size()), available_memory());
    reference_ = make_runner(o_.run, model_.checkpoint, options(Activations::f32));
    const std::string folder = o_.out + ".journal";
    if (o_.fresh) Journal::remove(folder);
    Journal journal(folder, job());
    if (journal.resumed()) resume(journal);
    page_.watch.lap("reading");
    const CandidateSet candidates(*reference_, model_.checkpoint, calibration_, groups_, formats_, {}, pool_, &journal);
    page_.watch.lap("quantising the candidates");
    SensitivityTable table = measure_table(candidates, journal);
    page_.watch.lap("sensitivities");
    if (!o_.table.empty()) write_file_atomically(o_.table, to_json(table).dump(1) + "\n");
    served_ = make_runner(o_.run, model_.checkpoint, options(parse_activations(o_.run.activations)));
    const std::vector<Plan> front = pareto_front(table, Cost::kl);
    note(fmt::format("{} plans on the Pareto front, {:.3f} to {:.3f} bits", front.size(),
                     bits_per_parameter(table, front.front()), bits_per_parameter(table, front.back())));
    const Plan plan = budget() > 0 ? within_budget(table, front, candidates) : choose(table, front, candidates);
    page_.watch.lap("search and certificate");
    nlohmann::json report = finish(table, plan, candidates);
    page_.watch.lap("writing");
    if (!o_.page.empty())
      write_file_atomically(o_.page, compress_page({o_.run.model, table, front, plan, page_.uniform, page_.trials,
                                                    report, page_.watch.laps}));
    Journal::remove(folder);
    return report;
  }

 private:
  RunnerOptions options(Activations mode) const {
    RunnerOptions r = runner_options(o_.run);
    r.mode = mode;
    if (mode == Activations::f32) r.kv = KvFormat::f32;
    r.max_rows = std::max<int64_t>(2048, context_);
    r.cache_tokens = 2 * r.max_rows;
    return r;
  }

  CompressSize size() const {
    int64_t trial = 0;
    for (const EvalText& text : texts_.search) trial += static_cast<int64_t>(text.ids.size());
    const RunnerOptions r = options(Activations::f32);
    return {model_.checkpoint, groups_, formats_,  calibration_.tokens, search_.tokens, r.max_rows,
            r.max_logit_rows,  trial,   o_.method, o_.permutations,     o_.max_trials};
  }

  // All that decides what OUT will hold. Texts count as the tokens they have become.
  std::map<std::string, std::string> job() const {
    Sha256 texts;
    const auto add = [&](const std::vector<int32_t>& ids) {
      texts.update(fmt::format("{} ", ids.size()));
      texts.update(std::as_bytes(std::span(ids)));
    };
    for (const Dataset* data : {&calibration_, &search_})
      for (const auto& ids : data->sequences) add(ids);
    for (size_t i = 0; i < texts_.search.size(); ++i) {
      add(texts_.search[i].ids);
      add(texts_.certify[i].ids);
    }
    return {{"program", FIDELIO_VERSION},
            {"model", model_.checkpoint.sha256()},
            {"texts", texts.hex()},
            {"formats", fmt::format("{}", fmt::join(o_.formats, ","))},
            {"options", fmt::format("ear {} kl {} bits {} bytes {} grouping {} embedding {} method {} permutations {} "
                                    "sensitivity-error {} max-trials {} seed {} context {} activations {} kv {}",
                                    o_.ear, o_.kl, o_.bits, o_.bytes, o_.grouping,
                                    o_.keep_embedding ? "kept" : "quantised", o_.method, o_.permutations, o_.target_se,
                                    o_.max_trials, o_.seed, context_, o_.run.activations, o_.run.kv)},
            {"kernels", reference_->kernel_of({0, Role::q}, Activations::f32)}};
  }

  // Says what is there already, and removes the unfinished folder that a run killed while it was writing left beside
  // OUT.
  void resume(const Journal& journal) const {
    namespace fs = std::filesystem;
    note(fmt::format("{}.journal: {} stops and {} measurements are there already", o_.out, journal.finished().first,
                     journal.finished().second));
    const fs::path out = fs::absolute(o_.out);
    std::vector<fs::path> left;
    for (const auto& entry : fs::directory_iterator(out.parent_path())) {
      const std::string name = entry.path().filename().string(), prefix = out.filename().string() + ".";
      if (!name.starts_with(prefix) || !name.ends_with(".tmp")) continue;
      const std::string middle =
          name.substr(prefix.size(), std::max(prefix.size() + 4, name.size()) - prefix.size() - 4);
      if (!middle.empty() &&
          std::all_of(middle.begin(), middle.end(), [](unsigned char c) { return std::isdigit(c) != 0; }))
        left.push_back(entry.path());
    }
    for (const fs::path& path : left) fs::remove_all(path);
  }

  void note(const std::string& text) const {
    if (!quiet(o_.json)) fmt::print("{}\n", text);
    std::fflush(stdout);
  }

  // The last tenth of every calibration file is kept from the quantisers: sensitivities measured on what GPTQ has seen
  // would be too good.
  void read_calibration() {
    const Dataset all =
        read_dataset(o_.calibration, model_.tokenizer, model_.chat ? &*model_.chat : nullptr, {context_, 0});
    const size_t kept = std::max<size_t>(all.sequences.size() / 10, 1);
    check(all.sequences.size() > kept, "the calibration text has {} sequences of {} tokens: too little",
          all.sequences.size(), context_);
    const auto take = [](std::span<const std::vector<int32_t>> from, int64_t tokens, Dataset& to) {
      to.sequences = spread_evenly(from, tokens);
      for (const auto& s : to.sequences) to.tokens += static_cast<int64_t>(s.size());
    };
    const std::span<const std::vector<int32_t>> sequences(all.sequences);
    take(sequences.first(sequences.size() - kept), o_.tokens, calibration_);
    take(sequences.last(kept), o_.search_tokens, search_);
    calibration_.sha256 = search_.sha256 = all.sha256;
  }

  // Uniform plans first: they give c of 1 - EAR = c sqrt(KL), and say which formats lie so far from the target that no
  // plan would use them.
  SensitivityTable measure_table(const CandidateSet& candidates, Journal& journal) {
    Meter played(*reference_, search_.sequences, pool_);
    JournaledGame meter(played, journal);
    std::vector<MeterResult> uniform;
    const int64_t fixed = fixed_bytes(model_.checkpoint, groups_);
    for (const FormatSpec& format : formats_) {
      for (const CandidateGroup& g : candidates.groups())
        for (const Candidate& c : g.candidates)
          if (c.format == format)
            for (const auto& [id, weight] : c.weights) meter.assign(id, weight);
      uniform.push_back(meter.measure());
      note(fmt::format("uniform {:<12} KL {:.6f}  EAR {:.5f}  (search text)", to_string(format), uniform.back().kl,
                       1 - uniform.back().loss));
      int64_t bytes = fixed, parameters = 0;
      for (const CandidateGroup& g : candidates.groups()) {
        parameters += g.parameters;
        for (const Candidate& c : g.candidates)
          if (c.format == format) bytes += c.bytes;
      }
      page_.uniform.push_back({to_string(format),
                               8.0 * static_cast<double>(bytes - fixed) / static_cast<double>(parameters),
                               uniform.back().kl, 1 - uniform.back().loss});
    }
    for (const LinearGroup& g : groups_)
      for (LinearId id : g.linears) meter.restore(id);
    const double c = ear_constant(uniform);
    const double wanted =
        std::min(target_.kl.value_or(1e300), target_.ear ? std::pow((1 - *target_.ear) / c, 2) : 1e300);

    // 64 = three bits either way: KL falls four times a bit.
    std::vector<CandidateGroup> useful = candidates.groups();
    for (CandidateGroup& g : useful)
      std::erase_if(g.candidates, [&](const Candidate& candidate) {
        const auto at =
            static_cast<size_t>(std::find(formats_.begin(), formats_.end(), candidate.format) - formats_.begin());
        return uniform[at].kl > 64 * wanted || uniform[at].kl < wanted / 64;
      });
    if (budget() > 0 || useful.front().candidates.empty()) useful = candidates.groups();

    std::unique_ptr<Progress> progress;
    EstimateOptions options;
    options.method = o_.method;
    options.permutations = o_.permutations;
    options.target_se = o_.target_se;
    options.seed = o_.seed;
    int64_t before = 0;
    Estimation e = estimate(
        meter, useful, options,
        [&](LinearId id, double sigma, uint64_t stream, bool flat) {
          return reference_->pack(noisy_weight(model_.checkpoint.linear(id), sigma, stream, flat));
        },
        [&](int64_t done, int64_t total) {
          if (!progress) progress = std::make_unique<Progress>("sensitivity", total);
          progress->advance(done - std::exchange(before, done));
        });
    e.table.ear_constant = c;
    e.table.fixed_bytes = fixed;
    e.table.provenance = nlohmann::json{
        {"source_sha256", model_.checkpoint.sha256()},
        {"text_sha256", search_.sha256},
        {"tokens", search_.tokens},
        {"passes", e.passes},
        {"seed", o_.seed}}.dump();
    make_monotone(e.table);
    return e.table;
  }

  void serve(const SensitivityTable& table, const Plan& plan, const CandidateSet& candidates) {
    for (size_t g = 0; g < table.groups.size(); ++g) {
      const FormatSpec& format = table.groups[g].options[static_cast<size_t>(plan.choice[g])].format;
      for (const Candidate& c : candidates.groups()[g].candidates)
        if (c.format == format)
          for (const auto& [id, weight] : c.weights) served_->set_linear(id, weight);
    }
  }

  FidelityReport measure(std::span<const EvalText> texts) {
    CompareOptions options;
    options.windows.context = context_;
    options.candidate_mode = parse_activations(o_.run.activations);
    return compare_models(*reference_, *served_, texts, options, pool_);
  }

  // Searches on the even windows; the plan found is then looked at on the odd ones. If it fails there, the target is
  // raised by what was missing and the search goes on; every look is counted in the certificate.
  Plan choose(const SensitivityTable& table, const std::vector<Plan>& front, const CandidateSet& candidates) {
    Target aim = target_;
    for (;;) {
      const SearchResult found = search_to_target(table, front, aim, o_.max_trials, [&](const Plan& plan) {
        serve(table, plan, candidates);
        const FidelityReport report = measure(texts_.search);
        note(fmt::format("trial {:.3f} bits: EAR {:.5f} [{:.5f}, {:.5f}], KL {:.6f}, predicted EAR {:.5f}",
                         bits_per_parameter(table, plan), report.ear().value, report.ear().ci95.low,
                         report.ear().ci95.high, report.kl().value, predicted_ear(table, plan, 1)));
        page_.trials.push_back(
            {bits_per_parameter(table, plan), report.kl().value, report.ear(), predicted_ear(table, plan, 1)});
        return measurement_of(report);
      });
      check(found.best >= 0,
            "no plan of these formats meets the target; the widest measured has EAR {:.5f}. Offer wider formats "
            "(--formats) or lower the target",
            found.trials.back().measured.ear.value);
      const Plan& plan = found.trials[static_cast<size_t>(found.best)].plan;
      serve(table, plan, candidates);
      certified_ = measure(texts_.certify);
      ++looks_;
      const Measurement m = measurement_of(*certified_);
      note(fmt::format("look {} on text the search has not seen: EAR {:.5f} [{:.5f}, {:.5f}]", looks_, m.ear.value,
                       m.ear.ci95.low, m.ear.ci95.high));
      if (meets(m, target_)) return plan;
      check(looks_ < 5 && plan.bytes < front.back().bytes,
            "the plan that met the target on the search text does not on fresh text (EAR {:.5f}, lower bound {:.5f}), "
            "after {} looks",
            m.ear.value, m.ear.ci95.low, looks_);
      if (aim.ear) *aim.ear += std::max(*target_.ear - m.ear.ci95.low, 0.05 * (1 - *target_.ear));
      if (aim.kl) *aim.kl *= std::min(*target_.kl / m.kl.ci95.high, 0.95);
    }
  }

  // Bytes that all files may take, 0 without a budget.
  int64_t budget() const {
    if (o_.bytes > 0) return o_.bytes;
    return static_cast<int64_t>(o_.bits * static_cast<double>(model_.checkpoint.parameters()) / 8);
  }

  // Of the file's header: names, shapes and offsets of the tensors (some 80 characters and the name each), the formats,
  // the plan and the certificate. An upper bound.
  int64_t header_bytes(const SensitivityTable& table, const Plan& plan, const CandidateSet& candidates) const {
    int64_t bytes = 4096 + 60 * static_cast<int64_t>(table.groups.size());
    const std::map<LinearId, FormatSpec> formats = formats_of(table, plan);
    for (LinearId id : linears_of(model_.checkpoint.config())) {
      const auto found = formats.find(id);
      const size_t tensors = found == formats.end() ? 2 : stored_tensors(candidates.weight(id, found->second)).size();
      bytes += 60 + static_cast<int64_t>(tensors * (module_name(id).size() + 92));
    }
    for (const auto& [layer, norm] : norms_of(model_.checkpoint.config()))
      bytes += static_cast<int64_t>(norm_name(layer, norm).size()) + 80;
    return bytes;
  }

  // The best fidelity within a size: one plan, looked at once.
  Plan within_budget(const SensitivityTable& table, const std::vector<Plan>& front, const CandidateSet& candidates) {
    const auto fits = [&](const Plan& p) { return p.bytes + header_bytes(table, p, candidates) <= budget(); };
    const auto plan = std::find_if(front.rbegin(), front.rend(), fits);
    check(plan != front.rend(),
          "no plan of these formats fits {} bytes; the smallest takes {}. Offer narrower formats (--formats)", budget(),
          front.front().bytes + header_bytes(table, front.front(), candidates));
    serve(table, *plan, candidates);
    certified_ = measure(texts_.certify);
    looks_ = 1;
    const Measurement m = measurement_of(*certified_);
    note(fmt::format("{:.3f} bits: EAR {:.5f} [{:.5f}, {:.5f}], KL {:.6f}", bits_per_parameter(table, *plan),
                     m.ear.value, m.ear.ci95.low, m.ear.ci95.high, m.kl.value));
    return *plan;
  }

  nlohmann::json finish(const SensitivityTable& table, const Plan& plan, const CandidateSet& candidates) {
    const std::map<LinearId, FormatSpec> formats = formats_of(table, plan);
    const std::string source_hash = model_.checkpoint.sha256();
    const nlohmann::json certificate = make_certificate(target_, *certified_, *served_, looks_, source_hash, o_.texts);
    const nlohmann::json provenance = {{"source_sha256", source_hash},
                                       {"method", "compress"},
                                       {"calibration_sha256", calibration_.sha256},
                                       {"calibration_tokens", calibration_.tokens},
                                       {"sensitivity", table.method},
                                       {"seed", o_.seed},
                                       {"plan", to_json(table, plan)},
                                       {"certificate", certificate}};
    write_checkpoint(
        o_.out, model_.checkpoint, formats, [&](LinearId id) { return candidates.weight(id, formats.at(id)); },
        provenance);
    const Checkpoint made = Checkpoint::open(o_.out);
    check(budget() == 0 || made.file_bytes() <= budget(),
          "{} has {} bytes, more than the {} asked for: its header is larger than foreseen; ask for {} bytes less",
          o_.out, made.file_bytes(), budget(), made.file_bytes() - budget());
    return {
        {"output", o_.out},
        {"file_bytes", made.file_bytes()},
        {"source_file_bytes", model_.checkpoint.file_bytes()},
        {"parameters", made.parameters()},
        {"bits_per_parameter", 8.0 * static_cast<double>(made.file_bytes()) / static_cast<double>(made.parameters())},
        {"plan", to_json(table, plan)},
        {"certificate", certificate}};
  }

  const Compress& o_;
  TextModel model_;
  ThreadPool pool_;
  int64_t context_ = 0;
  SplitTexts texts_;
  Target target_;
  std::vector<LinearGroup> groups_;
  std::vector<FormatSpec> formats_;
  Dataset calibration_, search_;
  std::unique_ptr<Runner> reference_, served_;
  std::optional<FidelityReport> certified_;
  int looks_ = 0;
  struct {
    std::vector<UniformPoint> uniform;
    std::vector<TrialPoint> trials;
    Stopwatch watch;
  } page_;  // what the report tells beside the results
};

void compress(Compress o) {
  check((o.ear > 0 || o.kl > 0) + (o.bits > 0) + (o.bytes > 0) == 1,
        "compress: give a target, --ear X or --kl X, or a size, --bits B or --bytes N");
  check(o.grouping == "fused" || o.grouping == "single", "--grouping {}: expected fused or single", o.grouping);
  check(!std::filesystem::exists(o.out), "{} exists already; choose another output folder or remove it", o.out);
  settle_defaults(o);
  apply_profile(o);
  if (o.dry_run) return write_json(o.json, Compressor(o).dry_run());
  const nlohmann::json report = Compressor(o).run();
  write_json(o.json, report);
  if (quiet(o.json)) return;
  const auto& ear = report["certificate"]["ear"];
  fmt::print("{}: {} -> {}, {:.3f} bits/parameter; certified EAR {:.5f} [{:.5f}, {:.5f}] on {} tokens of unseen text\n",
             o.out, bytes_text(report["source_file_bytes"]), bytes_text(report["file_bytes"]),
             report["bits_per_parameter"].get<double>(), ear["value"].get<double>(), ear["ci95"][0].get<double>(),
             ear["ci95"][1].get<double>(), report["certificate"]["tokens"].get<int64_t>());
}

}  // namespace

void add_compress(CLI::App& app) {
  auto o = std::make_shared<Compress>();
  CLI::App* verb = app.add_subcommand(
      "compress", "Find the smallest model that has a fidelity, and certify it on text the search has not seen");
  verb->footer("Example:\n  fidelio compress models/quill-26m --ear 0.99 -o quill-99");
  add_model(*verb, o->run);
  verb->add_option("--ear", o->ear, "Expected acceptance rate to reach: the lower confidence bound on unseen text")
      ->check(CLI::Range(0.0, 1.0));
  verb->add_option("--kl", o->kl, "KL in nats a token to stay below: the upper confidence bound")
      ->check(CLI::PositiveNumber);
  verb->add_option("--bits", o->bits,
                   "Instead of a target: the best fidelity within so many bits a parameter, of the whole file")
      ->check(CLI::PositiveNumber);
  verb->add_option("--bytes", o->bytes,
                   "Instead of a target: the best fidelity within so many bytes, of the whole file")
      ->check(CLI::PositiveNumber);
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
  verb->add_option("--method", o->method, "How sensitivities are measured: single, linear, shapley, unified");
  verb->add_option("--permutations", o->permutations, "Permutations of shapley and unified")
      ->check(CLI::Range(2, 1 << 20));
  verb->add_option("--sensitivity-error", o->target_se,
                   "Stop permutations when their standard errors are below this share of the total; 0: use them all")
      ->check(CLI::Range(0.0, 1.0));
  verb->add_option("--calibration", o->calibration,
                   "Calibration text (default: the documentation text that comes with fidelio); may be repeated");
  verb->add_option(
      "--text", o->texts,
      "Text to search on and certify with (default: the held-out text that comes with fidelio); may be repeated");
  verb->add_option("--calibration-tokens", o->tokens, "Tokens the quantisers see")->check(CLI::PositiveNumber);
  verb->add_option("--search-tokens", o->search_tokens, "Tokens sensitivities are measured on")
      ->check(CLI::PositiveNumber);
  verb->add_option("--context", o->context, "Length of the windows of all texts")->check(CLI::Range(16, 1 << 20));
  verb->add_option("--max-trials", o->max_trials, "Plans measured before giving up")->check(CLI::PositiveNumber);
  verb->add_option("--seed", o->seed, "Of noise and permutations");
  verb->add_flag("--dry-run", o->dry_run, "Say what memory and time this would take, and stop");
  verb->add_flag("--fresh", o->fresh, "Begin anew even if OUTPUT.journal holds the work of a run that was interrupted");
  verb->add_option("--report", o->page, "Write a page about the plan to this HTML file");
  verb->add_option("--table", o->table, "Write the sensitivity table to this JSON file");
  add_run_options(*verb, o->run);
  add_json(*verb, o->json);
  verb->callback([o] { compress(*o); });
}

}  // namespace fidelio::app
