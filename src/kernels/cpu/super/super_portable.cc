// This file multiplies packed super-blocks in plain C++: these are the kernels of any machine, and the readable twin of
// the fast ones.
#include <algorithm>
#include <cstring>

#include "core/dtype.h"
#include "kernels/cpu/super/super_kernels.h"

namespace fidelio::cpu::lowbit {
namespace {

using Codes = int32_t[kSpan][kBlock];  // of a span: codes, or a table's entries, less the middle if there are no minima

template <int kKind>
struct Block {
  const SuperJob& super;
  const Layout& l;
  const uint8_t* base;

  Block(const SuperJob& of, int64_t block)
      : super(of), l(of.job.layout), base(of.job.packed + l.front + block * l.block_bytes) {}

  float half_at(int64_t offset, int64_t span, int r) const {
    f16 value;
    std::memcpy(&value, base + offset + (span / super.super_spans * kBlock + r) * 2, 2);
    return to_float(value);
  }
  float scale(int64_t span, int64_t group, int r) const {
    const uint8_t byte = base[group * kBlock + r];
    const int scale = !has_minima(kKind) ? static_cast<int8_t>(byte) : has_nibbles(kKind) ? byte & 15 : byte;
    return half_at(super.super_offset, span, r) * static_cast<float>(scale);
  }
  float offset(int64_t span, int64_t group, int r) const {
    if (!has_minima(kKind)) return 0;
    const int at = has_nibbles(kKind) ? base[group * kBlock + r] >> 4 : base[l.zero_offset + group * kBlock + r];
    return half_at(super.minimum_offset, span, r) * static_cast<float>(at);
  }
  void unpack(int64_t span, Codes& codes) const {
    constexpr int kBits = bits_of(coding_of_super(kKind));
    std::memset(codes, 0, sizeof codes);
    int plane = 0;
    for (const int width : {4, 2, 1}) {
      if ((kBits & width) == 0) continue;
      const uint8_t* bytes = base + l.plane_offset[plane++] + span * 64 * width;
      for (int c = 0; c < kSpan; ++c)
        for (int r = 0; r < kBlock; ++r) {
          const int quads = 8 / width, quad = c / 4;  // quads of a vector
          const int field = bytes[64 * (quad / quads) + 4 * r + c % 4] >> field_shift(width, quad % quads);
          codes[c][r] = codes[c][r] << width | (field & ((1 << width) - 1));
        }
    }
    for (auto& column : codes)
      for (int32_t& code : column) {
        if (kKind == kSuperTable) code = super.job.packed[code];
        if (!has_minima(kKind)) code -= middle_of(kKind);
      }
  }
};

void store(const Job& job, int64_t block, int64_t m, const float* value) {
  const int64_t rows = std::min<int64_t>(kBlock, job.layout.out - block * kBlock);
  float* y = job.y + m * job.y_stride + block * kBlock;
  for (int64_t r = 0; r < rows; ++r) {
    const float v = job.bias ? value[r] + job.bias[block * kBlock + r] : value[r];
    y[r] = job.add ? y[r] + v : v;
  }
}

template <int kKind, bool kTwo>
void multiply_block(const SuperJob& super, int64_t block, int64_t m0, int64_t rows) {
  constexpr int kGroups = has_half_groups(kKind) ? 2 : 1, kColumns = kSpan / kGroups;
  constexpr int64_t kRowBytes = kTwo ? 2 * kSpan : kSpan;
  const Job& job = super.job;
  const Block<kKind> b(super, block);
  float partial[kMaxRows][kBlock] = {};
  Codes codes;
  for (int64_t s = 0; s < job.layout.spans; ++s) {
    b.unpack(s, codes);
    for (int g = 0; g < kGroups; ++g)
      for (int r = 0; r < kBlock; ++r) {
        const float scale = b.scale(s, s * kGroups + g, r), offset = b.offset(s, s * kGroups + g, r);
        for (int64_t m = 0; m < rows; ++m) {
          const int64_t at = s * job.rows + m0 + m;
          const int8_t* x = job.planes + at * kRowBytes;
          int32_t integer = 0;
          for (int c = g * kColumns; c < (g + 1) * kColumns; ++c)
            integer += codes[c][r] * (kTwo ? 128 * x[c] + x[kSpan + c] : x[c]);
          const int32_t sum = kGroups == 1 ? job.sum[at] : g == 0 ? job.half[at] : job.sum[at] - job.half[at];
          partial[m][r] += static_cast<float>(integer) * (scale * job.scale[at]);
          if (has_minima(kKind)) partial[m][r] -= offset * (job.scale[at] * static_cast<float>(sum));
        }
      }
  }
  for (int64_t m = 0; m < rows; ++m) store(job, block, m0 + m, partial[m]);
}

template <int kKind, bool kTwo>
void multiply(const SuperJob& super) {
  const Job& job = super.job;
  for (int64_t block = job.first; block < job.last; ++block)
    for (int64_t m0 = 0; m0 < job.rows; m0 += kMaxRows)
      multiply_block<kKind, kTwo>(super, block, m0, std::min<int64_t>(kMaxRows, job.rows - m0));
}

template <int kKind>
void multiply_f32(const SuperJob& super) {
  constexpr int kGroups = has_half_groups(kKind) ? 2 : 1;
  const Job& job = super.job;
  const Layout& l = job.layout;
  Codes codes;
  float partial[kMaxRows][kBlock], weights[kSpan][kBlock];
  for (int64_t block = job.first; block < job.last; ++block) {
    const Block<kKind> b(super, block);
    for (int64_t m0 = 0; m0 < job.rows; m0 += kMaxRows) {
      const int64_t rows = std::min<int64_t>(kMaxRows, job.rows - m0);
      std::memset(partial, 0, sizeof partial);
      for (int64_t s = 0; s < l.spans; ++s) {
        b.unpack(s, codes);
        for (int c = 0; c < kSpan; ++c)
          for (int r = 0; r < kBlock; ++r) {
            const int64_t group = s * kGroups + c * kGroups / kSpan;
            weights[c][r] = b.scale(s, group, r) * static_cast<float>(codes[c][r]);
            if (has_minima(kKind)) weights[c][r] -= b.offset(s, group, r);
          }
        const int64_t columns = std::min<int64_t>(kSpan, l.in - s * kSpan);
        for (int64_t m = 0; m < rows; ++m)
          for (int64_t c = 0; c < columns; ++c) {
            const float x = job.values[(m0 + m) * l.in + s * kSpan + c];
            for (int r = 0; r < kBlock; ++r) partial[m][r] += x * weights[c][r];
          }
      }
      for (int64_t m = 0; m < rows; ++m) store(job, block, m0 + m, partial[m]);
    }
  }
}

constexpr SuperKernels kernels() {
  SuperKernels all{};
  for_each_super([&]<int kKind>() {
    all.a16[kKind] = multiply<kKind, true>;
    all.a8[kKind] = multiply<kKind, false>;
    all.f32[kKind] = multiply_f32<kKind>;
  });
  return all;
}

}  // namespace

constinit const SuperKernels kSuperPortable = kernels();

}  // namespace fidelio::cpu::lowbit
