// Writing a checkpoint of which more than weights has changed: norms and biases by tuning, the order of columns by Atom.
#pragma once
#include "io/checkpoint.h"

namespace fidelio {

// Weights with columns kept twice, where the source has none (ModelConfig::kept_columns): i32 orders by order_name().
struct KeptColumns {
  int count = 0;
  std::map<std::string, OwnedTensor> orders;
};

// As write_checkpoint of io/checkpoint.h. `replaced`: norms and biases by their names in the file that are not as in
// `source`, each of the dtype and shape it has there.
void write_checkpoint(const std::string& folder, const Checkpoint& source,
                      const std::map<LinearId, FormatSpec>& formats,
                      const std::function<LinearWeight(LinearId)>& weight, const nlohmann::json& provenance,
                      const std::map<std::string, OwnedTensor>& replaced, const KeptColumns& kept = {});

}  // namespace fidelio
