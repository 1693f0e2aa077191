#include "compress/desk.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <set>

#include "compress/self_samples.h"
#include "core/hash.h"
#include "sensitivity/candidates.h"

namespace fidelio {
namespace {

constexpr int64_t kFloorTokens = 2048;  // of every text

std::string tokens_sha256(const Dataset& data) {
  Sha256 hash;
  for (const auto& ids : data.sequences) {
    hash.update(fmt::format("{} ", ids.size()));
    hash.update(std::as_bytes(std::span(ids)));
  }
  return hash.hex();
}

}  // namespace

Desk::Desk(const Job& asked, const World& outside, const Ranks& all)
    : job(asked), world(outside), ranks(all), source(outside.source), pool(asked.serving.threads) {
  texts = split_texts(job.texts, world.tokenizer, job.context);
  for (double ear : job.ear) targets.push_back({ear, {}});
  if (targets.empty()) targets.emplace_back();
  if (job.kl > 0) targets.front().kl = job.kl;
  groups = groups_of(source.config(), job.grouping, !job.keep_embedding);
  // What is worth its time: estimates get better with tokens, and tokens get dearer with the model; those that plans are
  // built on are most of the time that CPUs take, and four times as many are worth 1 to 2% of the KL (docs/results.md).
  const auto scaled = [&](double parameters, int64_t least, int64_t most) {
    const double share = parameters / static_cast<double>(source.parameters());
    return std::clamp(static_cast<int64_t>(share * static_cast<double>(most)), least, most);
  };
  tokens_ = job.tokens > 0 ? job.tokens : scaled(job.on_gpu ? 1e8 : 3e7, 32768, 131072);
  search_tokens_ = job.search_tokens > 0 ? job.search_tokens : scaled(1e8, 2048, 4096);
  read_calibration();
}

void Desk::note(const std::string& text) const {
  if (ranks.first()) world.note(text);
}

RunnerOptions Desk::options(Activations mode) const {
  RunnerOptions r = job.serving;
  r.mode = mode;
  if (mode == Activations::f32) r.kv = KvFormat::f32;
  r.max_rows = std::max<int64_t>(2048, job.context);
  r.cache_tokens = 2 * r.max_rows;
  r.context = job.context;
  return r;
}

// Weights are judged alone, at FP32, unless the model will be served with activations that cost as much as weights do.
Activations Desk::table_mode() const { return is_coarse(job.served()) ? job.served() : Activations::f32; }

CompressSize Desk::size() const {
  int64_t trial = 0;
  for (const EvalText& text : texts.search) trial += static_cast<int64_t>(text.ids.size());
  const RunnerOptions r = options(Activations::f32);
  return {source,
          groups,
          job.formats,
          calibration.tokens,
          search.tokens,
          r.max_rows,
          r.max_logit_rows,
          trial,
          job.served(),
          table_mode(),
          std::string(name_of(job.method)),
          job.permutations,
          budget() > 0 ? 0 : job.max_trials,
          job.search == SearchKind::evolve ? job.generations : 0,
          ranks.size(),
          job.answering_tokens,
          job.on_gpu};
}

int64_t Desk::budget() const {
  if (job.bytes > 0) return job.bytes;
  return static_cast<int64_t>(job.bits * static_cast<double>(source.parameters()) / 8);
}

std::map<LinearId, FormatSpec> Desk::quantised_formats(const SensitivityTable& table, const Plan& plan) const {
  std::map<LinearId, FormatSpec> formats = formats_of(table, plan);
  std::erase_if(formats, [&](const auto& f) { return f.second == source.format(f.first); });
  return formats;
}

// Of the file's header: names, shapes and offsets of the tensors (some 80 characters and the name each), the formats,
// the plan and the certificate. An upper bound.
int64_t Desk::header_bytes(const std::map<LinearId, FormatSpec>& formats) const {
  int64_t bytes = 4096 + 60 * static_cast<int64_t>(groups.size());
  for (LinearId id : linears_of(source.config())) {
    const auto found = formats.find(id);
    const FormatSpec format = found == formats.end() ? source.format(id) : found->second;
    const size_t tensors = 1 + stored_tensors(allocate_weight(format, 1, shape_of(source.config(), id)[1])).size();
    bytes += 60 + static_cast<int64_t>(tensors * (module_name(id).size() + 92));
  }
  for (const auto& [layer, norm] : norms_of(source.config()))
    bytes += static_cast<int64_t>(norm_name(source.config(), layer, norm).size()) + 80;
  return bytes;
}

void Desk::load_reference() {
  reference = world.make_runner(options(Activations::f32));
  for (LinearId id : linears_of(source.config())) original_[id] = reference->linear(id);
}
void Desk::load_served() {
  served = world.make_runner(options(job.served()));
  for (LinearId id : linears_of(source.config())) served_original_[id] = served->linear(id);
}
void Desk::restore_reference() {
  for (const auto& [id, weight] : original_) reference->set_linear(id, weight);
}
void Desk::restore_served() {
  for (const auto& [id, weight] : served_original_) served->set_linear(id, weight);
}

FidelityReport Desk::measure(std::span<const EvalText> on) {
  CompareOptions options;
  options.windows.context = job.context;
  options.candidate_mode = job.served();
  return compare_models(*reference, *served, on, options, pool);
}

// A text counts as the tokens it has become.
std::map<std::string, std::string> Desk::candidates_job() const {
  std::vector<std::string> formats;
  for (const FormatSpec& f : job.formats) formats.push_back(to_string(f));
  return {{"program", FIDELIO_VERSION},
          {"model", source.sha256()},
          {"calibration", tokens_sha256(calibration)},
          {"formats", fmt::format("{}", fmt::join(formats, ","))},
          {"embedding", job.keep_embedding ? "kept" : "quantised"},
          {"kernels", reference->kernel_of({0, Role::q}, Activations::f32)}};
}

std::string Desk::stage(const std::string& what) const {
  return fmt::format("{} text {} grouping {} activations {}", what, tokens_sha256(search), name_of(job.grouping),
                     name_of(table_mode()));
}

// The smallest file that there can be, from sizes alone.
void Desk::check_budget() const {
  if (budget() == 0) return;
  int64_t smallest = fixed_bytes(source, groups);
  std::map<LinearId, FormatSpec> formats;
  for (const LinearGroup& g : groups) {
    int64_t least = std::numeric_limits<int64_t>::max();
    for (const FormatSpec& f : job.formats) {
      int64_t bytes = 0;
      for (LinearId id : g.linears) {
        const Shape shape = shape_of(source.config(), id);
        bytes += stored_bytes(f, shape[0], shape[1]);
      }
      if (bytes >= least) continue;
      least = bytes;
      for (LinearId id : g.linears) formats[id] = f;
    }
    smallest += least;
  }
  smallest += header_bytes(formats);
  check(smallest <= budget(),
        "no plan of these formats fits {} bytes: the smallest takes {}, {:.3f} bits a parameter. Ask for that much, or "
        "offer narrower formats (--formats)",
        budget(), smallest, 8.0 * static_cast<double>(smallest) / static_cast<double>(source.parameters()));
}

// What the serving kernels make of the source's own weights bounds every plan: a target beyond it is refused before
// anything is quantised.
void Desk::check_floor() {
  if (!job.has_target()) return;
  load_served();
  std::vector<EvalText> few = texts.search;
  for (EvalText& text : few) {
    const int64_t most = std::max<int64_t>(4, kFloorTokens / job.context) * job.context;
    text.ids.resize(std::min(text.ids.size(), static_cast<size_t>(most)));
  }
  const Measurement floor = measurement_of(measure(few));
  served.reset();
  served_original_.clear();
  for (const Target& t : targets)
    check(
        !(t.ear && floor.ear.ci95.high < *t.ear) && !(t.kl && floor.kl.ci95.low > *t.kl),
        "no plan can meet this target: the source's own weights through these kernels (activations {}, cache {}) have "
        "EAR {:.5f} [{:.5f}, {:.5f}], KL {:.6f}. Ask for less, or serve more precisely (--activations f32, --kv f32)",
        name_of(job.served()), name_of(options(job.served()).kv), floor.ear.value, floor.ear.ci95.low,
        floor.ear.ci95.high, floor.kl.value);
}

// A source that is quantised already: its errors are not in the certificate, which compares with the source as it is.
void Desk::warn_of_codes() const {
  std::set<std::string> codes;
  for (LinearId id : linears_of(source.config()))
    if (const FormatSpec f = source.format(id); !f.is_dense()) codes.insert(to_string(f));
  if (!codes.empty())
    note(
        fmt::format("warning: {} is quantised already ({}). What it has lost is lost and in no certificate; start from "
                    "the original weights where they can be had",
                    job.model, fmt::join(codes, ", ")));
}

// The last tenth of every calibration file is kept from the quantisers: sensitivities measured on what GPTQ has seen
// would be too good.
void Desk::read_calibration() {
  const Dataset all = read_dataset(job.calibration, world.tokenizer, world.chat, {job.context, 0});
  const size_t kept = std::max<size_t>(all.sequences.size() / 10, 1);
  check(all.sequences.size() > kept, "the calibration text has {} sequences of {} tokens: too little",
        all.sequences.size(), job.context);
  const auto take = [](std::span<const std::vector<int32_t>> from, int64_t tokens, Dataset& to) {
    to.sequences = spread_evenly(from, tokens);
    for (const auto& s : to.sequences) to.tokens += static_cast<int64_t>(s.size());
  };
  const std::span<const std::vector<int32_t>> sequences(all.sequences);
  const std::span<const std::vector<int32_t>> seen = sequences.first(sequences.size() - kept);
  check(job.samples <= tokens_, "--calibration-samples {} are some of the --calibration-tokens, of which there are {}",
        job.samples, tokens_);
  if (job.samples < tokens_) take(seen, tokens_ - job.samples, calibration);
  if (job.samples > 0)
    for (auto& s : sample_sequences(world.make_runner, job.serving, seen, job.samples, job.context, job.seed)) {
      calibration.tokens += static_cast<int64_t>(s.size());
      calibration.sequences.push_back(std::move(s));
    }
  take(sequences.last(kept), search_tokens_, search);
  calibration.sha256 = search.sha256 = all.sha256;
}

}  // namespace fidelio
