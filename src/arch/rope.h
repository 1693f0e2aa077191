// This file defines Rope, which says how rotary position embeddings turn a head.
#pragma once
#include <cstdint>
#include <vector>

namespace fidelio {

// RopeType says how the frequencies of rotary position embeddings are made.
//   plain      theta^(-2i/e) for pair i.
//   linear     All frequencies are divided by the factor.
//   dynamic    "Dynamic NTK" is plain up to max_positions. Beyond, theta would grow with the sequence and rotate every
//              key anew at each token; this is not computed.
//   llama3     Low frequencies are divided and high ones are kept, with a ramp between them (Llama 3.1).
//   yarn       "NTK by parts" with a factor on cos and sin (Peng et al. 2023, arXiv 2309.00071).
//   longrope   Each frequency has a divisor, from one list up to the original context and from another beyond it, and
//              cos and sin have a factor (Ding et al. 2024, arXiv 2402.13753).
//   proportional  The first pairs have plain's frequencies over the whole head, and the others are not turned (Gemma
//              4).
enum class RopeType : uint8_t { plain, linear, dynamic, llama3, yarn, longrope, proportional };

struct Rope {
  RopeType type = RopeType::plain;
  double theta = 10000;
  double factor = 1;  // linear, llama3, yarn: the context is stretched by this factor, at least 1
  // llama3 divides wavelengths above original_max_positions / low_freq_factor by the factor.
  double low_freq_factor = 1;
  double high_freq_factor = 4;     // llama3: wavelengths below original_max_positions / high_freq_factor are kept
  int original_max_positions = 0;  // llama3, yarn, longrope: context length before stretching
  double beta_fast = 32;           // yarn: pairs that make more turns than this over the original context are kept
  double beta_slow = 1;            // yarn: pairs that make fewer turns than this are divided by factor
  // yarn and longrope multiply cos and sin by this. It is already resolved from attention_factor, mscale and others.
  double attention_factor = 1;
  bool truncate = true;                               // yarn: the ends of the ramp are rounded outwards to whole pairs
  std::vector<double> short_divisors, long_divisors;  // longrope: one divisor for each pair's frequency
  double turned_share = 1;                            // proportional: the share of a head's pairs that are turned
};

// Returns the angular frequencies, in radians per position, of the pairs of columns (i, i + rotary / 2) of a head, so
// rotary / 2 values. The computation follows transformers' ROPE_INIT_FUNCTIONS operation by operation in FP32,
// because models were trained with those roundings. theta^x is the exception: it is rounded correctly, where torch's
// vector pow may be off by 1 ulp, so a frequency differs by at most 2 ulp. `context` is the longest sequence and
// chooses longrope's divisors once (transformers chooses them in every call).
std::vector<float> rope_inverse_frequencies(const Rope& rope, int rotary, int64_t context = 0);

}  // namespace fidelio
