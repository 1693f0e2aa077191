// This file writes a checkpoint in which more than weights has changed: norms and biases by tuning, or the order of
// columns by Atom.
#pragma once
#include "io/checkpoint.h"

namespace fidelio {

// These are the orders (i32, by order_name()) of weights with columns kept twice, where the source has none
// (ModelConfig::kept_columns).
struct KeptColumns {
  int count = 0;
  std::map<std::string, OwnedTensor> orders;
};

// Writes a checkpoint as write_checkpoint of io/checkpoint.h does. `replaced` are norms and biases, by their names in
// the file, that differ from `source`; each has the dtype and shape that it has there.
void write_checkpoint(const std::string& folder, const Checkpoint& source,
                      const std::map<LinearId, FormatSpec>& formats,
                      const std::function<LinearWeight(LinearId)>& weight, const nlohmann::json& provenance,
                      const std::map<std::string, OwnedTensor>& replaced, const KeptColumns& kept = {});

}  // namespace fidelio
