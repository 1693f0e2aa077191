// How far drafts are worth making. Let rate be tokens a second. One more draft of a sequence yields on average
// (probability that all its drafts so far are accepted) x (that the next one is) tokens, and costs a draft row and a
// verified row: it is made where the yield exceeds rate x cost, and a draft step is made where the yields of those in it
// exceed rate x its whole cost. The probability that a drafted token is accepted is learnt from what was accepted before,
// by how sure the draft was; costs are learnt from steps. Where drafting does not pay no draft step is made, but for a
// trial now and then, ever rarer.
//
// Forecasts may be wrong, so two accounts in plain steps bound the loss. Both begin with eight, and a cycle adds .005; one
// cycle takes eight at most, so that what holds a machine up once ends nothing, and 256 / sqrt(sequences) are held at most.
//   account_      a cycle with drafts adds what it gained or lost: while it is overdrawn nothing but trials is verified
//   new_account_  the same, and what new numbers of rows cost (a GPU's step takes as long as several the first two times,
//                 when it is made ready and recorded), which the other leaves out: while it is overdrawn only numbers of
//                 rows are verified that are known
// So speculation loses a hundredth of the time at most, and what the accounts began with.
#pragma once
#include <array>
#include <cstdint>
#include <span>

#include "engine/speculation.h"

namespace fidelio {

// Plain steps after drafts that take longer than plain decoding has them: a cache holds what drafts read (1.63 ms where
// 1.08 are usual, quill-26m on two cores).
constexpr int64_t kPlainStepsToSettle = 2;

// Seconds of a step. As fixed + per_row x rows: least squares over steps, the weight of each halved 100 steps later. And
// as it is, by the number of rows, where steps of as many were seen: kernels for more rows than a few are others, so
// that the ninth row may cost what fifty more do. This is the median of the last nine. A GPU's step takes as long as
// several the first two times, when it is made ready and recorded: of as many rows these are neither in the median nor in
// the line, nor are in the line those that something else held up.
class StepCost {
 public:
  void add(double rows, double seconds);
  bool known() const { return weight_ > 0; }
  int64_t steps(double rows) const { return rows <= kMostRows ? by_rows_[static_cast<size_t>(rows)].steps : 0; }
  double fixed() const;
  double per_row() const;
  double of(double rows) const;
  bool seen(double rows) const;  // of(rows) is what such steps took, not the line
  // As of(rows), and no more than what a step of a few rows more took; known_nearby: there was one.
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
  int seen_from(double rows) const;  // the fewest rows, as many and a quarter more at most, that were seen; -1: none
  double weight_ = 0, x_ = 0, xx_ = 0, y_ = 0, xy_ = 0;  // weighted sums over steps
  std::array<Median, kMostRows + 1> by_rows_{};
  int64_t added_ = 0;
};

// How often drafts were accepted, by how sure the draft was: a table with a prior, that forgets slowly. What the next
// draft will be is hoped for until a few were judged (the account bounds what that costs): with doubts instead it would
// be tried so rarely that it could not prove them wrong.
class AcceptanceTable {
 public:
  AcceptanceTable();
  double rate(double sureness) const;                        // of a draft made with this sureness, 0 to 1
  double mean() const { return all_accepted_ / all_made_; }  // of the next one, whatever it will be
  void add(double sureness, bool accepted);

 private:
  static constexpr std::array<double, 8> kUpTo = {.2, .4, .6, .75, .87, .95, .99, 2};
  static size_t bin_of(double sureness);
  std::array<double, kUpTo.size()> made_{}, accepted_{};
  double all_made_ = 4, all_accepted_ = 3.4;
};

// What to draft, from the costs and acceptances seen so far. Outputs that share a step share its cost.
class Controller {
 public:
  enum class Source : uint8_t { draft, lookup };
  struct Output {        // a sequence that decodes in this cycle
    double reached = 1;  // probability that all its drafts so far are accepted
    bool sampled = false;
    bool drafts = true;  // is to be drafted for in the next draft step
  };
  // share: of the verifier's bytes that the draft reads, its cost before any draft step was timed.
  Controller(const SpeculationOptions& options, double share) : options_(options), share_(share) {}

  // A cycle begins, of so many sequences that decode and so many that run: those whose prompts are read beside will decode
  // too, so that a token now is worth the time it takes then. (Two of four that draft alone beside a long prompt would take
  // longer than four together later.)
  void begin_cycle(int64_t outputs, int64_t running);
  // Nothing but a trial will be verified in this cycle: drafts lost too much, or what a plain step takes is not known yet
  // or is measured again.
  bool holds_back() const { return options_.adapt && (account_ < 0 || measures_plain()); }
  // Whether another draft step is made; `drafts` is cleared where it does not pay.
  bool continues(std::span<Output> outputs);
  // How many of a sequence's drafts, with these probabilities of being reached and accepted, are worth a verified row.
  int64_t worth_verifying(std::span<const double> reached) const;
  // How many of all sequences' drafts together, the likeliest first, are worth what their rows add to the step. Where none
  // is they are verified all the same now and then, so that costs are known.
  int64_t worth_together(std::span<const double> reached);
  // Whether tokens found by lookup are verified instead of drafted ones: their expected number, less their rows' cost,
  // exceeds what drafting gives.
  bool prefers_lookup(std::span<const double> reached) const;
  double rate(Source source, bool sampled, double sureness) const { return table(source, sampled).rate(sureness); }

  void drafted(int64_t rows, double seconds);
  void verified(int64_t rows, double seconds, bool only_outputs);
  void judged(Source source, bool sampled, double sureness, bool accepted);
  void end_cycle(int64_t tokens);

 private:
  // Neither drafted nor verified a draft.
  bool is_plain() const { return drafted_ == 0 && !verified_drafts_; }
  // All that is judged is compared with plain steps, which a machine that changes its pace may have timed long ago: after
  // so many cycles with drafts there are plain ones, until they have settled and a few were timed. (A batch whose
  // sequences end one by one is not timed anew at each number of them.)
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
  double tokens_ = 0, steps_ = 0;      // of cycles, forgetting: tokens a sequence, and plain steps in the same time
  double gain_ = 0;                    // of drafting: tokens a sequence and cycle beyond its cost
  int64_t interval_ = 8, waited_ = 0;  // cycles between trials, since drafting last happened
  int64_t refused_ = 0;                // cycles whose drafts did not pay together
  int64_t cycles_since_plain_ = 0;     // with drafts, since settled plain steps were timed
  int64_t plain_interval_ = 4;         // how many of them there are until that is done again
  int64_t plain_in_a_row_ = 0;         // cycles
  double account_ = 8, new_account_ = 8;

  // Of this cycle.
  int64_t outputs_ = 0, drafted_ = 0;
  bool verified_drafts_ = false, new_rows_ = false;
  double rate_ = 0;  // tokens a second
  double seconds_ = 0;
  bool drafting_ = false, trial_ = false;
};

}  // namespace fidelio
