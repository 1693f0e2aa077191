// The controller decides how many draft tokens are worth making. Let rate be the number of tokens per second. One
// more draft of a sequence yields on average (probability that all its drafts so far are accepted) x (probability
// that this one is) tokens, and it costs a draft row and a verified row. So the draft is worth making if its yield
// exceeds rate x cost. A draft step is worth making if the yields of its drafts together exceed rate x the cost of
// the whole step. The probability of acceptance is learnt from earlier drafts, as a function of how sure the draft
// model was. Costs are learnt from timed steps. If drafting does not pay, only an occasional trial step is made, ever
// more rarely.
//
// Forecasts may be wrong, so two accounts bound the loss. Their unit is a plain step (one without drafts). Both begin
// with eight, and each cycle adds .005. One cycle takes at most eight, so that a single delay of the machine does not
// end drafting, and an account holds at most 256 / sqrt(sequences).
//   account_      A cycle with drafts adds what it gained or lost. While the account is overdrawn, only trials are
//                 verified.
//   new_account_  It counts the same, and also the cost of new numbers of rows, which the other account leaves out. (A
//                 GPU's step takes as long as several the first two times, when it is prepared and recorded as a
//                 graph.) While the account is overdrawn, only known numbers of rows are verified.
// So speculation loses at most a hundredth of the time, plus what the accounts began with.
#pragma once
#include <array>
#include <cstdint>
#include <span>

#include "engine/speculation.h"

namespace fidelio {

// After drafts, this many plain steps take longer than in plain decoding, because caches hold what drafts have read.
// (For quill-26m on two cores it is 1.63 ms in place of the usual 1.08.)
constexpr int64_t kPlainStepsToSettle = 2;

// A StepCost learns how many seconds a step takes, in two ways. One is the line fixed + per_row x rows, by least
// squares over steps whose weight halves every 100 steps. The other is the median of the last nine steps with the
// same number of rows, where enough were seen. It matters because more rows may take other kernels, so that the ninth
// row may cost as much as fifty more. The first two steps with a number of rows count in neither: a GPU's step takes
// as long as several then, while it is prepared and recorded. Steps that something else held up do not count in the
// line.
class StepCost {
 public:
  // Adds a step with this number of rows that took so many seconds.
  void add(double rows, double seconds);
  bool known() const { return weight_ > 0; }
  int64_t steps(double rows) const { return rows <= kMostRows ? by_rows_[static_cast<size_t>(rows)].steps : 0; }
  double fixed() const;
  double per_row() const;
  // Returns the expected seconds of a step with this number of rows.
  double of(double rows) const;
  bool seen(double rows) const;  // whether of(rows) is a median of measured steps, rather than the line
  // Returns of(rows), but no more than the measured time of a step with slightly more rows, if there is one.
  // known_nearby() says whether there is.
  double nearby(double rows) const;
  bool known_nearby(double rows) const { return seen_from(rows) >= 0; }

 private:
  struct Median {
    std::array<double, 9> last{};
    double seconds = 0;
    int64_t steps = 0, added = 0;
    void add(double of_step, int64_t now);
  };
  static constexpr int kMostRows = 256;
  // Returns the smallest number of rows, from `rows` up to a quarter more, that was measured. It is -1 if there is
  // none.
  int seen_from(double rows) const;
  double weight_ = 0, x_ = 0, xx_ = 0, y_ = 0, xy_ = 0;  // weighted sums over steps
  std::array<Median, kMostRows + 1> by_rows_{};
  int64_t added_ = 0;
};

// An AcceptanceTable learns how often drafts are accepted, by how sure the draft model was. It starts from a prior
// and forgets slowly. The prior is optimistic, and the account bounds what that costs. With a pessimistic prior,
// drafts would be tried so rarely that they could not prove it wrong.
class AcceptanceTable {
 public:
  AcceptanceTable();
  double rate(double sureness) const;  // probability that a draft with this sureness (0 to 1) is accepted
  // The same for the next draft, whose sureness is not known yet.
  double mean() const { return all_accepted_ / all_made_; }
  void add(double sureness, bool accepted);

 private:
  static constexpr std::array<double, 8> kUpTo = {.2, .4, .6, .75, .87, .95, .99, 2};
  static size_t bin_of(double sureness);
  std::array<double, kUpTo.size()> made_{}, accepted_{};
  double all_made_ = 4, all_accepted_ = 3.4;
};

// The Controller decides what to draft, from the costs and acceptances seen so far. Outputs that share a step share
// its cost.
class Controller {
 public:
  enum class Source : uint8_t { draft, lookup };
  struct Output {        // a sequence that decodes in this cycle
    double reached = 1;  // probability that all its drafts so far are accepted
    bool sampled = false;
    bool drafts = true;  // whether the next draft step makes a draft for it
  };
  // `share` is the share of the verifier's bytes that the draft reads. It stands for the draft's cost until a draft
  // step was timed.
  Controller(const SpeculationOptions& options, double share) : options_(options), share_(share) {}

  // Begins a cycle in which `outputs` sequences decode and `running` sequences run. Those whose prompts are still
  // being read will decode later too. So a token is worth the time that it takes when all of them decode. (If two of
  // four draft alone beside a long prompt, that may take longer than four together take later.)
  void begin_cycle(int64_t outputs, int64_t running);
  // Returns true if nothing but a trial will be verified in this cycle. Either drafts have lost too much, or the time
  // of a plain step is not known yet or is being measured again.
  bool holds_back() const { return options_.adapt && (account_ < 0 || measures_plain()); }
  // Returns true if another draft step should be made. It clears `drafts` of outputs for which a draft does not pay.
  bool continues(std::span<Output> outputs);
  // Returns how many of a sequence's drafts are worth a verified row. `reached` holds for each the probability that
  // it and all before it are accepted.
  int64_t worth_verifying(std::span<const double> reached) const;
  // Returns how many of all sequences' drafts together, the likeliest first, are worth what their rows add to the
  // step. If none are, all of them are still verified now and then, so that costs become known.
  int64_t worth_together(std::span<const double> reached);
  // Returns true if tokens found by lookup should be verified instead of drafted ones. This is so if their expected
  // number, less the cost of their rows, exceeds the gain of drafting.
  bool prefers_lookup(std::span<const double> reached) const;
  double rate(Source source, bool sampled, double sureness) const { return table(source, sampled).rate(sureness); }

  // These report what happened in the cycle: a draft step, the verifying step, one draft's acceptance, and the end of
  // the cycle with its number of tokens.
  void drafted(int64_t rows, double seconds);
  void verified(int64_t rows, double seconds, bool only_outputs);
  void judged(Source source, bool sampled, double sureness, bool accepted);
  void end_cycle(int64_t tokens);

 private:
  // Returns true if the cycle has made and verified no draft.
  bool is_plain() const { return drafted_ == 0 && !verified_drafts_; }
  // Returns true if plain steps must be measured. Everything is compared with plain steps, and a machine that changes
  // its speed may have been timed long ago. So after a number of cycles with drafts there are plain steps, until
  // these have settled and a few were timed. (If the sequences of a batch end one by one, each new number of them is
  // not timed again.)
  bool measures_plain() const {
    return cycles_since_plain_ >= plain_interval_ || !verify_.known_nearby(static_cast<double>(outputs_));
  }
  const AcceptanceTable& table(Source source, bool sampled) const {
    return tables_[static_cast<size_t>(source)][sampled ? 1 : 0];
  }
  double draft_fixed() const { return draft_.known() ? draft_.fixed() : share_ * verify_.fixed(); }
  double draft_row() const { return draft_.known() ? draft_.per_row() : share_ * verify_.per_row(); }

  SpeculationOptions options_;
  double share_;
  StepCost draft_, verify_;
  std::array<std::array<AcceptanceTable, 2>, 2> tables_;
  // Decaying sums over cycles: tokens per sequence, and how many plain steps would have taken the same time.
  double tokens_ = 0, steps_ = 0;
  double gain_ = 0;                    // what drafting gains in tokens per sequence and cycle, after its cost
  int64_t interval_ = 8, waited_ = 0;  // cycles between trials, and cycles since the last drafting
  int64_t refused_ = 0;                // cycles whose drafts together did not pay
  int64_t cycles_since_plain_ = 0;     // cycles with drafts since settled plain steps were timed
  int64_t plain_interval_ = 4;         // the number of such cycles after which plain steps are timed again
  int64_t plain_in_a_row_ = 0;         // plain cycles in a row
  double account_ = 8, new_account_ = 8;

  // The next members are about the current cycle.
  int64_t outputs_ = 0, drafted_ = 0;
  bool verified_drafts_ = false, new_rows_ = false;
  double rate_ = 0;  // tokens per second
  double seconds_ = 0;
  bool drafting_ = false, trial_ = false;
};

}  // namespace fidelio
