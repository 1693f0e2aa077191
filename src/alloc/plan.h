// This file defines the table and the plan that allocation works on: which format each group of linears gets. The
// room `alloc` is pure. It sees no tensor and no model; the measured cost of a plan comes from outside, as a
// callback.
//
// A SensitivityTable says, for each group and candidate format, how many bytes it takes and how much fidelity it
// loses (KL and 1 - EAR, each with its standard error). A Plan is one choice per group. Both can be written as JSON
// that people can read and compare.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/format_spec.h"

namespace fidelio {

struct Option {
  FormatSpec format;
  int64_t bytes = 0;             // bytes stored for the whole group, without shared codebooks
  double kl = 0, kl_se = 0;      // predicted KL in nats per token, and its standard error
  double loss = 0, loss_se = 0;  // predicted share of 1 - EAR, and its standard error
  // This is true if the costs were measured in this very format. Otherwise they were inferred from another format's
  // by the errors of the weights.
  bool measured = true;
  // A token takes this many seconds longer than with the group in its fastest format. It is 0 if nothing was timed.
  double seconds = 0;
};

struct Group {
  std::string name;                  // for example "layers.3.qkv"
  std::vector<std::string> linears;  // short names of the linears, which all get the same format
  int64_t parameters = 0;
  std::vector<Option> options;  // the options in any order, each format once
};

// DecodeTimes says under which conditions the seconds of the options were measured. Times hold for one machine and
// one way of serving.
struct DecodeTimes {
  double seconds = 0;   // seconds per token with every group in its fastest format
  int64_t context = 0;  // tokens in the context before the timed token
  std::string machine;  // the processor, threads, kernels, activations and cache format
};

// A SensitivityTable holds the measured cost of every candidate format of every group.
struct SensitivityTable {
  std::string method;  // how it was measured: "single", "every", "linear", "shapley" or "unified"
  std::vector<Group> groups;
  // The activations of the candidates while the costs were measured. With "f32", the costs are those of the weights
  // alone.
  std::string activations = "f32";
  double base_kl = 0, base_loss = 0;  // cost of those activations with the reference's own weights
  int64_t fixed_bytes = 0;            // bytes of all that no group holds (norms, biases, dense weights)
  double ear_constant = 0;            // the constant c in 1 - EAR = c sqrt(KL), measured with the table
  std::string provenance = "{}";      // JSON with hashes of model and text, seeds, tokens and permutations
  std::optional<DecodeTimes> decode;  // if empty, options have no seconds
};

// A Plan chooses one option for each group of a table. Its amounts are sums over the groups.
struct Plan {
  std::vector<int> choice;  // for each group of the table, the index of its option
  int64_t bytes = 0;        // total bytes, with the fixed bytes and each shared codebook counted once
  double kl = 0;            // predicted KL in nats per token, including the share of the activations
  double loss = 0;          // predicted 1 - EAR, taken as additive (the paper's prediction)
  double seconds = 0;       // predicted seconds per token; 0 without decode times
};

// Returns the number of options that were measured in their own format and the number of those inferred from another.
std::pair<int64_t, int64_t> entries(const SensitivityTable& table);

// The JSON forms of tables and plans follow. table_from_json throws Error, naming what is missing or wrong.
nlohmann::json to_json(const SensitivityTable& table);
SensitivityTable table_from_json(const nlohmann::json& value);
nlohmann::json to_json(const SensitivityTable& table, const Plan& plan);

// Sums up a choice of options. Throws Error if there is not one choice for each group.
Plan evaluate(const SensitivityTable& table, std::vector<int> choice);
// Returns the bits per parameter of the groups. The fixed bytes are left out.
double bits_per_parameter(const SensitivityTable& table, const Plan& plan);
// Returns the EAR predicted from KL by the table's measured constant: 1 - c sqrt(rho KL).
double predicted_ear(const SensitivityTable& table, const Plan& plan, double rho);

// Makes the costs of every group non-increasing in bytes, by weighted pooling of adjacent violators. Noise of the
// measurements must not make a wider format look worse than a narrower one. Formats of the same size are pooled as
// neighbours too.
void make_monotone(SensitivityTable& table);

}  // namespace fidelio
