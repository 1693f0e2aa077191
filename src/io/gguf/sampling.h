// How a model's makers recommend to sample from it: GGUF's keys general.sampling.*, which llama.cpp's server takes as its
// defaults, and the same in the words of generation_config.json.
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
  std::string_view key;   // behind kSampling
  std::string_view name;  // in generation_config.json
};
std::span<const SamplingKey> sampling_keys();

// An object with what the file says, empty where it says nothing. A temperature of 0 is "do_sample": false.
nlohmann::json recommended_sampling(const File& file);
// A line about the keys that recommend what is not done here, or none.
std::vector<std::string> unread_sampling(const File& file);

}  // namespace fidelio::gguf
