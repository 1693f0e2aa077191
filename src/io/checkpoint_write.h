// Writing a checkpoint whose norms and biases have changed too: what tuning gives.
#pragma once
#include "io/checkpoint.h"

namespace fidelio {

// As write_checkpoint of io/checkpoint.h. `replaced`: norms and biases by their names in the file that are not as in
// `source`, each of the dtype and shape it has there.
void write_checkpoint(const std::string& folder, const Checkpoint& source,
                      const std::map<LinearId, FormatSpec>& formats,
                      const std::function<LinearWeight(LinearId)>& weight, const nlohmann::json& provenance,
                      const std::map<std::string, OwnedTensor>& replaced);

}  // namespace fidelio
