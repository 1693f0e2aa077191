// alloc: which format each group of linears gets. Pure: no tensor and no model is seen here; what a plan really costs
// comes from outside as a callback.
//
// A SensitivityTable says, per group and candidate format, what it costs (bytes) and what it breaks (KL, 1 - EAR, with
// standard errors). A Plan is one choice per group. Both are JSON that people can read and diff.
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
  int64_t bytes = 0;             // true stored bytes of the whole group in this format, a shared codebook left out
  double kl = 0, kl_se = 0;      // predicted KL contribution in nats a token, and its standard error
  double loss = 0, loss_se = 0;  // predicted contribution to 1 - EAR
  bool measured = true;          // in this very format; false: follows from another by the error of the weights
  double seconds = 0;            // that a token takes longer than with the group in its fastest format; 0: not timed
};

struct Group {
  std::string name;                  // "layers.3.qkv"
  std::vector<std::string> linears;  // short names; all get the same format
  int64_t parameters = 0;
  std::vector<Option> options;  // any order; each format once
};

// What the formats' times were measured with: times are of one machine and one way to serve.
struct DecodeTimes {
  double seconds = 0;   // a token, with every group in its fastest format
  int64_t context = 0;  // tokens before it
  std::string machine;  // processor, threads, kernels, activations and cache
};

struct SensitivityTable {
  std::string method;  // "single", "every", "linear", "shapley", "unified"
  std::vector<Group> groups;
  std::string activations = "f32";    // of the candidates while the costs were measured: f32 judges weights alone
  double base_kl = 0, base_loss = 0;  // what those activations cost with the reference's own weights
  int64_t fixed_bytes = 0;            // of everything no group holds (norms, biases, what stays dense)
  double ear_constant = 0;            // c of 1 - EAR = c sqrt(KL), measured with the table
  std::string provenance = "{}";      // JSON: model and text hashes, seeds, tokens, permutations
  std::optional<DecodeTimes> decode;  // none: options have no seconds
};

struct Plan {
  std::vector<int> choice;  // option index per group of the table it came from
  int64_t bytes = 0;        // fixed_bytes included, and every shared codebook that an option names once
  double kl = 0;            // predicted, additive, the activations' share included
  double loss = 0;          // predicted additive 1 - EAR (the paper's prediction)
  double seconds = 0;       // predicted, additive, a token; 0 without decode times
};

// Options measured in their own format, and those that follow from another.
std::pair<int64_t, int64_t> entries(const SensitivityTable& table);

nlohmann::json to_json(const SensitivityTable& table);
SensitivityTable table_from_json(const nlohmann::json& value);  // throws Error naming what is missing or wrong
nlohmann::json to_json(const SensitivityTable& table, const Plan& plan);

Plan evaluate(const SensitivityTable& table, std::vector<int> choice);
double bits_per_parameter(const SensitivityTable& table,
                          const Plan& plan);  // of the groups' parameters, fixed bytes left out
// EAR predicted from KL by the table's measured constant: 1 - c sqrt(rho KL).
double predicted_ear(const SensitivityTable& table, const Plan& plan, double rho);

// In every group, costs made non-increasing in bytes by weighted pooling of adjacent violators: sampling noise must not
// make a wider format look worse than a narrower one. Formats of one size count as neighbours too.
void make_monotone(SensitivityTable& table);

}  // namespace fidelio
