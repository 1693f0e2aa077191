#include "compress/desk/desk.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "quant/vectors/shared_codebooks.h"
#include "sensitivity/candidates.h"

namespace fidelio {

std::vector<Target> targets_of(const Job& job) {
  std::vector<Target> targets;
  for (double ear : job.ear) targets.push_back({.ear = ear, .kl = {}, .top1 = {}});
  if (targets.empty()) targets.emplace_back();
  if (job.kl > 0) targets.front().kl = job.kl;
  if (job.top1 > 0) targets.front().top1 = job.top1;
  return targets;
}

Desk::Desk(const Job& asked, const World& outside, const Ranks& all, ReadTexts read)
    : job(asked),
      world(outside),
      ranks(all),
      source(outside.source),
      targets(targets_of(asked)),
      groups(groups_of(source.config(), job.grouping, !job.keep_embedding, rules_of(job.consumer).fused)),
      texts(std::move(read.texts)),
      budget(job, source, groups, texts, read.uses.record_bytes()),
      pool(asked.serving.threads),
      uses(std::move(read.uses)) {}

void Desk::note(const std::string& text) const {
  if (ranks.first()) world.note(text);
}

RunnerOptions Desk::options(Activations mode) const {
  RunnerOptions r = job.serving;
  r.mode = mode;
  if (mode == Activations::f32) r.kv = KvFormat::f32;
  r.max_rows = batch_rows_for(source.config(), job.context, job.on_gpu);
  r.max_logit_rows = logit_rows_for(r.max_logit_rows, job.on_gpu);
  r.cache_tokens = 2 * r.max_rows;
  r.context = job.context;
  return r;
}

// Weights are judged alone, at FP32, unless the model will be served with activations that cost as much as weights do.
Activations Desk::table_mode() const { return is_coarse(job.served()) ? job.served() : Activations::f32; }

CompressSize Desk::size() const {
  const RunnerOptions r = options(Activations::f32);
  return {.source = source,
          .groups = groups,
          .formats = job.formats,
          .calibration_tokens = texts.calibration.tokens,
          .search_tokens = texts.search.tokens,
          .rows = r.max_rows,
          .logit_rows = r.max_logit_rows,
          .trial_tokens = texts.adjustment.tokens,
          .certificate_tokens = texts.certificate.tokens,
          .served = job.served(),
          .measured = table_mode(),
          .method = job.search == SearchKind::evolve ? "none" : std::string(name_of(job.method)),
          .permutations = job.permutations,
          .max_trials = budget.given() || job.rate_alone() ? 0 : job.max_trials,
          .generations = job.most_generations(),
          .ranks = ranks.size(),
          .answering_tokens = job.answering_tokens,
          .answering_states = job.answering_states,
          .budget = budget.bytes(),
          .on_gpu = job.on_gpu};
}

std::map<LinearId, FormatSpec> Desk::quantised_formats(const SensitivityTable& table, const Plan& plan) const {
  std::map<LinearId, FormatSpec> formats = formats_of(table, plan);
  std::erase_if(formats, [&](const auto& f) { return f.second == source.format(f.first); });
  return formats;
}

std::string Desk::stage(const std::string& what) const {
  return fmt::format("{} text {} grouping {} activations {}", what, sequences_sha256(texts.search),
                     name_of(job.grouping), name_of(table_mode()));
}

// The errors of a source that is quantised already are not in the certificate, which compares with the source as it is.
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

}  // namespace fidelio
