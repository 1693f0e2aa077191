// Where candidates are while no plan has them: on disk, by stop, each to be had alone.
#pragma once
#include "quant/quantize_model.h"

namespace fidelio {

class CandidateStore : public StopStore {
 public:
  // What a stop holds: of each weight its format and shape but no codes, and what it has lost.
  virtual std::vector<QuantizedLinear> list(const std::string& stop) const = 0;
  // One of them with its codes. Throws Error if the stop has none of this linear in this format.
  virtual LinearWeight load(const std::string& stop, LinearId id, const FormatSpec& format) const = 0;
  using StopStore::load;
};

}  // namespace fidelio
