// This file handles one page of the cache: what is written when a position is appended, and how a page is widened to
// FP32 for attention. It is compiled once per instruction set; kernel_set.h draws the record.
#pragma once
#include "kernels/cpu/kernel_set.h"
#include "kernels/cpu/simd.h"

namespace fidelio::cpu {
namespace {

// Loads W elements from i on, of 1, 2 or 4 bytes each.
inline V load_element(KvKind kind, const std::byte* part, int64_t i) {
  switch (kind) {
    case KvKind::f32:
      return load(reinterpret_cast<const float*>(part) + i);
    case KvKind::f16:
      return load_halves(part + 2 * i);
    case KvKind::bf16:
      return load_bf16(part + 2 * i);
    default:
      return to_float(load_bytes(part + i));
  }
}
// Returns the codes of W consecutive bytes' low (shift 0) or high (shift 4) nibbles of both planes: 16 high + low.
inline V load_nibbles(const std::byte* high, const std::byte* low, int64_t i, int shift) {
  const U h = (load_bytes(high + i) >> shift) & 15, l = (load_bytes(low + i) >> shift) & 15;
  return to_float(h * 16 + l);
}

// Widens the keys of a page to (e, 32).
inline void widen_keys(const KvRecord& record, const std::byte* page, float* keys) {
  const float* scale = reinterpret_cast<const float*>(page + 2 * record.part_bytes());
  const std::byte* low = page + record.e * 16;
  for (int64_t i = 0; i < record.e; ++i)
    for (int t = 0; t < kTokens; t += W) {
      V v;
      if (record.kind == KvKind::i4x2)
        v = load_nibbles(page, low, i * 16 + t % 16, t < 16 ? 0 : 4);
      else
        v = load_element(record.kind, page, i * kTokens + t);
      if (record.has_scales()) v = fma(v, load(scale + t), load(scale + kTokens + t));
      store(keys + i * kTokens + t, v);
    }
}

// Widens the values of the first `count` positions to (32, padded e); the padding stays zero.
inline void widen_values(const KvRecord& record, const std::byte* page, int count, float* values) {
  const int64_t e = record.e, half = e / 2, padded = padded_head(e);
  const std::byte* part = page + record.part_bytes();
  const std::byte* low = part + kTokens * half;
  const float* scale = reinterpret_cast<const float*>(page + 2 * record.part_bytes()) + 2 * kTokens;
  for (int t = 0; t < count; ++t) {
    float* out = values + t * padded;
    if (record.kind == KvKind::i4x2) {
      for (int64_t i = 0; i < half; ++i) {
        const int h = static_cast<int>(part[t * half + i]), l = static_cast<int>(low[t * half + i]);
        out[i] = static_cast<float>((h & 15) * 16 + (l & 15));
        out[i + half] = static_cast<float>((h >> 4) * 16 + (l >> 4));
      }
    } else {
      // The last vector of a row may read into the next row, and that of the last row into the scales; it is cut
      // below.
      int64_t i = 0;
      for (; i + W <= e; i += W) store(out + i, load_element(record.kind, part, t * e + i));
      if (i < e) {
        float tail[W];
        store(tail, load_element(record.kind, part, t * e + i));
        for (int64_t j = i; j < e; ++j) out[j] = tail[j - i];
      }
    }
    if (record.has_scales())
      for (int64_t i = 0; i < e; ++i) out[i] = scale[kTokens + t] + scale[t] * out[i];
  }
}

inline void write_element(KvKind kind, std::byte* part, int64_t i, float x) {
  if (kind == KvKind::f32) {
    reinterpret_cast<float*>(part)[i] = x;
  } else if (kind == KvKind::bf16) {
    reinterpret_cast<uint16_t*>(part)[i] = round_to_bf16(x);
  } else {
    const float saturated = x > 65504.0f    ? 65504.0f
                            : x < -65504.0f ? -65504.0f
                                            : x;  // an infinity would poison the row
    reinterpret_cast<uint16_t*>(part)[i] = round_to_half(saturated);
  }
}

// A Quantised maps the values of one head of one token to asymmetric 8-bit codes: x ~ zero + scale * code, where zero
// is the minimum. code() returns the code of a value.
struct Quantised {
  float scale, zero, inverse;
  Quantised(const float* x, int64_t e) {
    float low = x[0], high = x[0];
    for (int64_t i = 1; i < e; ++i) low = x[i] < low ? x[i] : low, high = x[i] > high ? x[i] : high;
    scale = (high - low) / 255.0f;
    zero = low;
    inverse = scale > 0 ? 1.0f / scale : 0.0f;
  }
  int code(float x) const {
    const int q = static_cast<int>((x - zero) * inverse + 0.5f);
    return q < 0 ? 0 : q > 255 ? 255 : q;
  }
};
inline void set_nibble(std::byte& b, bool high, int code) {
  b = high ? (b & std::byte{0x0f}) | static_cast<std::byte>(code << 4)
           : (b & std::byte{0xf0}) | static_cast<std::byte>(code);
}

// Writes the key and the value (e each) of position t into a page.
inline void append(const KvRecord& record, std::byte* page, int t, const float* key, const float* value) {
  const int64_t e = record.e, half = e / 2;
  std::byte* values = page + record.part_bytes();
  if (!record.has_scales()) {
    for (int64_t i = 0; i < e; ++i) write_element(record.kind, page, i * kTokens + t, key[i]);
    for (int64_t i = 0; i < e; ++i) write_element(record.kind, values, t * e + i, value[i]);
    return;
  }
  const Quantised k(key, e), v(value, e);
  float* scale = reinterpret_cast<float*>(page + 2 * record.part_bytes());
  scale[t] = k.scale;
  scale[kTokens + t] = k.zero;
  scale[2 * kTokens + t] = v.scale;
  scale[3 * kTokens + t] = v.zero;
  for (int64_t i = 0; i < e; ++i) {
    const int kc = k.code(key[i]), vc = v.code(value[i]);
    if (record.kind == KvKind::i8) {
      page[i * kTokens + t] = static_cast<std::byte>(kc);
      values[t * e + i] = static_cast<std::byte>(vc);
      continue;
    }
    set_nibble(page[i * 16 + t % 16], t >= 16, kc >> 4);
    set_nibble(page[e * 16 + i * 16 + t % 16], t >= 16, kc & 15);
    set_nibble(values[t * half + i % half], i >= half, vc >> 4);
    set_nibble(values[kTokens * half + t * half + i % half], i >= half, vc & 15);
  }
}

}  // namespace
}  // namespace fidelio::cpu
