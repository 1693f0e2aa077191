#include "compress/job.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <set>

#include "core/error.h"
#include "io/checkpoint.h"
#include "runtime/texts/words.h"

namespace fidelio {
namespace {

template <typename Enum>
struct Names;
template <>
struct Names<SensitivityMethod> {
  static constexpr std::array<std::string_view, 5> all = {"single", "every", "linear", "shapley", "unified"};
};
template <>
struct Names<SearchKind> {
  static constexpr std::array<std::string_view, 3> all = {"ilp", "evolve", "ilp+evolve"};
};
template <>
struct Names<Consumer> {
  static constexpr std::array<std::string_view, 4> all = {"fidelio", "vllm", "gptq", "llama.cpp"};
};
template <>
struct Names<Grouping> {
  static constexpr std::array<std::string_view, 2> all = {"fused", "single"};
};
template <>
struct Names<Promise> {
  static constexpr std::array<std::string_view, 3> all = {"domain", "document", "all"};
};
template <>
struct Names<Cost> {
  static constexpr std::array<std::string_view, 2> all = {"kl", "ear"};
};

std::vector<FormatSpec> formats(std::initializer_list<const char*> names) {
  std::vector<FormatSpec> all;
  for (const char* name : names) all.push_back(parse_format(name));
  return all;
}

// The first linear whose columns are not whole groups.
std::optional<LinearId> broken_by(const ModelConfig& config, int group) {
  for (LinearId id : linears_of(config))
    if (group > 0 && shape_of(config, id)[1] % group != 0) return id;
  return {};
}

}  // namespace

std::string_view name_of(SensitivityMethod m) { return Names<SensitivityMethod>::all.at(static_cast<size_t>(m)); }
std::string_view name_of(SearchKind s) { return Names<SearchKind>::all.at(static_cast<size_t>(s)); }
std::string_view name_of(Consumer c) { return Names<Consumer>::all.at(static_cast<size_t>(c)); }
std::string_view name_of(Grouping g) { return Names<Grouping>::all.at(static_cast<size_t>(g)); }

std::string_view name_of(Promise p) { return Names<Promise>::all.at(static_cast<size_t>(p)); }

template <typename Enum>
Enum parse_option(const std::string& option, const std::string& text) {
  const auto& names = Names<Enum>::all;
  const auto found = std::find(names.begin(), names.end(), text);
  check(found != names.end(), "{} {}: expected {}", option, text, fmt::join(names, " or "));
  return static_cast<Enum>(found - names.begin());
}
template SensitivityMethod parse_option(const std::string&, const std::string&);
template SearchKind parse_option(const std::string&, const std::string&);
template Consumer parse_option(const std::string&, const std::string&);
template Grouping parse_option(const std::string&, const std::string&);
template Cost parse_option(const std::string&, const std::string&);
template Promise parse_option(const std::string&, const std::string&);

ConsumerRules rules_of(Consumer consumer) {
  switch (consumer) {
    case Consumer::vllm:  // zero points at 4 and 8 bits only, the vocabulary dense
      return {formats({"int2g64", "int3g64", "int4g64z", "int5g64", "int6g64", "int7g64", "int8g64z"}), true, false,
              "compressed-tensors", " --profile vllm"};
    case Consumer::gptq:  // the widths that every reader has; 5 to 7 bits are read by GPTQModel alone
      return {
          formats({"int2g64z", "int3g64z", "int3g32z", "int4g128z", "int4g64z", "int4g32z", "int8g128z", "int8g32z"}),
          true, false, "gptq"};
    case Consumer::llama_cpp:  // Q4_0, Q5_0 and Q8_0: blocks of 32 under one FP16 scale
      return {formats({"int4g32", "int5g32", "int8g32"}), false, true, "gguf"};
    case Consumer::fidelio:
      break;
  }
  // SLQ's candidates are asymmetric integers of 2 to 8 bits in groups of 128 with FP16 scales (int4g128z). 8-bit scales
  // and groups of 64 are worth 10-14% of KL at equal size, grids 20-30% more up to 6 bits
  // (docs/results.md). The last is a quarter bit wider and a third of the KL less than the one before: a step before
  // BF16's sixteen.
  return {formats({"lut2g64", "lut3g64", "lut4g64", "int7g64zs8", "int8g64zs8", "int8g32zs8"}),
          false,
          true,
          "",
          "",
          formats({"lut5g64", "lut6g64"}),
          formats({"int3g64zs8", "int4g64zs8", "int5g64zs8", "int6g64zs8"})};
}

std::string_view price_of_export() {
  return "The smallest model is made, in formats that only fidelio reads. One that exports to llama.cpp takes more "
         "bytes (--for llama.cpp; 13% more of the bundled quill-1m); for vLLM (--for vllm) embedding and head stay in "
         "16 bits. --for fidelio hides "
         "this line";
}

std::vector<FormatSpec> default_formats(Consumer consumer, bool on_gpu, bool by_rate) {
  const ConsumerRules rules = rules_of(consumer);
  std::vector<FormatSpec> all = rules.formats;
  if (!on_gpu) all.insert(all.end(), rules.finest.begin(), rules.finest.end());
  if (on_gpu || by_rate) all.insert(all.end(), rules.fastest.begin(), rules.fastest.end());
  std::stable_sort(all.begin(), all.end(), [](const FormatSpec& a, const FormatSpec& b) { return a.bits < b.bits; });
  return all;
}

bool ConsumerRules::holds(const FormatSpec& f, Consumer consumer) const {
  if (consumer == Consumer::fidelio) return true;
  if (f.kind != Kind::integer || f.scale != ScaleKind::f16) return false;
  if (consumer == Consumer::llama_cpp) return f.symmetric && f.group == 32 && f.bits >= 4;
  return consumer == Consumer::gptq || f.symmetric || f.bits == 4 || f.bits == 8;
}

std::vector<std::string> Job::outputs() const {
  if (ear.size() < 2) return {out};
  std::vector<std::string> all;
  for (double target : ear) all.push_back(fmt::format("{}-{:g}", out, 100 * target));
  return all;
}

std::string Job::page(size_t target) const {
  if (page_file.empty() || ear.size() < 2) return page_file;
  const std::filesystem::path whole = page_file;
  return (whole.parent_path() /
          fmt::format("{}-{:g}{}", whole.stem().string(), 100 * ear[target], whole.extension().string()))
      .string();
}

int Job::most_generations() const {
  if (search == SearchKind::ilp) return 0;
  if (generations > 0) return generations;
  return search == SearchKind::evolve ? kGenerationsAlone : kGenerationsAfter;
}

void check_job(const Job& job) {
  for (const std::string& text : job.calibration)
    check(!own_documents(text),
          "--calibration {}: what the model writes itself calibrates by --calibration-samples N; `own` is text to "
          "certify with (--text)",
          text);
  for (const std::string& text : job.texts)
    check(!job.tune || is_text_word(text) ||
              std::find(job.calibration.begin(), job.calibration.end(), text) == job.calibration.end(),
          "--tune: {} is text to tune on and to certify with; a certificate needs text that nothing was tuned on",
          text);
  const bool tasks = job.accuracy_drop > 0;
  check(job.tokens_per_second == 0 || !tasks,
        "--tokens-per-second goes with --ear, --kl, --bits or --bytes, or alone; not with --accuracy-drop");
  check(job.tokens_per_second == 0 || job.plan_file.empty(),
        "--plan names every format; leave out --tokens-per-second, and see `bench model` for the speed");
  check(job.tokens_per_second == 0 || job.search == SearchKind::ilp,
        "--search evolve knows bytes and distance, no time; leave it out with --tokens-per-second");
  check(job.has_target() + (job.bits > 0) + (job.bytes > 0) + tasks + !job.plan_file.empty() + job.rate_alone() == 1,
        "compress: give a target, --ear X or --kl X, or --tasks FILE --accuracy-drop X, or a size, --bits B or --bytes "
        "N, or a --plan FILE; or --tokens-per-second X, alone or beside a target of EAR or KL or a size");
  check(job.plan_file.empty() || (job.from_table.empty() && job.rules.empty() && job.ignored.empty()),
        "--plan names every format; leave out --from-table, --rule and --ignore");
  check(job.ear.size() < 2 || (job.kl == 0 && job.top1 == 0), "--ear with several targets: leave out --kl and --top1");
  check(job.top1 == 0 || job.promise != Promise::document,
        "--top1 is of the mean over text: leave out --promise document, or ask for --ear");
  const std::vector<std::string> outputs = job.outputs();
  check(std::set<std::string>(outputs.begin(), outputs.end()).size() == outputs.size(), "--ear names a target twice");
  check(job.search == SearchKind::ilp || (job.bits == 0 && job.bytes == 0),
        "--search {} makes a plan smaller at the same fidelity; with a size (--bits, --bytes) there is nothing to "
        "make smaller",
        name_of(job.search));
  check(
      job.search != SearchKind::evolve || (job.has_target() && job.from_table.empty() && job.table_file.empty()),
      "--search evolve measures whole plans, until an --ear or --kl would be missed, and no table: give one of these, "
      "and leave out --table and --from-table");
  check(job.method != SensitivityMethod::linear || !is_coarse(job.served()),
        "--method linear puts noise into dense weights, which do not see 8-bit activations as codes do; with "
        "--activations a8, a6, a4 and aw give single, every, shapley or unified");
  for (size_t i = 0; i < job.formats.size(); ++i)  // one of them twice would be two candidates that are one
    check(std::count(job.formats.begin(), job.formats.end(), job.formats[i]) == 1, "--formats names {} twice",
          to_string(job.formats[i]));
  if (job.consumer == Consumer::fidelio) return;
  const ConsumerRules rules = rules_of(job.consumer);
  check(!rules.fused || job.grouping == Grouping::fused,
        "--for {}: q k v and gate up are fused there and must share a format; leave out --grouping single",
        name_of(job.consumer));
  std::vector<std::string> held;
  for (const FormatSpec& f : rules.formats) held.push_back(to_string(f));
  for (const FormatSpec& f : job.formats)
    check(rules.holds(f, job.consumer), "--for {}: {} is not held there as it is; offer some of {}",
          name_of(job.consumer), to_string(f), fmt::join(held, ", "));
}

void fit_to_columns(Job& job, const ModelConfig& config, bool by_default) {
  if (job.consumer == Consumer::fidelio) return;
  for (std::vector<FormatSpec>* formats : {&job.formats, &job.offered}) {
    std::vector<FormatSpec> fitting;
    for (const FormatSpec& format : *formats) {
      FormatSpec fitted = format;
      for (int group : {64, 32, 0})
        if (group < fitted.group && broken_by(config, fitted.group)) fitted.group = group;
      if (fitted != format) {
        const LinearId id = *broken_by(config, format.group);
        check(by_default && rules_of(job.consumer).holds(fitted, job.consumer),
              "--for {}: {} does not fit, the {} columns of {} are not whole groups", name_of(job.consumer),
              to_string(format), shape_of(config, id)[1], to_string(id));
      }
      if (std::find(fitting.begin(), fitting.end(), fitted) == fitting.end()) fitting.push_back(fitted);
    }
    *formats = fitting;
  }
}

void fit_to_experts(Job& job, const ModelConfig& config, bool by_default) {
  if (job.consumer != Consumer::vllm || config.experts == 0) return;
  const std::vector<FormatSpec> held = formats({"int4g128", "int4g64", "int4g32", "int8g64"});
  if (by_default && job.plan_file.empty()) {
    std::erase_if(job.formats, [&](const FormatSpec& f) {  // all but those that rules name
      return std::find(job.offered.begin(), job.offered.end(), f) != job.offered.end();
    });
    job.formats.insert(job.formats.begin(), held.begin(), held.end());
    job.offered = held;
    return;
  }
  for (const FormatSpec& f : job.offered)
    check(
        f.symmetric && (f.bits == 4 || f.bits == 8),
        "--for {}: {} is not held by its kernels for experts, which {} has; offer some of int4g128, int4g64, int4g32, "
        "int8g64",
        name_of(job.consumer), to_string(f), job.model);
}

}  // namespace fidelio
