// A CandidateStore keeps quantised candidates on disk while no plan uses them, grouped by stop (a set of linears that
// share an input), so that each candidate can be read alone.
#pragma once
#include "quant/quantize_model.h"

namespace fidelio {

class CandidateStore : public StopStore {
 public:
  // Lists what a stop holds: for each weight its format, shape and errors, without its codes.
  virtual std::vector<QuantizedLinear> list(const std::string& stop) const = 0;
  // Reads one candidate with its codes. Throws Error if the stop does not hold this linear in this format.
  virtual LinearWeight load(const std::string& stop, LinearId id, const FormatSpec& format) const = 0;
  using StopStore::load;
};

}  // namespace fidelio
