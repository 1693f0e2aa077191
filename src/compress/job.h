// compress: from a model and what is asked of it to a certified checkpoint, as values with a function between each two:
//
//   calibration text --CandidateSet--> candidates --measure_table--> Measured (SensitivityTable, uniform plans)
//     --search--> Found (Plan, certificate's measurement)  with Builder: Plan -> Built (the weights as they are written)
//     --finish--> checkpoint, certificate
//
// A Job is everything that was asked, parsed once; the room sees no command line, no terminal but notes, and no device
// but what makes it runners.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "alloc/solve.h"
#include "compress/certificate/certificate.h"
#include "compress/rate/decode_clock.h"
#include "core/estimate.h"
#include "eval/fidelity/domains.h"
#include "eval/tasks/tasks.h"
#include "runtime/runner.h"
#include "sensitivity/meter.h"
#include "text/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace fidelio {

enum class SensitivityMethod : uint8_t { single, every, linear, shapley, unified };
enum class SearchKind : uint8_t { ilp, evolve, ilp_evolve };
// Programs that a plan may be for. Its formats are then those that the program's kernels take as they are from
// `export`: codes and scales unrounded.
enum class Consumer : uint8_t { fidelio, vllm, gptq, llama_cpp };

std::string_view name_of(SensitivityMethod method);
std::string_view name_of(SearchKind search);
std::string_view name_of(Consumer consumer);
std::string_view name_of(Grouping grouping);
std::string_view name_of(Promise promise);
// The value of this name. Throws Error naming the option and what it may be.
template <typename Enum>
Enum parse_option(const std::string& option, const std::string& text);

// What a consumer holds. q k v, and gate up, are one matrix in some, and then share a format, as do all experts of a layer.
struct ConsumerRules {
  std::vector<FormatSpec> formats;  // offered by default
  bool fused = false;
  bool embedding = true;                    // a quantised embedding or head is held too
  std::string target, export_options = "";  // of `fidelio export`: --to, and what comes behind it
  // Offered too for a CPU (fine grids: a GPU takes longer over them than over 8 bits), and for a GPU or a rate.
  std::vector<FormatSpec> finest = {}, fastest = {};
  bool holds(const FormatSpec& f, Consumer consumer) const;
};
ConsumerRules rules_of(Consumer consumer);
// Said where nobody chose: what a plan costs more that other programs take, at the same fidelity, and how to ask for one.
std::string_view price_of_export();
// What a plan may choose from where nothing else is said.
std::vector<FormatSpec> default_formats(Consumer consumer, bool on_gpu, bool by_rate);

// What --rule says: linears whose names match get this format.
struct FormatRule {
  std::string pattern;
  FormatSpec format;
};

struct Job {
  std::string model, out;   // the source's name, for pages; the folder to write
  std::vector<double> ear;  // targets; several make one checkpoint each, OUT-99, OUT-98, from one search
  double kl = 0, top1 = 0, bits = 0, accuracy_drop = 0;  // other things that may be asked for; 0 = not
  int64_t bytes = 0;
  double tokens_per_second = 0;     // that a plan must decode at, beside a target or a size, or alone; 0: any
  std::vector<FormatSpec> formats;  // that candidates are made in: those offered, and those that rules name
  std::vector<FormatSpec> offered;  // that a plan may choose from where no rule speaks, beside the source's own
  std::vector<FormatRule> rules;
  std::vector<std::string> ignored;   // patterns of linears that stay as they are
  std::string from_table, plan_file;  // measured or chosen before, instead of measuring and searching; "": not
  Grouping grouping = Grouping::fused;
  Consumer consumer = Consumer::fidelio;
  SensitivityMethod method = SensitivityMethod::single;
  Cost allocate_by = Cost::kl;
  SearchKind search = SearchKind::ilp;
  bool keep_embedding = false, fresh = false;
  std::vector<std::string> calibration, texts;         // as parse_text_source takes them
  Promise promise = Promise::domain;                   // what the target is promised of
  int64_t certificate_windows = 240;                   // at most
  int64_t tokens = 0, search_tokens = 0, samples = 0;  // 0 tokens: as many as suit the model's size
  int64_t context = 0;                                 // of all texts
  int permutations = 8, max_trials = 6;
  int generations = 0;  // of evolution, at most; 0: as many as suit it
  double target_se = 0, calibration_bits = 4;
  uint64_t seed = 0;
  RunnerOptions serving;  // activations, cache, threads, GPU as the model will be served with
  bool on_gpu = false;
  int64_t answers = 0;           // greedy answers that the certificate compares; 0: none
  int64_t answering_tokens = 0;  // room for the questions answered side by side; 0: none are asked
  bool tune = false;             // plans are tuned before they are measured (plan_tuner.h)
  int64_t tune_steps = -1, tune_windows = 0, tune_tokens = 524288, tune_samples = -1;  // -1, 0: as the device allows
  std::string table_file;  // where the table goes as soon as it is measured; "": nowhere
  std::string page_file;   // and the page about each checkpoint

  static constexpr int kGenerationsAlone = 500, kGenerationsAfter = 20;  // of evolution; alone it converges before
  int most_generations() const;                                          // 0: there is no evolution
  Activations served() const { return serving.mode; }
  bool has_target() const { return !ear.empty() || kl > 0 || top1 > 0; }
  // Neither a distance nor a size is named: what is left is to be as good as it can be.
  bool rate_alone() const { return tokens_per_second > 0 && !has_target() && bits == 0 && bytes == 0; }
  // The folders that will be written, one per target, and the pages about them.
  std::vector<std::string> outputs() const;
  std::string page(size_t target) const;
};
// Throws Error where two things that are asked for contradict each other.
void check_job(const Job& job);
// A consumer's kernels take whole groups. Formats offered by default get the largest groups up to their own that divide
// every linear's columns, whole rows if none do; of formats that were asked for one that does not fit is an Error.
void fit_to_columns(Job& job, const ModelConfig& config, bool by_default);
// vLLM's kernels for experts take fewer formats than those for other linears: of a mixture these alone are offered.
void fit_to_experts(Job& job, const ModelConfig& config, bool by_default);

// Questions of a target of tasks: those that the loss of accuracy is read from, and others that say whether it is kept.
enum class QuestionSet : uint8_t { calibration, check };

// The questions of a target of tasks, put to a model (SLQ appendix A.3).
class TaskJudge {
 public:
  virtual ~TaskJudge() = default;
  // Accuracy over the reference's, mean over tasks, paired by question (eval/studies/recovery.h), of the weights that
  // `put` puts in force; an interval of this confidence. `change` says what differs from the model's files.
  virtual Estimate recovery(QuestionSet set, const std::string& change, const std::function<void(Runner&)>& put,
                            double confidence) = 0;
  virtual Estimate unchanged(QuestionSet set, double confidence) const = 0;  // of the reference against itself
  // The calibration questions with the reference's own answers, of each at most `longest` tokens.
  virtual std::vector<AnsweredText> own_text(int64_t longest) const = 0;
  virtual int64_t questions(QuestionSet set) const = 0;
  virtual AskedQuestions asked() const = 0;  // what certificates say of them
};

// What the room needs of the world outside.
struct World {
  const Checkpoint& source;
  const Tokenizer& tokenizer;
  const ChatTemplate* chat = nullptr;                                        // none: calibration has no conversations
  std::function<std::unique_ptr<Runner>(const RunnerOptions&)> make_runner;  // of the source, on the device
  std::function<std::unique_ptr<TaskJudge>(const std::string& folder)> make_judge;  // keeps answers in `folder`
  std::function<void(const std::string&)> note;                                     // a line for the user
  std::string made_by{};                                                            // the foot of pages
  StepTimer step_timer{};  // empty: this machine's clock (rate/decode_clock.h)
};

}  // namespace fidelio
