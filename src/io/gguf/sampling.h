// This file reads the sampling settings that the makers of a model recommend: GGUF's keys general.sampling.*, which
// llama.cpp's server takes as its defaults. It gives them in the terms of generation_config.json.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/gguf/file.h"

namespace fidelio::gguf {

inline constexpr std::string_view kSampling = "general.sampling.";

struct SamplingKey {
  std::string_view key;   // It follows kSampling.
  std::string_view name;  // It is the name in generation_config.json.
};
std::span<const SamplingKey> sampling_keys();

// Returns an object with the settings that the file has; it is empty where the file has none. A temperature of 0
// becomes "do_sample": false.
nlohmann::json recommended_sampling(const File& file);
// Returns a line about the keys that recommend settings which are not supported here, or none.
std::vector<std::string> unread_sampling(const File& file);

}  // namespace fidelio::gguf
