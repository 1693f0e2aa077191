// This file makes counter-based random numbers (Philox 4x32-10, Salmon et al. 2011). Value i of the stream (seed,
// stream) is a pure function of the three numbers. A sampled token therefore depends on its seed and position alone,
// and any part of a long computation can be redone without the parts before it.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>

namespace fidelio {

class Rng {
 public:
  explicit constexpr Rng(uint64_t seed, uint64_t stream = 0) : seed_(seed), stream_(stream) {}

  // Returns the four independent 32-bit words of counter `i`.
  constexpr std::array<uint32_t, 4> block(uint64_t i) const {
    std::array<uint32_t, 4> c = {static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32),
                                 static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)};
    uint32_t k0 = static_cast<uint32_t>(seed_), k1 = static_cast<uint32_t>(seed_ >> 32);
    for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
      const uint64_t a = uint64_t{0xD2511F53u} * c[0], b = uint64_t{0xCD9E8D57u} * c[2];
      c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(b),
           static_cast<uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(a)};
    }
    return c;
  }

  // These return the next 64 bits of the stream, a uniform double in [0, 1), a standard normal, and an integer in [0,
  // n).
  uint64_t next() {
    const auto c = block(counter_++);
    return (uint64_t{c[1]} << 32) | c[0];
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double normal() {
    const double u = 1.0 - uniform(), v = uniform();
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v);
  }
  uint64_t below(uint64_t n) { return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * n) >> 64); }

 private:
  uint64_t seed_, stream_, counter_ = 0;
};

}  // namespace fidelio
