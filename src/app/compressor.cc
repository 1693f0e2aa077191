#include "app/compressor.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "app/self_samples.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/progress.h"
#include "runtime/dataset.h"
#include "sensitivity/gamma.h"

namespace fidelio::app {

namespace {

nlohmann::json to_json(Seconds s) { return {{"wall", s.wall}, {"cpu", s.cpu}}; }

}  // namespace

Compressor::Compressor(const CompressOptions& o, const Ranks& ranks)
    : o_(o), ranks_(ranks), model_(open_model(o.run.model)), pool_(o.run.threads) {
  const ModelConfig& config = model_.checkpoint.config();
  context_ = window_length("--context", o.context, config);
  texts_ = split_texts(o.texts, model_.tokenizer, context_);
  target_.ear = o.ear > 0 ? std::optional(o.ear) : std::nullopt;
  target_.kl = o.kl > 0 ? std::optional(o.kl) : std::nullopt;
  groups_ = groups_of(config, o.grouping == "fused" ? Grouping::fused : Grouping::single, !o.keep_embedding);
  for (const std::string& f : o.formats) formats_.push_back(parse_format(f));
  // What is worth its time: estimates get better with tokens, and tokens get dearer with the model.
  const double scale = 1e8 / static_cast<double>(model_.checkpoint.parameters());
  const auto scaled = [&](int64_t least, int64_t most) {
    return std::clamp(static_cast<int64_t>(scale * static_cast<double>(most)), least, most);
  };
  tokens_ = o.tokens > 0 ? o.tokens : scaled(32768, 131072);
  search_tokens_ = o.search_tokens > 0 ? o.search_tokens : scaled(2048, 4096);
  read_calibration();
}

nlohmann::json Compressor::foresee_memory() {
  nlohmann::json memory;
  const auto foresee = [&](const char* key, const char* whose, const std::vector<MemoryNeed>& needs,
                           int64_t available) {
    nlohmann::json rows = nlohmann::json::array();
    for (const MemoryNeed& need : needs) {
      note(fmt::format("{:<52} {:>10}", need.what, bytes_text(need.bytes)));
      rows.push_back({{"what", need.what}, {"bytes", need.bytes}});
    }
    note(fmt::format("{:<52} {:>10}   of {} available", whose, bytes_text(total(needs)), bytes_text(available)));
    memory[key] = {{"parts", rows}, {"bytes", total(needs)}, {"available_bytes", available}};
    check_memory(needs, available, whose);
  };
  foresee("memory", "memory", memory_needs(size()), available_memory());
  if (on_gpu(o_.run))
    foresee("gpu_memory", "the GPU's memory", gpu_memory_needs(size()), cuda_memory(runner_options(o_.run).gpu).free);
  return memory;
}

nlohmann::json Compressor::dry_run() {
  nlohmann::json report = foresee_memory();
  reference_ = make_runner(o_.run, model_.checkpoint, options(Activations::f32));
  const TimeNeed time = time_need(size(), *reference_, calibration_, pool_);
  const auto phase = [&](const char* what, Seconds s) {
    note(fmt::format("{:<52} {:>8.0f} s   ({:.0f} s of CPU time)", what, s.wall, s.cpu));
  };
  phase("quantising the candidates", time.candidates);
  phase("sensitivities", time.sensitivities);
  phase("search and certificate", time.search);
  phase("time", time.total());
  if (time.search_at_most.wall > time.search.wall) phase("search and certificate, at most", time.search_at_most);
  report["seconds"] = {{"candidates", to_json(time.candidates)},
                       {"sensitivities", to_json(time.sensitivities)},
                       {"search", to_json(time.search)},
                       {"search_at_most", to_json(time.search_at_most)},
                       {"total", to_json(time.total())}};
  return report;
}

nlohmann::json Compressor::run() {
  check_memory(memory_needs(size()), available_memory() / ranks_.on_this_host(), "memory");
  if (on_gpu(o_.run))
    check_memory(gpu_memory_needs(size()), cuda_memory(runner_options(o_.run).gpu).free, "the GPU's memory");
  reference_ = make_runner(o_.run, model_.checkpoint, options(Activations::f32));
  for (LinearId id : linears_of(model_.checkpoint.config())) original_[id] = reference_->linear(id);
  // The first rank begins or finds the journal; the others join it.
  const std::string folder = o_.out + ".journal";
  std::optional<Journal> journal;
  if (ranks_.first()) {
    if (o_.fresh) Journal::remove(folder);
    journal.emplace(folder, job());
    if (journal->resumed()) resume(*journal);
  }
  ranks_.gather({});
  if (!journal) journal.emplace(folder, job());
  page_.watch.lap("reading");
  const CandidateSet candidates(*reference_, model_.checkpoint, calibration_, groups_, formats_, {}, pool_, &*journal,
                                ranks_);
  page_.watch.lap("quantising the candidates");
  const SensitivityTable table = measure_table(candidates, *journal);
  page_.watch.lap("sensitivities");
  if (!ranks_.first()) return nullptr;
  if (!o_.table.empty()) write_file_atomically(o_.table, to_json(table).dump(1) + "\n");
  served_ = make_runner(o_.run, model_.checkpoint, options(parse_activations(o_.run.activations)));
  for (LinearId id : linears_of(model_.checkpoint.config())) served_original_[id] = served_->linear(id);
  const std::vector<Plan> front = pareto_front(table, o_.allocate_by == "kl" ? Cost::kl : Cost::loss);
  note(fmt::format("{} plans on the Pareto front, {:.3f} to {:.3f} bits", front.size(),
                   bits_per_parameter(table, front.front()), bits_per_parameter(table, front.back())));
  const Plan plan = search(table, front, candidates, *journal);
  page_.watch.lap("search and certificate");
  nlohmann::json report = finish(table, plan);
  page_.watch.lap("writing");
  for (const auto& [name, spent] : page_.watch.laps) report["seconds"][name] = to_json(spent);
  if (on_gpu(o_.run)) report["gpu_bytes_highest"] = cuda_memory(runner_options(o_.run).gpu).highest;
  if (!o_.page.empty()) write_page(table, front, plan, report);
  Journal::remove(folder);
  return report;
}

RunnerOptions Compressor::options(Activations mode) const {
  RunnerOptions r = runner_options(o_.run);
  r.mode = mode;
  if (mode == Activations::f32) r.kv = KvFormat::f32;
  r.max_rows = std::max<int64_t>(2048, context_);
  r.cache_tokens = 2 * r.max_rows;
  r.context = context_;
  return r;
}

// Weights are judged alone, at FP32, unless the model will be served with activations that cost as much as weights do.
Activations Compressor::table_mode() const {
  const Activations served = parse_activations(o_.run.activations);
  return is_coarse(served) ? served : Activations::f32;
}

CompressSize Compressor::size() const {
  int64_t trial = 0;
  for (const EvalText& text : texts_.search) trial += static_cast<int64_t>(text.ids.size());
  const RunnerOptions r = options(Activations::f32);
  constexpr int64_t kPrompt = 256;  // tokens, about
  const int64_t answering = o_.questions.file.empty() ? 0 : o_.questions.batch * (o_.questions.max_tokens + kPrompt);
  return {model_.checkpoint,
          groups_,
          formats_,
          calibration_.tokens,
          search_.tokens,
          r.max_rows,
          r.max_logit_rows,
          trial,
          parse_activations(o_.run.activations),
          table_mode(),
          o_.method,
          o_.permutations,
          budget() > 0 ? 0 : o_.max_trials,
          o_.search == "evolve" ? o_.generations : 0,
          ranks_.size(),
          answering,
          on_gpu(o_.run)};
}

// All that decides what OUT will hold. Texts count as the tokens they have become.
std::map<std::string, std::string> Compressor::job() const {
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
  const Questions& q = o_.questions;
  return {
      {"program", FIDELIO_VERSION},
      {"model", model_.checkpoint.sha256()},
      {"texts", texts.hex()},
      {"formats", fmt::format("{}", fmt::join(o_.formats, ","))},
      {"options",
       fmt::format("ear {} kl {} bits {} bytes {} grouping {} embedding {} measured by {} permutations {} "
                   "sensitivity-error {} max-trials {} seed {} context {} activations {} kv {}",
                   o_.ear, o_.kl, o_.bits, o_.bytes, o_.grouping, o_.keep_embedding ? "kept" : "quantised", o_.method,
                   o_.permutations, o_.target_se, o_.max_trials, o_.seed, context_, o_.run.activations, o_.run.kv)},
      {"search", fmt::format("allocate-by {} search {} generations {}", o_.allocate_by, o_.search, o_.generations)},
      {"tasks", q.file.empty()
                    ? std::string("none")
                    : fmt::format("{} accuracy-drop {} calibration-bits {} task {} limit {} max-tokens "
                                  "{} stop {} plain {}",
                                  sha256_file(q.file), o_.accuracy_drop, o_.calibration_bits, fmt::join(q.tasks, ","),
                                  q.limit, q.max_tokens, fmt::join(q.stops, ","), q.plain)},
      {"kernels", reference_->kernel_of({0, Role::q}, Activations::f32)}};
}

// Says what is there already, and removes the unfinished folder that a run killed while it was writing left beside
// OUT.
void Compressor::resume(const Journal& journal) const {
  namespace fs = std::filesystem;
  note(fmt::format("{}.journal: {} stops and {} measurements are there already", o_.out, journal.finished().first,
                   journal.finished().second));
  const fs::path out = fs::absolute(o_.out);
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(out.parent_path())) {
    const std::string name = entry.path().filename().string(), prefix = out.filename().string() + ".";
    if (!name.starts_with(prefix) || !name.ends_with(".tmp")) continue;
    const std::string middle = name.substr(prefix.size(), std::max(prefix.size() + 4, name.size()) - prefix.size() - 4);
    if (!middle.empty() &&
        std::all_of(middle.begin(), middle.end(), [](unsigned char c) { return std::isdigit(c) != 0; }))
      left.push_back(entry.path());
  }
  for (const fs::path& path : left) fs::remove_all(path);
}

void Compressor::note(const std::string& text) const {
  if (!quiet(o_.json) && ranks_.first()) fmt::print("{}\n", text);
  std::fflush(stdout);
}

// The last tenth of every calibration file is kept from the quantisers: sensitivities measured on what GPTQ has seen
// would be too good.
void Compressor::read_calibration() {
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
  const std::span<const std::vector<int32_t>> seen = sequences.first(sequences.size() - kept);
  check(o_.samples <= tokens_, "--calibration-samples {} are some of the --calibration-tokens, of which there are {}",
        o_.samples, tokens_);
  if (o_.samples < tokens_) take(seen, tokens_ - o_.samples, calibration_);
  if (o_.samples > 0)
    for (auto& s : sample_sequences(o_.run, model_.checkpoint, seen, o_.samples, context_, o_.seed)) {
      calibration_.tokens += static_cast<int64_t>(s.size());
      calibration_.sequences.push_back(std::move(s));
    }
  take(sequences.last(kept), search_tokens_, search_);
  calibration_.sha256 = search_.sha256 = all.sha256;
}

void Compressor::restore_reference() {
  for (const auto& [id, weight] : original_) reference_->set_linear(id, weight);
}

// Every format everywhere and, where activations are coarse, what those cost with the source's weights. Dense weights
// see finer activations than codes in that mode (kernels/cpu), so most of the cost is measured with each group's codes,
// as it is when served.
std::vector<MeterResult> Compressor::measure_uniform(Players& players, const CandidateSet& candidates) {
  const auto reset = [this](Game& game) {
    for (const LinearGroup& g : groups_)
      for (LinearId id : g.linears) game.restore(id);
  };
  const int64_t place = players.reserve(static_cast<int64_t>(formats_.size()) + 1);
  std::vector<GameJob> jobs;
  for (size_t f = 0; f < formats_.size(); ++f)
    jobs.push_back({place + static_cast<int64_t>(f), [&, f](Game& game) {
                      for (const CandidateGroup& g : candidates.groups()) assign(game, g, formats_[f]);
                      const MeterResult found = game.measure();
                      reset(game);
                      return std::vector{found};
                    }});
  if (table_mode() != Activations::f32)
    jobs.push_back(
        {place + static_cast<int64_t>(formats_.size()), [](Game& game) { return std::vector{game.measure()}; }});
  std::vector<MeterResult> found;
  for (const std::vector<MeterResult>& one : players.play(jobs)) found.push_back(one.front());
  return found;
}

// Uniform plans first: they give c of 1 - EAR = c sqrt(KL), and say which formats lie so far from the target that no
// plan would use them.
SensitivityTable Compressor::measure_table(const CandidateSet& candidates, Journal& journal) {
  Meter played(*reference_, search_.sequences, pool_, table_mode());
  JournaledGame game(played, journal);
  Players players(game, ranks_);
  EstimateOptions options;
  std::vector<MeterResult> uniform = measure_uniform(players, candidates);
  if (table_mode() != Activations::f32) {
    options.base_kl = uniform.back().kl;
    options.base_loss = uniform.back().loss;
    uniform.pop_back();
    note(fmt::format("activations {} with the source's own dense weights: KL {:.6f}  EAR {:.5f}  (search text)",
                     name_of(table_mode()), options.base_kl, 1 - options.base_loss));
  }
  const int64_t fixed = fixed_bytes(model_.checkpoint, groups_);
  for (size_t f = 0; f < formats_.size(); ++f) {
    note(fmt::format("uniform {:<12} KL {:.6f}  EAR {:.5f}  (search text)", to_string(formats_[f]), uniform[f].kl,
                     1 - uniform[f].loss));
    int64_t bytes = 0, parameters = 0;
    for (const CandidateGroup& g : candidates.groups()) {
      parameters += g.parameters;
      for (const Candidate& c : g.candidates)
        if (c.format == formats_[f]) bytes += c.bytes;
    }
    page_.uniform.push_back({to_string(formats_[f]), 8.0 * static_cast<double>(bytes) / static_cast<double>(parameters),
                             uniform[f].kl, 1 - uniform[f].loss});
  }
  const double c = ear_constant(uniform);
  const double wanted =
      std::min(target_.kl.value_or(1e300), target_.ear ? std::pow((1 - *target_.ear) / c, 2) : 1e300) - options.base_kl;

  // 64 = three bits either way: KL falls four times a bit. What the activations cost is there with every format.
  std::vector<CandidateGroup> useful = candidates.groups();
  for (CandidateGroup& g : useful)
    std::erase_if(g.candidates, [&](const Candidate& candidate) {
      const auto at =
          static_cast<size_t>(std::find(formats_.begin(), formats_.end(), candidate.format) - formats_.begin());
      const double kl = uniform[at].kl - options.base_kl;
      return kl > 64 * wanted || kl < wanted / 64;
    });
  const bool open = budget() > 0 || !o_.questions.file.empty();  // no distance is named
  if (open || useful.front().candidates.empty()) useful = candidates.groups();

  std::unique_ptr<Progress> progress;
  options.method = o_.method;
  options.measured = measured_format(uniform, useful, options.base_kl, wanted);
  options.permutations = o_.permutations;
  options.target_se = o_.target_se;
  options.seed = o_.seed;
  int64_t before = 0;
  Estimation e = estimate(
      players, useful, options,
      [&](LinearId id, double sigma, uint64_t stream, bool flat) {
        return reference_->pack_noisy(model_.checkpoint.linear(id), sigma, stream, flat);
      },
      [&](int64_t done, int64_t total) {
        if (!ranks_.first()) return;
        if (!progress) progress = std::make_unique<Progress>("sensitivity", total);
        progress->advance(done - std::exchange(before, done));
      });
  restore_reference();
  next_place_ = players.reserve(0);
  e.table.activations = name_of(table_mode());
  e.table.ear_constant = c;
  e.table.fixed_bytes = fixed;
  e.table.provenance = nlohmann::json{
      {"source_sha256", model_.checkpoint.sha256()},
      {"text_sha256", search_.sha256},
      {"tokens", search_.tokens},
      {"passes", e.passes},
      {"measured_in", o_.method == "single" ? to_string(options.measured) : std::string("all formats")},
      {"seed", o_.seed}}.dump();
  make_monotone(e.table);
  return e.table;
}

// The format that `single` measures every group in: of those that a plan may use, the one that is nearest to what is
// asked for when given to all groups. What lies near it follows from it best. `uniform`: measurements by format.
FormatSpec Compressor::measured_format(const std::vector<MeterResult>& uniform,
                                       const std::vector<CandidateGroup>& useful, double base_kl, double wanted) const {
  const double bits = budget() > 0
                          ? 8.0 * static_cast<double>(budget()) / static_cast<double>(model_.checkpoint.parameters())
                          : o_.calibration_bits;
  const bool by_size = budget() > 0 || !o_.questions.file.empty();
  FormatSpec nearest;
  double least = std::numeric_limits<double>::infinity();
  for (size_t f = 0; f < formats_.size(); ++f) {
    const auto offers = [&](const CandidateGroup& g) {
      return std::any_of(g.candidates.begin(), g.candidates.end(),
                         [&](const Candidate& c) { return c.format == formats_[f]; });
    };
    if (!std::all_of(useful.begin(), useful.end(), offers)) continue;
    const double distance =
        by_size ? std::abs(page_.uniform[f].bits - bits)
                : std::abs(std::log(std::max(uniform[f].kl - base_kl, 1e-300) / std::max(wanted, 1e-300)));
    if (distance < least) {
      least = distance;
      nearest = formats_[f];
    }
  }
  return nearest;
}

nlohmann::json Compressor::finish(const SensitivityTable& table, const Plan& plan) {
  const std::map<LinearId, FormatSpec> formats = formats_of(table, plan);
  const std::string source_hash = model_.checkpoint.sha256();
  nlohmann::json certificate = make_certificate(target_, *certified_, *served_, looks_, source_hash, o_.texts);
  if (!task_report_.is_null()) certificate["tasks"] = task_report_;
  const nlohmann::json provenance = {
      {"source_sha256", source_hash},
      {"method", "compress"},
      {"calibration_sha256", calibration_.sha256},
      {"calibration_tokens", calibration_.tokens},
      {"calibration_samples", o_.samples},
      {"sensitivity", table.method},
      {"sensitivity_entries", {{"measured", entries(table).first}, {"derived", entries(table).second}}},
      {"sensitivity_tokens", search_.tokens},
      {"sensitivity_activations", table.activations},
      {"allocated_by", o_.allocate_by},
      {"search", o_.search},
      {"seed", o_.seed},
      {"plan", to_json(table, plan)},
      {"certificate", certificate}};
  write_checkpoint(
      o_.out, model_.checkpoint, formats, [&](LinearId id) { return built_.at(id); }, provenance);
  const Checkpoint made = Checkpoint::open(o_.out);
  check(budget() == 0 || made.file_bytes() <= budget(),
        "{} has {} bytes, more than the {} asked for: its header is larger than foreseen; ask for {} bytes less",
        o_.out, made.file_bytes(), budget(), made.file_bytes() - budget());
  return {{"output", o_.out},
          {"file_bytes", made.file_bytes()},
          {"source_file_bytes", model_.checkpoint.file_bytes()},
          {"parameters", made.parameters()},
          {"bits_per_parameter", 8.0 * static_cast<double>(made.file_bytes()) / static_cast<double>(made.parameters())},
          {"plan", to_json(table, plan)},
          {"certificate", certificate}};
}

void Compressor::write_page(const SensitivityTable& table, const std::vector<Plan>& front, const Plan& plan,
                            const nlohmann::json& report) {
  std::vector<GammaRow> gamma;
  const int group = formats_.front().group;
  for (LinearId id : linears_of(model_.checkpoint.config())) {
    const LinearWeight w = model_.checkpoint.linear(id);
    gamma.push_back({to_string(id), gamma_law(decode(w), w.out, w.in, group, kGammaBits)});
    model_.checkpoint.drop(id);
  }
  write_file_atomically(
      o_.page, compress_page({o_.run.model, table, front, plan, page_.uniform, page_.trials, gamma, group, *certified_,
                              o_.search, o_.allocate_by, report, page_.watch.laps}));
}

}  // namespace fidelio::app
