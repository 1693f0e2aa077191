// The room `compress` makes a certified checkpoint of a model and a request, by values with a function between each:
//
//   calibration text --CandidateSet--> candidates --measure_table--> Measured (SensitivityTable, uniform plans)
//     --Search--> Found (Plan, measurement of the certificate)   a Builder makes Built (weights as written) of a Plan
//     --finish--> MadeCheckpoint (files, Certificate)
//
// A Job is everything that was asked, parsed once. The room sees no command line, no terminal except for notes, and no
// device except for the runners that it is given.
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
// A Consumer is the program that a plan is made for. The plan then has only formats that the program's kernels take as
// they are from `export`, with codes and scales unrounded.
enum class Consumer : uint8_t { fidelio, vllm, gptq, llama_cpp };

std::string_view name_of(SensitivityMethod method);
std::string_view name_of(SearchKind search);
std::string_view name_of(Consumer consumer);
std::string_view name_of(Grouping grouping);
std::string_view name_of(Promise promise);
// Returns the value of this name. Throws Error naming the option and its possible values.
template <typename Enum>
Enum parse_option(const std::string& option, const std::string& text);

// ConsumerRules say what a consumer can hold. In some consumers q k v, and gate up, are one matrix and share a format.
// All experts of a layer share one then too.
struct ConsumerRules {
  std::vector<FormatSpec> formats;  // the formats that are offered by default
  bool fused = false;
  bool embedding = true;                    // true if embedding and head may be quantised
  std::string target, export_options = "";  // what `fidelio export` is given: --to, and more options
  // The finest are offered too for a CPU (a GPU takes longer over fine grids than over 8 bits). The fastest are offered
  // too for a GPU, or where a rate is asked for.
  std::vector<FormatSpec> finest = {}, fastest = {};
  bool holds(const FormatSpec& f, Consumer consumer) const;
};
ConsumerRules rules_of(Consumer consumer);
// Returns a sentence for users who did not choose a consumer: how much more a plan for other programs costs at the same
// fidelity, and how to ask for one.
std::string_view price_of_export();
// Returns the formats that a plan may choose from if the user names none.
std::vector<FormatSpec> default_formats(Consumer consumer, bool on_gpu, bool by_rate);

// A FormatRule comes from --rule: linears whose names match the pattern get this format.
struct FormatRule {
  std::string pattern;
  FormatSpec format;
};

struct Job {
  std::string model, out;   // the source's name, for pages; the folder to write
  std::vector<double> ear;  // targets; each of several makes a checkpoint, OUT-99, OUT-98, from one search
  double kl = 0, top1 = 0, bits = 0, accuracy_drop = 0;  // other things that may be asked for; 0 if not
  int64_t bytes = 0;
  double tokens_per_second = 0;     // the speed of a plan, beside a target or a size, or alone; 0: any
  std::vector<FormatSpec> formats;  // formats of the candidates: those offered, and those that rules name
  std::vector<FormatSpec> offered;  // formats that a plan may choose from if no rule matches
  std::vector<FormatRule> rules;
  std::vector<std::string> ignored;   // patterns of linears that stay as they are
  std::string from_table, plan_file;  // a table or plan that was made before, or ""
  Grouping grouping = Grouping::fused;
  Consumer consumer = Consumer::fidelio;
  SensitivityMethod method = SensitivityMethod::single;
  Cost allocate_by = Cost::kl;
  SearchKind search = SearchKind::ilp;
  bool keep_embedding = false, fresh = false;
  std::vector<std::string> calibration, texts;         // sources as parse_text_source takes them
  Promise promise = Promise::domain;                   // the text that the target is promised of
  int64_t certificate_windows = 240;                   // the most windows of the certificate
  int64_t tokens = 0, search_tokens = 0, samples = 0;  // 0 tokens: as suits the model's size
  int64_t context = 0;                                 // tokens of a window of any text
  int permutations = 8, max_trials = 6;
  int generations = 0;  // the most generations of evolution; 0: as suits it
  double target_se = 0, calibration_bits = 4;
  uint64_t seed = 0;
  RunnerOptions serving;  // activations, cache, threads and GPU that the model will be served with
  bool on_gpu = false;
  int64_t answers = 0;           // greedy answers that the certificate compares; 0: none
  int64_t answering_tokens = 0;  // room for the questions answered side by side; 0: none are asked
  int64_t answering_states = 0;  // slots for their states and prefixes
  bool tune = false;             // true if plans are tuned before they are measured (plan_tuner.h)
  int64_t tune_steps = -1, tune_windows = 0, tune_tokens = 524288, tune_samples = -1;  // -1, 0: as suits the device
  std::string table_file;  // the file that the table is written to as soon as it is measured, or ""
  std::string page_file;   // the file of the page about each checkpoint, or ""

  static constexpr int kGenerationsAlone = 500, kGenerationsAfter = 20;  // alone it converges before that
  int most_generations() const;                                          // 0 if there is no evolution
  Activations served() const { return serving.mode; }
  bool has_target() const { return !ear.empty() || kl > 0 || top1 > 0; }
  // This is true if neither a distance nor a size is asked for. The plan is then as good as it can be at that speed.
  bool rate_alone() const { return tokens_per_second > 0 && !has_target() && bits == 0 && bytes == 0; }
  // These return the folders that will be written, one for each target, and the file of the page about one of them.
  std::vector<std::string> outputs() const;
  std::string page(size_t target) const;
};
// Throws Error if two things that are asked for contradict each other.
void check_job(const Job& job);
// Adapts the groups of formats to the model, since a consumer's kernels take whole groups only. Formats that are
// offered by default get the largest groups up to their own that divide the columns of every linear, or whole rows.
// Throws Error for a format that was asked for and does not fit.
void fit_to_columns(Job& job, const ModelConfig& config, bool by_default);
// Offers only formats for experts where the model has some, since vLLM's kernels for experts take fewer formats.
void fit_to_experts(Job& job, const ModelConfig& config, bool by_default);

// A target of tasks has two sets of questions. The loss of accuracy is estimated from `calibration`; `check` says
// whether the promise is kept.
enum class QuestionSet : uint8_t { calibration, check };

// A TaskJudge puts the questions of a target of tasks to a model (SLQ appendix A.3).
class TaskJudge {
 public:
  virtual ~TaskJudge() = default;
  // Returns the accuracy of a model over the reference's, as the mean over tasks, paired by question
  // (eval/studies/recovery.h), with an interval of this confidence. `put` puts the weights into a runner, and `change`
  // says how they differ from the model's files.
  virtual Estimate recovery(QuestionSet set, const std::string& change, const std::function<void(Runner&)>& put,
                            double confidence) = 0;
  // Returns the same of the reference against itself.
  virtual Estimate unchanged(QuestionSet set, double confidence) const = 0;
  // Returns the calibration questions with the reference's own answers, each of at most `longest` tokens.
  virtual std::vector<AnsweredText> own_text(int64_t longest) const = 0;
  virtual int64_t questions(QuestionSet set) const = 0;
  virtual AskedQuestions asked() const = 0;  // what a certificate says of the questions
};

// A World is what the room needs from outside.
struct World {
  const Checkpoint& source;
  const Tokenizer& tokenizer;
  const ChatTemplate* chat = nullptr;  // without it calibration has no conversations
  std::function<std::unique_ptr<Runner>(const RunnerOptions&)>
      make_runner;  // makes a runner of the source, on the device
  std::function<std::unique_ptr<TaskJudge>(const std::string& folder)> make_judge;  // keeps answers in `folder`
  std::function<void(const std::string&)> note;                                     // shows the user a line
  std::string made_by{};                                                            // the foot of pages
  StepTimer step_timer{};  // if empty, this machine's clock (rate/decode_clock.h)
};

}  // namespace fidelio
