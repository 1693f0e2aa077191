// Runners holds the two models of a compression: the reference, which is the source at FP32, and the served one, which
// runs through the kernels that will serve and gets the weights of plans. Both hold the source's weights unless an
// InForce says otherwise, so a comparison never meets weights that somebody forgot to take back.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "quant/quantize.h"
#include "runtime/runner.h"

namespace fidelio {

class Runners {
 public:
  using MakeRunner = std::function<std::unique_ptr<Runner>(const RunnerOptions&)>;

  // Makes the reference and the codebooks that the formats share. `source` and `make_runner` are of the same model.
  Runners(const Checkpoint& source, const MakeRunner& make_runner, const RunnerOptions& measuring,
          const RunnerOptions& serving, const std::vector<FormatSpec>& formats, ThreadPool& pool);
  Runners(const Runners&) = delete;
  Runners& operator=(const Runners&) = delete;

  Runner& reference() { return *reference_; }
  const Runner& reference() const { return *reference_; }
  Runner& served();  // Throws Error if there is none: a Serving must be alive.
  const SharedCodebooks& codebooks() const { return codebooks_; }
  bool reference_is_own() const { return lent_ == 0; }  // No InForce of the reference is alive.

  // The served runner is made from the reference and lives as long as its Serving.
  class Serving {
   public:
    explicit Serving(Runners& runners);
    ~Serving() { runners_.served_.reset(); }
    Serving(const Serving&) = delete;
    Serving& operator=(const Serving&) = delete;

   private:
    Runners& runners_;
  };

  // While an InForce is alive, other weights than the source's may be in force in one of the runners. When it ends, it
  // puts the source's back.
  enum class Which : uint8_t { reference, served };
  class InForce {
   public:
    InForce(Runners& runners, Which which);
    ~InForce();
    InForce(const InForce&) = delete;
    InForce& operator=(const InForce&) = delete;
    Runner& runner() { return runner_; }

   private:
    Runners& runners_;
    Which which_;
    Runner& runner_;
  };

 private:
  const Checkpoint& source_;
  RunnerOptions serving_;
  std::unique_ptr<Runner> reference_, served_;
  SharedCodebooks codebooks_;
  std::map<LinearId, PackedLinear> own_;  // the source's weights, as both runners have packed them
  int lent_ = 0;                          // how many InForce objects of the reference are alive
};

}  // namespace fidelio
