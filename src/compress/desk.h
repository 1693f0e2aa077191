// What every step of one compression works with: the source, the texts, and the two runners that hold weights.
#pragma once
#include <optional>

#include "alloc/search.h"
#include "compress/certificate/certify.h"
#include "compress/inputs/own_text.h"
#include "compress/inputs/run_texts.h"
#include "compress/job.h"
#include "compress/preflight.h"
#include "compress/time_account.h"
#include "eval/fidelity/logit_pass.h"
#include "ranks/ranks.h"
#include "runtime/dataset.h"
#include "sensitivity/journal.h"

namespace fidelio {

class Desk {
 public:
  // A desk with stand-ins for the model's own answers serves to foresee what a run takes, not to make one.
  Desk(const Job& job, const World& world, const Ranks& ranks, OwnAnswers own_answers = OwnAnswers::written);

  const Job& job;
  const World& world;
  const Ranks& ranks;
  const Checkpoint& source;
  ThreadPool pool;
  TimeAccount time{"reading"};
  TextSet adjustment, certificate;  // what plans are tried on; what is looked at when one is chosen
  std::vector<Target> targets;      // empty targets where a size or answers are asked for
  std::vector<LinearGroup> groups;
  Dataset calibration, search;                  // what quantisers see; what sensitivities are measured on
  std::string own_text;                         // the model's own answers among --text, a line each; "": none
  std::vector<Document> calibration_documents;  // what calibration was taken from: what plans are tuned on
  TextAccount uses;                             // what the model is made, tried and chosen with
  TextDealt dealt;                              // how adjustment and certificate came about
  std::unique_ptr<Runner> reference, served;
  SharedCodebooks codebooks;  // of the job's formats; made with the reference

  void note(const std::string& text) const;  // by the first rank alone
  RunnerOptions options(Activations mode) const;
  Activations table_mode() const;  // of the candidates while sensitivities are measured
  CompressSize size() const;
  int64_t budget() const;  // bytes that all files may take, 0 without a budget
  int64_t header_bytes(const std::map<LinearId, FormatSpec>& formats) const;  // an upper bound
  // The formats of those linears that do not stay as the source has them.
  std::map<LinearId, FormatSpec> quantised_formats(const SensitivityTable& table, const Plan& plan) const;

  void load_reference();
  void load_served();
  void restore_reference();
  void restore_served();
  // The served weights beside the reference's, on either set. The reference's own must be in place.
  FidelityReport measure_adjustment();
  WholeAnswers measure_answers();  // as many as the job asks for
  // `as_sampled` adds the figures as generation_config.json recommends to sample. They take a third longer, and are wanted of
  // the certified plan alone.
  FidelityReport measure_certificate(bool as_sampled);
  std::optional<SamplingOptions> recommended() const;  // how the source's authors sample it; none: greedily

  // All that decides what the candidates are, and a stage of measurements with them (sensitivity/journal.h).
  std::map<std::string, std::string> candidates_job() const;
  std::string stage(const std::string& what) const;

  // Refusals, before anything is made: a size that nothing has; a target that the kernels miss with the source itself.
  void check_budget() const;
  void check_floor();
  std::optional<FloorFigures> floor;  // what that found: the source itself through the kernels that serve
  void warn_of_codes() const;         // of a source that is quantised already
  void warn_of_scales();              // of formats whose scales do not hold the weights

 private:
  void read_texts(OwnAnswers own_answers);
  void read_calibration(const std::vector<Document>& units);
  void note_uses(const RunTexts& texts);
  FidelityReport measure(const TextSet& on, KeptStreams* kept, bool as_sampled = false);
  void add_own_answers(Corpus& fresh, OwnAnswers kind);
  int64_t tokens_ = 0, search_tokens_ = 0, record_bytes_ = 0;
  std::map<LinearId, PackedLinear> original_;  // the source's, in both runners
  // What the source makes of both sets, kept from the first plan for all others.
  KeptStreams adjustment_streams_, certificate_streams_;
};

}  // namespace fidelio
