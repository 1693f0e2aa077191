#include "compress/desk/measurer.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "compress/certificate/judge.h"
#include "compress/inputs/own_text.h"

namespace fidelio {
namespace {

constexpr int64_t kFloorWindows = 8;  // so many windows of every domain show what the kernels themselves cost

// Returns a set of the first window of the first documents of every domain.
TextSet few_windows(const TextSet& set, int64_t context) {
  std::map<std::string, int64_t> taken;
  TextSet few;
  for (size_t i = 0; i < set.texts.size(); ++i) {
    if (++taken[set.documents[i].domain] > kFloorWindows) continue;
    EvalText text = set.texts[i];
    text.ids.resize(std::min(text.ids.size(), static_cast<size_t>(context)));
    few.texts.push_back(std::move(text));
    few.documents.push_back(set.documents[i]);
  }
  return few;
}

}  // namespace

FidelityReport Measurer::measure(const TextSet& on, KeptStreams* kept, bool as_sampled) {
  check(runners_.reference_is_own(),
        "a comparison needs the reference with its own weights: end what is in force there");
  CompareOptions options;
  options.windows.context = desk_.job.context;
  options.candidate_mode = desk_.job.served();
  if (as_sampled) options.sampling = recommended();
  return compare_models(runners_.reference(), runners_.served(), on.texts, options, desk_.pool, {}, kept);
}

FidelityReport Measurer::adjustment() {
  const auto part = desk_.time.part(adjustment_streams_.complete() ? "trials" : "trials, with the source's own pass");
  return measure(desk_.texts.adjustment, &adjustment_streams_);
}

FidelityReport Measurer::certificate(bool as_sampled) {
  const auto part = desk_.time.part(as_sampled                        ? "the certificate's figures"
                                    : certificate_streams_.complete() ? "tests"
                                                                      : "tests, with the source's own pass");
  return measure(desk_.texts.certificate, &certificate_streams_, as_sampled);
}

std::optional<SamplingOptions> Measurer::recommended() const {
  return recommended_sampling(GenerationDefaults::load(desk_.source.texts()));
}

WholeAnswers Measurer::answers() {
  const auto part = desk_.time.part("whole answers");
  const World& world = desk_.world;
  return measure_answers(
      runners_.reference(), runners_.served(),
      answer_prompts(world.tokenizer, world.chat, desk_.texts.certificate, desk_.job.answers),
      {.candidate_mode = desk_.job.served(), .stop_ids = stop_ids_of(desk_.source, world.tokenizer)});
}

FloorFigures Measurer::checked_floor() {
  const Job& job = desk_.job;
  const TextSet few = few_windows(desk_.texts.adjustment, job.context);
  const Judged judged = judge(documents_of(measure(few, nullptr), few), job.promise);
  const Measurement& m = judged.measured;
  const KvFormat cache = desk_.options(job.served()).kv;
  for (const Target& t : desk_.targets)
    check(
        !(t.ear && m.ear.ci95.high < *t.ear) && !(t.kl && m.kl.ci95.low > *t.kl) &&
            !(t.top1 && m.top1.ci95.high < *t.top1),
        "no plan can meet this target: the source's own weights through these kernels (activations {}, cache {}) have "
        "EAR {:.5f} [{:.5f}, {:.5f}], KL {:.6f} ({}). Ask for less{}",
        name_of(job.served()), name_of(cache), m.ear.value, m.ear.ci95.low, m.ear.ci95.high, m.kl.value, judged.worst,
        job.served() == Activations::f32 && cache == KvFormat::f32
            ? ""
            : ", or serve more precisely (--activations f32, --kv f32)");
  return {judged.all.windows, judged.all.tokens, judged.all.ear, judged.all.kl, judged.all.top1};
}

}  // namespace fidelio
