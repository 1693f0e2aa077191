#include "compress/desk.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "compress/certificate/dealt.h"
#include "compress/self_samples.h"
#include "core/hash.h"
#include "quant/quantize_model.h"
#include "quant/vectors/shared_codebooks.h"
#include "runtime/texts/words.h"
#include "sensitivity/candidates.h"

namespace fidelio {
namespace {

constexpr int64_t kFloorWindows = 8;  // of every domain, to see what the kernels themselves cost
// Every plan that is tried runs through so many windows of all domains together. A certificate of fewer windows wants no
// more text for trying than it has itself, down to what still shows how documents differ.
constexpr int64_t kLeastAdjustmentWindows = 16, kAdjustmentWindows = 64;
constexpr size_t kMostNamed = 2000;  // documents that were left out, in a certificate

}  // namespace

Desk::Desk(const Job& asked, const World& outside, const Ranks& all, OwnAnswers own_answers)
    : job(asked), world(outside), ranks(all), source(outside.source), pool(asked.serving.threads) {
  for (double ear : job.ear) targets.push_back({.ear = ear, .kl = {}, .top1 = {}});
  if (targets.empty()) targets.emplace_back();
  if (job.kl > 0) targets.front().kl = job.kl;
  if (job.top1 > 0) targets.front().top1 = job.top1;
  groups = groups_of(source.config(), job.grouping, !job.keep_embedding, rules_of(job.consumer).fused);
  tokens_ = job.tokens > 0 ? job.tokens : calibration_tokens_for(source.parameters(), job.on_gpu);
  search_tokens_ = job.search_tokens > 0 ? job.search_tokens : search_tokens_for(source.parameters(), job.on_gpu);
  read_texts(own_answers);
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
  const RunnerOptions r = options(Activations::f32);
  return {source,
          groups,
          job.formats,
          calibration.tokens,
          search.tokens,
          r.max_rows,
          r.max_logit_rows,
          adjustment.tokens,
          certificate.tokens,
          job.served(),
          table_mode(),
          job.search == SearchKind::evolve ? "none" : std::string(name_of(job.method)),
          job.permutations,
          budget() > 0 || job.rate_alone() ? 0 : job.max_trials,
          job.most_generations(),
          ranks.size(),
          job.answering_tokens,
          budget(),
          &codebooks,
          job.on_gpu};
}

int64_t Desk::budget() const {
  if (job.bytes > 0 || job.bits == 0) return job.bytes;
  // A size below a byte is not none, and one beyond all files is as good as any.
  constexpr double kMost = 0x1p62;
  return static_cast<int64_t>(std::clamp(job.bits * static_cast<double>(source.parameters()) / 8, 1.0, kMost));
}

std::map<LinearId, FormatSpec> Desk::quantised_formats(const SensitivityTable& table, const Plan& plan) const {
  std::map<LinearId, FormatSpec> formats = formats_of(table, plan);
  std::erase_if(formats, [&](const auto& f) { return f.second == source.format(f.first); });
  return formats;
}

// An upper bound of the file's header: names, shapes, offsets and hashes of the tensors (some 100 characters and the name
// each), hashes of files, the formats, the plan and the certificate.
int64_t Desk::header_bytes(const std::map<LinearId, FormatSpec>& formats) const {
  // Of a certificate: its own words, a name of each document and a row of each domain.
  // Samples that plans are tuned on are not written yet: a hash of each, and at most as many shingles as there are.
  const int64_t record = record_bytes_, samples = job.tune ? 64 + job.tune_tokens / job.context : 0;
  int64_t bytes = 8192 + 4096 + record + (job.tune ? record + 20 * samples : 0) +
                  60 * static_cast<int64_t>(groups.size()) + 48 * static_cast<int64_t>(certificate.documents.size()) +
                  1024 * static_cast<int64_t>(certificate.domains().size());
  bytes += 18 * static_cast<int64_t>(dealt.left_out.size());
  for (const std::string& text : job.texts) bytes += 2 * static_cast<int64_t>(text.size()) + 40;
  for (LinearId id : linears_of(source.config())) {
    const auto found = formats.find(id);
    const FormatSpec format = found == formats.end() ? source.format(id) : found->second;
    const size_t tensors = 1 + stored_tensors(allocate_weight(format, 1, shape_of(source.config(), id)[1])).size();
    bytes += 60 + static_cast<int64_t>(tensors * (module_name(id).size() + 108));
  }
  for (const auto& [layer, norm] : norms_of(source.config()))
    bytes += static_cast<int64_t>(norm_name(source.config(), layer, norm).size()) + 96;
  for (const std::string& router : router_names(source.config())) bytes += static_cast<int64_t>(router.size()) + 116;
  return bytes;
}

void Desk::load_reference() {
  reference = world.make_runner(options(Activations::f32));
  codebooks = shared_codebooks(source, job.formats, pool);
  for (LinearId id : linears_of(source.config())) original_[id] = reference->linear(id);
}
void Desk::load_served() {
  restore_reference();
  served = reference->make_sibling(source, options(job.served()));
}
void Desk::restore_reference() {
  for (const auto& [id, weight] : original_) reference->set_linear(id, weight);
}
void Desk::restore_served() {
  for (const auto& [id, weight] : original_) served->set_linear(id, weight);
}

FidelityReport Desk::measure(const TextSet& on, KeptStreams* kept, bool as_sampled) {
  CompareOptions options;
  options.windows.context = job.context;
  options.candidate_mode = job.served();
  if (as_sampled) options.sampling = recommended();
  return compare_models(*reference, *served, on.texts, options, pool, {}, kept);
}
FidelityReport Desk::measure_adjustment() {
  const auto part = time.part(adjustment_streams_.complete() ? "trials" : "trials, with the source's own pass");
  return measure(adjustment, &adjustment_streams_);
}
FidelityReport Desk::measure_certificate(bool as_sampled) {
  const auto part = time.part(as_sampled                        ? "the certificate's figures"
                              : certificate_streams_.complete() ? "tests"
                                                                : "tests, with the source's own pass");
  return measure(certificate, &certificate_streams_, as_sampled);
}
std::optional<SamplingOptions> Desk::recommended() const {
  return recommended_sampling(GenerationDefaults::load(source.texts()));
}

WholeAnswers Desk::measure_answers() {
  const auto part = time.part("whole answers");
  return fidelio::measure_answers(*reference, *served,
                                  answer_prompts(world.tokenizer, world.chat, certificate, job.answers),
                                  {.candidate_mode = job.served(), .stop_ids = stop_ids_of(source, world.tokenizer)});
}

// A text counts as the tokens it has become.
std::map<std::string, std::string> Desk::candidates_job() const {
  std::vector<std::string> formats;
  for (const FormatSpec& f : job.formats) formats.push_back(to_string(f));
  return {{"program", FIDELIO_VERSION},
          {"model", source.sha256()},
          {"calibration", sequences_sha256(calibration)},
          {"formats", fmt::format("{}", fmt::join(formats, ","))},
          {"embedding", job.keep_embedding ? "kept" : "quantised"},
          {"kernels", reference->kernel_of({0, Role::q}, Activations::f32)},
          {"files", "with SHA-256"}};
}

std::string Desk::stage(const std::string& what) const {
  return fmt::format("{} text {} grouping {} activations {}", what, sequences_sha256(search), name_of(job.grouping),
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
  std::map<std::string, int64_t> codebooks;
  for (const auto& [id, f] : formats) codebooks[shared_name(f)] = shared_bytes(f);
  for (const auto& [name, bytes] : codebooks) smallest += bytes;
  smallest += header_bytes(formats);
  check(smallest <= budget(),
        "no plan of these formats fits {} bytes: the smallest takes {}, {:.3f} bits a parameter. Ask for that much, or "
        "offer narrower formats (--formats)",
        budget(), smallest, 8.0 * static_cast<double>(smallest) / static_cast<double>(source.parameters()));
}

// What the serving kernels make of the source's own weights bounds every plan: a target beyond it is refused before
// anything is quantised.
void Desk::check_floor() {
  const auto part = time.part("the kernels' own floor");
  load_served();
  std::map<std::string, int64_t> taken;
  TextSet few;
  for (size_t i = 0; i < adjustment.texts.size(); ++i) {
    if (++taken[adjustment.documents[i].domain] > kFloorWindows) continue;
    EvalText text = adjustment.texts[i];
    text.ids.resize(std::min(text.ids.size(), static_cast<size_t>(job.context)));
    few.texts.push_back(std::move(text));
    few.documents.push_back(adjustment.documents[i]);
  }
  const Judged judged = judge(documents_of(measure(few, nullptr), few), job.promise);
  served.reset();
  floor = {judged.all.windows, judged.all.tokens, judged.all.ear, judged.all.kl, judged.all.top1};
  const Measurement& m = judged.measured;
  const KvFormat cache = options(job.served()).kv;
  for (const Target& t : targets)
    check(
        !(t.ear && m.ear.ci95.high < *t.ear) && !(t.kl && m.kl.ci95.low > *t.kl) &&
            !(t.top1 && m.top1.ci95.high < *t.top1),
        "no plan can meet this target: the source's own weights through these kernels (activations {}, cache {}) have "
        "EAR {:.5f} [{:.5f}, {:.5f}], KL {:.6f} ({}). Ask for less{}",
        name_of(job.served()), name_of(cache), m.ear.value, m.ear.ci95.low, m.ear.ci95.high, m.kl.value, judged.worst,
        job.served() == Activations::f32 && cache == KvFormat::f32
            ? ""
            : ", or serve more precisely (--activations f32, --kv f32)");
}

// A source that is quantised already: its errors are not in the certificate, which compares with the source as it is.
void Desk::warn_of_codes() const {
  std::set<std::string> codes;
  for (LinearId id : linears_of(source.config()))
    if (const FormatSpec f = source.format(id); !f.is_dense()) codes.insert(to_string(f));
  if (!codes.empty())
    note(fmt::format(
        "Warning: {} is quantised already ({}). The certificate will compare with it as it is; start from the "
        "original weights if you can get them",
        job.model, fmt::join(codes, ", ")));
}

// Such candidates are made and measured like others, with what they lose, so that no plan is led astray.
void Desk::warn_of_scales() {
  if (!ranks.first()) return;
  std::vector<LinearId> linears;
  for (const LinearGroup& g : groups) linears.insert(linears.end(), g.linears.begin(), g.linears.end());
  for (const std::string& line : beyond_half_scales(source, linears, job.formats, pool)) note("warning: " + line);
}

// The four sets (compress/inputs/sets.h), printed as they are. Sensitivities measured on what the quantisers have seen would be
// too good, a plan is tried on what neither saw, and certified on what nothing has.
void Desk::read_texts(OwnAnswers own_answers) {
  check_takes_words(job.calibration, world.chat, job.model);
  check_takes_words(job.texts, world.chat, job.model);
  const auto corpus = [&](const std::vector<std::string>& texts, TextUse use) {
    return read_corpus(without_words(texts, use, ""), world.tokenizer, world.chat, job.context, Shingles::kept);
  };
  std::vector<std::string> files = job.texts;
  std::erase_if(files, [](const std::string& text) { return own_documents(text).has_value(); });
  RunTexts read = rid_of_copies(corpus(job.calibration, TextUse::calibration), corpus(files, TextUse::heldout),
                                [&](const std::string& text) { note(text); });
  add_own_answers(read.fresh, own_answers);
  read_calibration(units_of(read.seen, job.context, "--calibration"));
  calibration.sha256 = read.seen.sha256;
  Division texts = divide(units_of(read.fresh, job.context, "--text"), kAdjustmentShare);
  adjustment = text_set(std::move(texts.first), job.context,
                        std::clamp(job.certificate_windows, kLeastAdjustmentWindows, kAdjustmentWindows));
  certificate = text_set(std::move(texts.second), job.context, job.certificate_windows);
  if (job.answers > 0)
    answer_prompts(world.tokenizer, world.chat, certificate, job.answers);  // refused before the work
  dealt = {kDealing, read.left_out.size() <= kMostNamed ? read.fresh.sha256 : "", job.certificate_windows,
           read.left_out.size() <= kMostNamed ? read.left_out : std::vector<std::string>()};
  note_uses(read);
  const ModelConfig& c = source.config();
  double fewest = std::numeric_limits<double>::infinity();  // tokens a column
  bool of_experts = false;
  for (LinearId id : linears_of(c)) {
    const double tokens =
        share_of_rows(c, id) * static_cast<double>(calibration.tokens) / static_cast<double>(shape_of(c, id)[1]);
    if (tokens < fewest) fewest = tokens, of_experts = id.expert >= 0;
  }
  note(
      fmt::format("calibration: {} sequences, {} tokens ({:.1f} for each column of {}), SHA-256 {}; search: {} "
                  "sequences, {} tokens, SHA-256 {}",
                  calibration.sequences.size(), calibration.tokens, fewest,
                  of_experts ? "an expert's widest input, on average" : "the widest input",
                  sequences_sha256(calibration).substr(0, 12), search.sequences.size(), search.tokens,
                  sequences_sha256(search).substr(0, 12)));
  note(fmt::format("plans are tried on {}", describe(adjustment)));
  note(fmt::format("the certificate is taken on {}", describe(certificate)));
  if (const std::string few = few_documents_text(certificate); !few.empty()) note("Note: " + few);
}

// The model's own answers are written here, before anything else of it is in memory.
void Desk::add_own_answers(Corpus& fresh, OwnAnswers kind) {
  for (const std::string& text : job.texts) {
    const std::optional<int64_t> wanted = own_documents(text);
    if (!wanted) continue;
    const Corpus own = own_corpus(world, job, fresh.documents, *wanted, kind);
    if (kind == OwnAnswers::stand_ins)
      note(
          fmt::format("the model's own answers are not written by a dry run: {} of the greatest length are counted, "
                      "and writing them "
                      "comes on top",
                      own.documents.size()));
    if (own.too_short > 0)
      note(fmt::format("{} of the model's own answers are too short, and left out", own.too_short));
    own_text += fidelio::own_text(own, world.tokenizer);
    fresh.documents.insert(fresh.documents.end(), own.documents.begin(), own.documents.end());
  }
}

void Desk::note_uses(const RunTexts& read) {
  uses = TextAccount(source.parameters(), read, certificate);
  const auto sequences_of = [&](const Dataset& data) {
    return origins_of(data.sequences, read.seen.documents, job.context);
  };
  const SequenceOrigins calibrated = sequences_of(calibration);
  uses.add("calibration", read.seen, calibrated.documents);
  for (const std::vector<int32_t>* sample : calibrated.others)
    uses.add_text("samples", world.tokenizer.decode(*sample));
  uses.add("search", read.seen, sequences_of(search).documents);
  if (job.tune)
    uses.add("tuning", read.seen,
             sequences_of(dataset_of(calibration_documents, job.context, job.tune_tokens)).documents);
  std::set<std::string> tried;
  for (const Document& d : adjustment.documents) tried.insert(d.sha256);
  uses.add("trial", read.fresh, tried);
  uses.add_certificate();
  record_bytes_ = uses.record_bytes();
}

void Desk::read_calibration(const std::vector<Document>& units) {
  Division division = divide(units, 10);
  check(job.samples <= tokens_, "--calibration-samples {} are some of the --calibration-tokens, of which there are {}",
        job.samples, tokens_);
  if (job.samples < tokens_) calibration = dataset_of(division.second, job.context, tokens_ - job.samples);
  if (job.samples > 0) {
    const Dataset starts = dataset_of(division.second, job.context, std::numeric_limits<int64_t>::max());
    for (auto& s :
         sample_sequences(world.make_runner, job.serving, starts.sequences, job.samples, job.context, job.seed)) {
      calibration.tokens += static_cast<int64_t>(s.size());
      calibration.sequences.push_back(std::move(s));
    }
  }
  search = dataset_of(division.first, job.context, search_tokens_);
  calibration_documents = std::move(division.second);
}

}  // namespace fidelio
