#include "kernels/cpu/linear/lowbit_split.h"

#include <array>
#include <cstring>
#include <vector>

#include "formats/linear_weight.h"

namespace fidelio::cpu::lowbit {
namespace {

constexpr int64_t kVector = 64, kAhead = 8192;
constexpr int kWords = 8, kPairs = 4;  // words of a vector, and pairs of quads in a span

// These are the widths of the parts that a plane may be split into, in the order of Kernels::merge; 0 means no part.
constexpr std::array<std::array<int, 3>, kSplits> kParts = {{{2, 1, 1}, {1, 1, 2}, {1, 1, 0}}};

// A SplitPlane is the plane that `cut` lies in.
struct SplitPlane {
  int64_t offset = 0, bytes = 0;
  size_t into = 0;  // index into kParts
};
SplitPlane plane_at(const Layout& l, int cut) {
  int end = 0, p = 0;
  for (const int width : plane_widths(l.code_bits)) {
    if (cut > end && cut < end + width)
      return {l.plane_offset[p], l.spans * kVector * width, width == 2 ? size_t{2} : cut == end + 1 ? size_t{1} : 0};
    end += width, ++p;
  }
  return {};
}

// A Field finds the bits of pair i of quads of a span in a plane of kWidth bits. As lowbit.h draws it, the first
// quad's bits begin at bit 0 of every byte of some vector, or further up, and the second's lie four bits above. get()
// returns word w of that vector, shifted so that they begin at bit 0.
template <int kWidth>
struct Field {
  static constexpr uint64_t kBytes = 0x0101010101010101;
  static constexpr uint64_t kMask = ((1 << kWidth) - 1) * (kBytes | kBytes << 4);
  static int64_t byte(int pair, int word) { return pair * kWidth / 4 * kVector + word * 8; }
  static int shift(int pair) { return pair * kWidth % 4; }

  static uint64_t get(const uint8_t* span, int pair, int word) {
    uint64_t v;
    std::memcpy(&v, span + byte(pair, word), 8);
    return v >> shift(pair) & kMask;
  }
  static void put(uint64_t field, uint8_t* span, int pair, int word) {
    uint64_t v;
    std::memcpy(&v, span + byte(pair, word), 8);
    v |= field << shift(pair);
    std::memcpy(span + byte(pair, word), &v, 8);
  }
};
template <>
struct Field<0> {
  static uint64_t get(const uint8_t*, int, int) { return 0; }
  static void put(uint64_t, uint8_t*, int, int) {}
  static constexpr uint64_t kMask = 0;
};

template <int kHigh, int kMiddle, int kLow>
void split_plane(const uint8_t* whole, int64_t spans, uint8_t* parts) {
  constexpr int kWhole = kHigh + kMiddle + kLow;
  uint8_t *high = parts, *middle = high + spans * kVector * kHigh, *low = middle + spans * kVector * kMiddle;
  for (int64_t s = 0; s < spans; ++s)
    for (int pair = 0; pair < kPairs; ++pair)
      for (int w = 0; w < kWords; ++w) {
        const uint64_t v = Field<kWhole>::get(whole + s * kVector * kWhole, pair, w);
        Field<kHigh>::put(v >> (kMiddle + kLow) & Field<kHigh>::kMask, high + s * kVector * kHigh, pair, w);
        Field<kMiddle>::put(v >> kLow & Field<kMiddle>::kMask, middle + s * kVector * kMiddle, pair, w);
        Field<kLow>::put(v & Field<kLow>::kMask, low + s * kVector * kLow, pair, w);
      }
}

}  // namespace

bool PlaneList::ends_at(int bits) const {
  const auto wanted = plane_widths(bits);
  for (size_t i = 0; i < wanted.size(); ++i)
    if (static_cast<int>(i) >= count || width[i] != wanted[i]) return false;
  return true;
}

PlaneList planes_of(const Layout& whole, int cut) {
  PlaneList list;
  const SplitPlane split = plane_at(whole, cut);
  const auto append = [&](int width, int64_t offset) {
    list.width[list.count] = width;
    list.offset[list.count++] = offset;
  };
  int p = 0;
  for (const int width : plane_widths(whole.code_bits)) {
    int64_t at = whole.plane_offset[p++];
    if (split.bytes == 0 || at != split.offset) {
      append(width, at);
      continue;
    }
    for (const int part : kParts[split.into]) {
      if (part > 0) append(part, at);
      at += whole.spans * kVector * part;
    }
  }
  return list;
}

bool ends_inside(int bits, int cut) { return cut >= 2 && cut < bits && !is_view_width(bits, cut); }

void split_block(const Layout& whole, int cut, uint8_t* block) {
  const SplitPlane split = plane_at(whole, cut);
  const std::vector<uint8_t> before(block + split.offset, block + split.offset + split.bytes);
  std::memset(block + split.offset, 0, static_cast<size_t>(split.bytes));
  constexpr MergePlane kSplit[kSplits] = {split_plane<2, 1, 1>, split_plane<1, 1, 2>, split_plane<1, 1, 0>};
  kSplit[split.into](before.data(), whole.spans, block + split.offset);
}

void merge_block(const Layout& whole, int cut, const MergePlane* merge, const uint8_t* block, uint8_t* to) {
  const SplitPlane split = plane_at(whole, cut);
  const auto copy = [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kVector) {
      __builtin_prefetch(block + at + kAhead, 0, 2);
      std::memcpy(to + at, block + at, kVector);
    }
  };
  copy(0, split.offset);
  merge[split.into](block + split.offset, whole.spans, to + split.offset);
  copy(split.offset + split.bytes, whole.block_bytes);
}

}  // namespace fidelio::cpu::lowbit
