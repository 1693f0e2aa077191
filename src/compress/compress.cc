#include "compress/compress.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "compress/certificate/certify.h"
#include "compress/certificate/seal.h"
#include "compress/inputs/rules.h"
#include "compress/page.h"
#include "compress/rate/format_times.h"
#include "compress/search/search.h"
#include "core/file.h"
#include "core/foreign/units.h"
#include "core/progress.h"
#include "io/checkpoint_files.h"
#include "quant/quantize_model.h"
#include "sensitivity/gamma.h"

namespace fidelio {
namespace {

// Adds the memory that tuning takes beside the runners, if it runs `there`.
std::vector<MemoryNeed> with_tuning(const Desk& desk, std::vector<MemoryNeed> needs, bool there) {
  if (!desk.job.tune || !there) return needs;
  train::TuneOptions how;
  how.windows = desk.job.tune_windows;
  train::set_defaults(how, desk.job.on_gpu, desk.job.context);
  needs.push_back({"tuning: values, latents, gradients and moments; streams",
                   train::tune_bytes(desk.source.config(), how, desk.job.context)});
  return needs;
}
std::vector<MemoryNeed> host_needs(const Desk& desk) {
  return with_tuning(desk, memory_needs(desk.size()), !desk.job.on_gpu);
}
std::vector<MemoryNeed> gpu_needs(const Desk& desk) {
  return with_tuning(desk, gpu_memory_needs(desk.size()), desk.job.on_gpu);
}

// Tells the user how much of a memory is needed. Throws Error if it is not available.
ForeseenMemory checked_memory(const Desk& desk, const char* whose, std::vector<MemoryNeed> needs, int64_t available) {
  for (const MemoryNeed& need : needs) desk.note(fmt::format("{:<52} {:>10}", need.what, bytes_text(need.bytes)));
  desk.note(fmt::format("{:<52} {:>10}   of {} available", whose, bytes_text(total(needs)), bytes_text(available)));
  check_memory(needs, available, whose);
  return {std::move(needs), available};
}

// Candidates are kept on disk, beside the output. Returns how many bytes they need there.
int64_t check_room_on_disk(const Desk& desk) {
  const int64_t need = disk_need(desk.size());
  check_disk(desk.job.out, need, "the candidates of every format",
             "Offer fewer --formats, or another place for the output");
  return need;
}

void check_room(const Desk& desk) {
  check_memory(host_needs(desk), available_memory() / desk.ranks.on_this_host(), "memory");
  if (desk.job.on_gpu) check_memory(gpu_needs(desk), cuda_memory(desk.job.serving.gpu).free, "the GPU's memory");
  if (desk.ranks.first()) check_room_on_disk(desk);
}

MadeCheckpoint written(const Desk& desk, const std::string& out) {
  const Checkpoint made = Checkpoint::open(out);
  return {.output = out,
          .file_bytes = made.file_bytes(),
          .source_file_bytes = desk.source.file_bytes(),
          .parameters = made.parameters(),
          .certificate = {},
          .beside = {},
          .plan = {},
          .rate = {}};
}

CertifiedSets sets_used(const Desk& desk) {
  const auto of = [](const Dataset& data) {
    return SequencesUsed{static_cast<int64_t>(data.sequences.size()), data.tokens, sequences_sha256(data)};
  };
  return {of(desk.texts.calibration), of(desk.texts.search), documents_used(desk.texts.adjustment),
          documents_used(desk.texts.certificate), desk.texts.dealt};
}

// A certificate on the model's own answers can be measured again only with these answers, so they stay beside the
// weights.
void write_own_text(const Desk& desk, const std::string& folder) {
  if (!desk.texts.own_text.empty())
    write_file_atomically(folder + "/" + std::string(kOwnTextFile), desk.texts.own_text);
}

// Returns the checkpoint of a target if an interrupted run of several targets has written it already. Throws Error if
// the folder holds something else.
std::optional<MadeCheckpoint> finished(const Desk& desk, size_t target) {
  const std::string out = desk.job.outputs()[target];
  if (desk.targets.size() == 1 || !std::filesystem::exists(out)) return std::nullopt;
  const Certificate there = read_certificate(Checkpoint::open(out));
  const Activations mode = desk.job.served();
  const bool promised = there.target == desk.targets[target] && there.promise == desk.job.promise &&
                        there.activations == name_of(mode) && there.kv == name_of(desk.options(mode).kv);
  check(promised && there.reference_sha256 == desk.source.sha256() && there.sets == sets_used(desk),
        "{} is there and was made for something else (another model, target, promise, text or precision); move it, or "
        "choose another output folder",
        out);
  desk.note(fmt::format("{} is there already", out));
  write_own_text(desk, out);
  MadeCheckpoint made = written(desk, out);
  made.certificate = there;
  made.beside = "An earlier run made it.";
  return made;
}

// Compares the plan with one format everywhere: with the smallest such model that has the fidelity asked for, or with
// the best one within the size. Both are judged by the bits of the whole file, and on the text of the sensitivities, on
// which the plan's EAR is the table's prediction.
std::string beside_uniform(const Measured& measured, const Plan& plan, const Target& target, int64_t file_bytes,
                           int64_t parameters) {
  if (measured.uniform.empty())
    return fmt::format("The plan comes from a {} made before, which says nothing of one format everywhere.",
                       measured.table.method == "given" ? "plan" : "table");
  int64_t grouped = 0;
  for (const Group& g : measured.table.groups) grouped += g.parameters;
  // Everything outside the groups is alike in both files.
  const double rest = static_cast<double>(file_bytes - plan.bytes + measured.table.fixed_bytes);
  const auto bits_of = [&](const UniformPoint& u) {
    return (u.bits * static_cast<double>(grouped) + 8 * rest) / static_cast<double>(parameters);
  };
  const double bits = 8.0 * static_cast<double>(file_bytes) / static_cast<double>(parameters);
  const bool by_size = target.empty();
  const auto serves = [&](const UniformPoint& u) {
    if (by_size) return bits_of(u) <= bits;
    return u.kl <= target.allowed_kl(measured.table.ear_constant) && (!target.ear || u.ear >= *target.ear);
  };
  const UniformPoint *best = nullptr, *finest = nullptr;
  for (const UniformPoint& u : measured.uniform) {
    if (!finest || u.kl < finest->kl) finest = &u;
    if (serves(u) && (!best || (by_size ? u.kl < best->kl : u.bits < best->bits))) best = &u;
  }
  if (!best && by_size) return "No model in one format everywhere is as small.";
  const UniformPoint& u = best ? *best : *finest;
  const std::string this_one =
      fmt::format("this one takes {:.3f}{}", bits,
                  measured.table.ear_constant > 0
                      ? fmt::format(" for EAR {:.5f} (predicted)", predicted_ear(measured.table, plan, 1))
                      : "");
  if (!best)
    return fmt::format(
        "No format everywhere reaches the target: {} takes {:.3f} bits/parameter for EAR {:.5f} on the search text; "
        "{}.",
        u.format, bits_of(u), u.ear, this_one);
  const double smaller = 100 * (1 - bits / bits_of(u));
  return fmt::format("{} everywhere would take {:.3f} bits/parameter for EAR {:.5f} on the search text; {}{}.",
                     u.format, bits_of(u), u.ear, this_one,
                     smaller > 0 ? fmt::format(", {:.1f}% smaller", smaller) : std::string());
}

nlohmann::json provenance_of(const Desk& desk, const Measured& measured, const Found& found, const Built& built,
                             const Certificate& certificate) {
  const SensitivityTable& table = measured.table;
  nlohmann::json about = about_source(desk.source);
  about.update({{"method", "compress"},
                {"calibration_sha256", desk.texts.calibration.sha256},
                {"calibration_tokens", desk.texts.calibration.tokens},
                {"calibration_samples", desk.job.samples},
                {"sensitivity", table.method},
                {"sensitivity_entries", {{"measured", entries(table).first}, {"derived", entries(table).second}}},
                {"sensitivity_tokens", desk.texts.search.tokens},
                {"sensitivity_activations", table.activations},
                {"allocated_by", desk.job.allocate_by == Cost::kl ? "kl" : "ear"},
                {"search", std::string(name_of(desk.job.search))},
                {"for", std::string(name_of(desk.job.consumer))},
                {"seed", desk.job.seed},
                {"plan", to_json(table, found.plan)},
                {"used_texts", desk.uses.record().to_json()},
                {"certificate", to_json(certificate)},
                {"certificate_seal", seal_of(to_json(certificate))}});
  if (built.tuned) about["tuned"] = to_json(*built.tuned);
  if (found.rate) about["rate"] = to_json(*found.rate);
  return about;
}

// Writes the plan that was found, which is in force in the served runner, with its certificate.
MadeCheckpoint finish(Desk& desk, Runners& runners, Search& search, const Measured& measured, const Found& found,
                      const Built& built, const std::optional<FloorFigures>& floor, const std::string& out) {
  Certificate certificate =
      make_certificate(found.target, {found.certified, desk.texts.certificate, desk.job.promise, found.ladder, floor},
                       runners.served(), desk.source.sha256(), desk.job.texts);
  certificate.sets = sets_used(desk);
  certificate.overlap = desk.uses.overlap();
  certificate.tasks = found.tasks;
  if (desk.job.answers > 0) certificate.answers = search.measurer().answers();
  std::map<LinearId, FormatSpec> formats = desk.quantised_formats(measured.table, found.plan);
  const std::map<LinearId, FormatSpec> own = predictor_formats(desk.source);
  const std::map<LinearId, LinearWeight> predictor = quantize_predictor(desk.source, own, desk.pool);
  formats.insert(own.begin(), own.end());
  const auto weight = [&](LinearId id) {
    const auto there = predictor.find(id);
    return there == predictor.end() ? built.weights.at(id) : there->second;
  };
  write_checkpoint(out, desk.source, formats, weight, provenance_of(desk, measured, found, built, certificate));
  write_own_text(desk, out);
  MadeCheckpoint made = written(desk, out);
  const int64_t bytes = made.file_bytes, most = desk.budget.bytes();
  check(!desk.budget.given() || bytes <= most,
        "{} has {} bytes, more than the {} asked for: its header is larger than foreseen; ask for {} bytes less", out,
        bytes, most, bytes - most);
  made.plan = found.plan;
  made.certificate = std::move(certificate);
  made.rate = found.rate;
  made.beside = beside_uniform(measured, found.plan, found.target, bytes, made.parameters);
  return made;
}

void write_page(const Desk& desk, const Measured& measured, const std::vector<Plan>& front, const Found& found,
                const MadeCheckpoint& made, const std::string& file) {
  const std::vector<DocumentFidelity> documents = documents_of(found.certified, desk.texts.certificate);
  std::vector<GammaRow> gamma;
  const int group = desk.job.formats.front().group;
  for (LinearId id : linears_of(desk.source.config())) {
    const LinearWeight w = desk.source.linear(id);
    gamma.push_back({to_string(id), gamma_law(decode(w), w.out, w.in, group, kGammaBits)});
    desk.source.drop(id);
  }
  write_file_atomically(
      file, compress_page({std::filesystem::path(desk.job.model + "/").parent_path().filename().string(), measured,
                           front, found, gamma, group, std::string(name_of(desk.job.search)),
                           desk.job.allocate_by == Cost::kl ? "kl" : "ear", made, documents, desk.world.made_by}));
}

// Returns the stages of the progress bar. Their weights are rough shares of the time: a GPU measures sensitivities in
// no time, and each target has some three trials, a size none. The bar corrects its estimate of the time that is left
// by what the stages really take.
Stages stages_of(const Job& job) {
  const int searches = static_cast<int>(std::max<size_t>(job.outputs().size(), 1));
  const bool sized = job.bits > 0 || job.bytes > 0;
  const bool planned = !job.plan_file.empty(), measured = planned || !job.from_table.empty();
  const double trials = job.tune ? 20 : sized && job.on_gpu ? 0.8 : 3;
  return {"compress",
          {{"reading", 0.2, 1},
           {"quantising the candidates", planned ? 0.1 : 4.0},
           {"sensitivities", measured     ? 0.01
                             : job.on_gpu ? 0.5
                                          : 3.0},
           {"search and certificate", trials * searches, 4 * searches}}};
}

// Tells the user where the time went, in the order in which the parts began.
void say_times(Desk& desk) {
  Seconds whole;
  const auto row = [&](const std::string& what, Seconds s) {
    desk.note(fmt::format("{:<52} {:>8.1f} s   ({:.1f} s of CPU time)", what, s.wall, s.cpu));
  };
  for (const auto& [name, spent] : desk.time.parts()) {
    row(name, spent);
    whole += spent;
  }
  row("time", whole);
}

// Returns all that decides what the candidates are. A text counts as the tokens it has become.
std::map<std::string, std::string> candidates_job(const Desk& desk, const Runner& reference) {
  const Job& job = desk.job;
  std::vector<std::string> formats;
  for (const FormatSpec& f : job.formats) formats.push_back(to_string(f));
  return {{"program", FIDELIO_VERSION},
          {"model", desk.source.sha256()},
          {"calibration", sequences_sha256(desk.texts.calibration)},
          {"formats", fmt::format("{}", fmt::join(formats, ","))},
          {"embedding", job.keep_embedding ? "kept" : "quantised"},
          {"kernels", reference.kernel_of(linears_of(reference.config()).at(1), Activations::f32)},
          {"files", "with SHA-256"}};
}

// The first rank begins the journal, or finds that of an earlier run, and locks it against other runs. The other ranks
// join it.
Journal open_journal(const Desk& desk, const Runner& reference, std::optional<JournalLock>& lock) {
  const std::string folder = desk.job.out + ".journal";
  std::optional<Journal> journal;
  const auto note = [&desk](const std::string& text) { desk.note(text); };
  if (desk.ranks.first()) {
    lock.emplace(folder);
    if (desk.job.fresh) {
      Journal::remove(folder);
      lock.emplace(folder);
    }
    journal.emplace(folder, candidates_job(desk, reference), note);
    if (journal->resumed())
      desk.note(fmt::format("{}: an earlier run left {} finished parts and {} measurements, which are used", folder,
                            journal->finished().first, journal->finished().second));
  }
  desk.ranks.gather({});
  return journal ? *journal : Journal(folder, candidates_job(desk, reference), note);
}

// Removes the journal. Its folder stays if somebody else has put something into it.
void end_journal(const Desk& desk) {
  const std::string folder = desk.job.out + ".journal";
  const std::vector<std::string> foreign = Journal::remove(folder);
  if (!foreign.empty())
    desk.note(fmt::format("{} stays: it holds {}{}, which fidelio did not write", folder, foreign.front(),
                          foreign.size() > 1 ? fmt::format(" and {} more", foreign.size() - 1) : ""));
}

// Returns the times of the formats. They are those of the table that is given, if it has them of this machine.
// Otherwise they are measured, before everything that takes longer.
FormatTimes format_times(Desk& desk, Runners& runners, Journal& journal) {
  check(desk.ranks.size() == 1,
        "--tokens-per-second: other ranks would share the machine that is timed; write a --table under mpirun, and "
        "give it "
        "to a run without as --from-table");
  std::optional<FormatTimes> times;
  std::vector<FormatSpec> formats = desk.job.formats;
  if (!desk.job.from_table.empty()) {
    const SensitivityTable table = table_from_file(desk).table;
    times = times_of(desk, runners.reference(), table);
    formats = formats_of(desk, table);
  }
  if (!times) {
    const Runners::Serving serving(runners);
    times = time_formats(desk, runners, formats, journal);
  }
  check_pace(desk, *times);
  return *times;
}

Runners runners_of(Desk& desk) {
  return {desk.source,
          desk.world.make_runner,
          desk.options(Activations::f32),
          desk.options(desk.job.served()),
          desk.job.formats,
          desk.pool};
}

FloorFigures checked_floor(Desk& desk, Runners& runners) {
  const auto part = desk.time.part("the kernels' own floor");
  const Runners::Serving serving(runners);
  return Measurer(desk, runners).checked_floor();
}

// Searches a plan for every target and writes the checkpoints.
std::vector<MadeCheckpoint> search_and_write(Desk& desk, Runners& runners, const Measured& measured,
                                             const CandidateSet& candidates, Journal& journal,
                                             const std::optional<FloorFigures>& floor) {
  const Job& job = desk.job;
  const Runners::Serving serving(runners);
  PlanEvolution evolution(desk, runners, measured, candidates, journal);
  Builder builder(desk, runners, measured.table, candidates, journal);
  Pace pace(desk, runners, measured.table, journal);
  Search search(desk, runners, measured.table, evolution, builder, pace);
  desk.note(fmt::format("{} plans {}, {:.3f} to {:.3f} bits a weight", search.front().size(),
                        job.search == SearchKind::evolve ? "on evolution's way" : "on the Pareto front",
                        bits_per_parameter(measured.table, search.front().front()),
                        bits_per_parameter(measured.table, search.front().back())));
  std::vector<MadeCheckpoint> all;
  for (size_t i = 0; i < desk.targets.size(); ++i) {
    if (const auto there = finished(desk, i)) {
      all.push_back(*there);
      continue;
    }
    desk.time.phase("choosing plans");
    const Found found = search.run(desk.targets[i]);
    desk.time.phase("writing");
    MadeCheckpoint made = finish(desk, runners, search, measured, found, builder.built(), floor, job.outputs()[i]);
    made.seconds = desk.time.parts();
    if (job.on_gpu) made.gpu_bytes_highest = cuda_memory(job.serving.gpu).highest;
    if (!job.page_file.empty()) write_page(desk, measured, search.front(), found, made, job.page(i));
    all.push_back(std::move(made));
  }
  return all;
}

}  // namespace

Foreseen foresee(const Job& job, const World& world, const Ranks& ranks) {
  check_job(job);
  Desk desk(job, world, ranks, OwnAnswers::stand_ins);
  desk.budget.check_possible();
  Foreseen foreseen;
  foreseen.memory = checked_memory(desk, "memory", host_needs(desk), available_memory());
  if (job.on_gpu)
    foreseen.gpu_memory =
        checked_memory(desk, "the GPU's memory", gpu_needs(desk), cuda_memory(desk.job.serving.gpu).free);
  foreseen.disk_bytes = check_room_on_disk(desk);
  desk.note(fmt::format("{:<52} {:>10}", "disk, beside the output while it runs", bytes_text(foreseen.disk_bytes)));
  Runners runners = runners_of(desk);
  CompressSize size = desk.size();
  size.codebooks = &runners.codebooks();
  foreseen.time = time_need(size, runners.reference(), desk.texts.calibration, desk.pool);
  const TimeNeed& time = foreseen.time;
  const auto phase = [&](const char* what, Seconds s) {
    desk.note(fmt::format("{:<52} {:>8.0f} s   ({:.0f} s of CPU time)", what, s.wall, s.cpu));
  };
  phase("quantising the candidates", time.candidates);
  phase("sensitivities", time.sensitivities);
  phase("search and certificate", time.search);
  phase("time", time.total());
  if (time.search_at_most.wall > time.search.wall) phase("search and certificate, at most", time.search_at_most);
  if (job.tune) desk.note("tuning of every plan that is measured comes on top");
  return foreseen;
}

CompressReport compress(const Job& job, const World& world, const Ranks& ranks) {
  check_job(job);
  if (!ranks.first()) set_progress_mode(ProgressMode::none);
  Stages stages = stages_of(job);
  stages.next();
  Desk desk(job, world, ranks);
  desk.budget.check_possible();
  desk.warn_of_codes();
  desk.warn_of_scales();
  check_room(desk);
  Runners runners = runners_of(desk);
  std::optional<FloorFigures> floor;
  if (ranks.first()) floor = checked_floor(desk, runners);
  std::optional<JournalLock> lock;
  Journal journal = open_journal(desk, runners.reference(), lock);
  std::optional<FormatTimes> times;
  if (job.tokens_per_second > 0) times = format_times(desk, runners, journal);
  desk.time.phase("quantising the candidates");
  stages.next();
  const CandidateSet candidates(runners.reference(), desk.source, desk.texts.calibration,
                                groups_to_quantise(job, desk.groups), job.formats, {.codebooks = &runners.codebooks()},
                                desk.pool, journal, ranks);
  desk.time.phase("sensitivities");
  stages.next();
  Measured measured = !job.plan_file.empty()    ? table_of_plan(desk)
                      : !job.from_table.empty() ? table_from_file(desk)
                                                : measure_table(desk, runners, candidates, journal);
  desk.time.phase("choosing plans");
  stages.next();
  if (!ranks.first()) return {};
  if (times) put_times(*times, measured.table);
  if (!job.table_file.empty()) write_file_atomically(job.table_file, to_json(measured.table).dump(1) + "\n");
  apply_rules(desk, measured.table);
  CompressReport report;
  report.made = search_and_write(desk, runners, measured, candidates, journal, floor);
  report.table = std::move(measured.table);
  end_journal(desk);
  say_times(desk);
  return report;
}

}  // namespace fidelio
