// This file has the parts that decoders of GGUF's blocks share: little-endian words, FP16 numbers, and 32 nibbles.
#pragma once
#include <cstdint>

#include "core/dtype.h"

namespace fidelio::gguf {

inline uint16_t bits_at(const uint8_t* bytes) { return static_cast<uint16_t>(bytes[0] | bytes[1] << 8); }
inline float half_at(const uint8_t* bytes) { return to_float(f16{bits_at(bytes)}); }

// Writes the low nibbles of 16 bytes and then the high ones.
inline void nibbles(const uint8_t* bytes, uint8_t* q) {
  for (int i = 0; i < 16; ++i) {
    q[i] = bytes[i] & 15;
    q[i + 16] = bytes[i] >> 4;
  }
}

}  // namespace fidelio::gguf
