#include "compress/inputs/job_texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "compress/certificate/dealt.h"
#include "compress/certificate/judge.h"
#include "compress/preflight.h"
#include "compress/self_samples.h"
#include "runtime/texts/words.h"

namespace fidelio {
namespace {

// Every plan that is tried runs through so many windows of all domains together. A certificate of fewer windows wants
// no more text for trying than it has itself, down to what still shows how documents differ.
constexpr int64_t kLeastAdjustmentWindows = 16, kAdjustmentWindows = 64;
constexpr size_t kMostNamed = 2000;  // A certificate names at most so many documents that were left out.

class TextReader {
 public:
  TextReader(const Job& job, const World& world, const Ranks& ranks, OwnAnswers own_answers)
      : job_(job), world_(world), ranks_(ranks), source_(world.source), own_answers_(own_answers) {}

  ReadTexts read_all() {
    check_takes_words(job_.calibration, world_.chat, job_.model);
    check_takes_words(job_.texts, world_.chat, job_.model);
    std::vector<std::string> files = job_.texts;
    std::erase_if(files, [](const std::string& text) { return own_documents(text).has_value(); });
    RunTexts read = rid_of_copies(corpus(job_.calibration, TextUse::calibration), corpus(files, TextUse::heldout),
                                  [&](const std::string& text) { note(text); });
    add_own_answers(read.fresh);
    read_calibration(units_of(read.seen, job_.context, "--calibration"));
    texts_.calibration.sha256 = read.seen.sha256;
    Division fresh = divide(units_of(read.fresh, job_.context, "--text"), kAdjustmentShare);
    texts_.adjustment = text_set(std::move(fresh.first), job_.context,
                                 std::clamp(job_.certificate_windows, kLeastAdjustmentWindows, kAdjustmentWindows));
    texts_.certificate = text_set(std::move(fresh.second), job_.context, job_.certificate_windows);
    if (job_.answers > 0)  // Too few prompts are refused before the work.
      answer_prompts(world_.tokenizer, world_.chat, texts_.certificate, job_.answers);
    const bool named = read.left_out.size() <= kMostNamed;
    texts_.dealt = {kDealing, named ? read.fresh.sha256 : "", job_.certificate_windows,
                    named ? read.left_out : std::vector<std::string>()};
    TextAccount uses = uses_of(read);
    describe_all();
    return {std::move(texts_), std::move(uses)};
  }

 private:
  void note(const std::string& text) const {
    if (ranks_.first()) world_.note(text);
  }

  Corpus corpus(const std::vector<std::string>& texts, TextUse use) const {
    return read_corpus(without_words(texts, use, ""), world_.tokenizer, world_.chat, job_.context, Shingles::kept);
  }

  // The model's own answers are written here, before anything else of it is in memory.
  void add_own_answers(Corpus& fresh) {
    for (const std::string& text : job_.texts) {
      const std::optional<int64_t> wanted = own_documents(text);
      if (!wanted) continue;
      check(texts_.own_text.empty(), "--text {}: the model's own answers are asked for twice; give own:N once", text);
      Corpus own = own_corpus(world_, job_, fresh.documents, *wanted, own_answers_);
      if (own_answers_ == OwnAnswers::stand_ins)
        note(
            fmt::format("the model's own answers are not written by a dry run: {} of the greatest length are counted, "
                        "and writing them "
                        "comes on top",
                        own.documents.size()));
      if (own.too_short > 0)
        note(fmt::format("{} of the model's own answers are too short, and left out", own.too_short));
      if (const int64_t repeated = *wanted - std::ssize(own.documents) - own.too_short; repeated > 0)
        note(fmt::format("{} of the model's own answers repeat others, and are left out", repeated));
      texts_.own_text = own_text(own, world_.tokenizer);
      add_own(fresh, std::move(own));
    }
  }

  void read_calibration(const std::vector<Document>& units) {
    const int64_t parameters = source_.parameters();
    const int64_t tokens = job_.tokens > 0 ? job_.tokens : calibration_tokens_for(parameters, job_.on_gpu);
    const int64_t search_tokens =
        job_.search_tokens > 0 ? job_.search_tokens : search_tokens_for(parameters, job_.on_gpu);
    Dataset& calibration = texts_.calibration;
    Division division = divide(units, 10);
    check(job_.samples <= tokens,
          "--calibration-samples {} are some of the --calibration-tokens, of which there are {}", job_.samples, tokens);
    if (job_.samples < tokens) calibration = dataset_of(division.second, job_.context, tokens - job_.samples);
    if (job_.samples > 0) {
      const Dataset starts = dataset_of(division.second, job_.context, std::numeric_limits<int64_t>::max());
      for (auto& s : sample_sequences(world_.make_runner, job_.serving, starts.sequences, job_.samples, job_.context,
                                      job_.seed)) {
        calibration.tokens += static_cast<int64_t>(s.size());
        calibration.sequences.push_back(std::move(s));
      }
    }
    texts_.search = dataset_of(division.first, job_.context, search_tokens);
    texts_.calibration_documents = std::move(division.second);
  }

  TextAccount uses_of(const RunTexts& read) const {
    TextAccount uses(source_.parameters(), read, texts_.certificate);
    const auto sequences_of = [&](const Dataset& data) {
      return origins_of(data.sequences, read.seen.documents, job_.context);
    };
    const SequenceOrigins calibrated = sequences_of(texts_.calibration);
    uses.add("calibration", read.seen, calibrated.documents);
    for (const std::vector<int32_t>* sample : calibrated.others)
      uses.add_text("samples", world_.tokenizer.decode(*sample));
    uses.add("search", read.seen, sequences_of(texts_.search).documents);
    if (job_.tune)
      uses.add("tuning", read.seen,
               sequences_of(dataset_of(texts_.calibration_documents, job_.context, job_.tune_tokens)).documents);
    std::set<std::string> tried;
    for (const Document& d : texts_.adjustment.documents) tried.insert(d.sha256);
    uses.add("trial", read.fresh, tried);
    uses.add_certificate();
    return uses;
  }

  void describe_all() const {
    const ModelConfig& c = source_.config();
    const Dataset &calibration = texts_.calibration, &search = texts_.search;
    double fewest = std::numeric_limits<double>::infinity();  // This is about tokens a column.
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
    note(fmt::format("plans are tried on {}", describe(texts_.adjustment)));
    note(fmt::format("the certificate is taken on {}", describe(texts_.certificate)));
    if (const std::string few = few_documents_text(texts_.certificate); !few.empty()) note("Note: " + few);
  }

  const Job& job_;
  const World& world_;
  const Ranks& ranks_;
  const Checkpoint& source_;
  const OwnAnswers own_answers_;
  JobTexts texts_;
};

}  // namespace

ReadTexts read_texts(const Job& job, const World& world, const Ranks& ranks, OwnAnswers own_answers) {
  return TextReader(job, world, ranks, own_answers).read_all();
}

}  // namespace fidelio
