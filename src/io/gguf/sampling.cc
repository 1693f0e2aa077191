#include "io/gguf/sampling.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "io/gguf/config.h"

namespace fidelio::gguf {
namespace {

constexpr std::array<SamplingKey, 5> kSamplingKeys = {{{"temp", "temperature"},
                                                       {"top_k", "top_k"},
                                                       {"top_p", "top_p"},
                                                       {"min_p", "min_p"},
                                                       {"penalty_repeat", "repetition_penalty"}}};

// A key does nothing where the key that switches it on is 0 or missing.
struct Switch {
  std::string_view key, by;
};
constexpr std::array<Switch, 5> kSwitches = {{{"mirostat", "mirostat"},
                                              {"mirostat_tau", "mirostat"},
                                              {"mirostat_eta", "mirostat"},
                                              {"xtc_probability", "xtc_probability"},
                                              {"xtc_threshold", "xtc_probability"}}};

bool changes_nothing(const File& file, std::string_view key) {
  const auto number = [&](std::string_view name) { return file.number(std::string(kSampling) + std::string(name)); };
  // Penalties here always cover the whole context (-1).
  if (key == "penalty_last_n") return number(key) == -1 || number("penalty_repeat").value_or(1) == 1;
  const auto* const found = std::ranges::find(kSwitches, key, &Switch::key);
  return found != kSwitches.end() && number(found->by).value_or(0) == 0;
}

}  // namespace

std::span<const SamplingKey> sampling_keys() { return kSamplingKeys; }

nlohmann::json recommended_sampling(const File& file) {
  nlohmann::json said = nlohmann::json::object();
  for (const auto& [key, name] : kSamplingKeys) {
    const std::string full = std::string(kSampling) + std::string(key);
    if (key == "top_k") {
      if (const auto value = file.integer(full)) said[std::string(name)] = *value;
    } else if (const auto value = file.number(full)) {
      said[std::string(name)] = written(*value);
    }
  }
  if (said.empty()) return said;
  const bool greedy = said.contains("temperature") && said["temperature"] <= 0;
  said["do_sample"] = !greedy;
  if (greedy) said.erase("temperature");
  return said;
}

std::vector<std::string> unread_sampling(const File& file) {
  std::string keys;
  for (const std::string& key : file.keys_under(kSampling)) {
    const std::string_view name = std::string_view(key).substr(kSampling.size());
    const bool read = std::ranges::find(kSamplingKeys, name, &SamplingKey::key) != kSamplingKeys.end();
    if (!read && !changes_nothing(file, name)) keys += (keys.empty() ? "" : ", ") + shown(key);
  }
  if (keys.empty()) return {};
  return {fmt::format("the file recommends a way of sampling that is not done here: {}", keys)};
}

}  // namespace fidelio::gguf
