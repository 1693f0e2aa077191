#include "io/gguf/super/super_blocks.h"

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "io/gguf/block_bits.h"

namespace fidelio::gguf {
namespace {

constexpr int kChunk = 16;  // columns whose fields are neighbouring bytes
constexpr Field kNoField{0, 0, 0, 0};

// A block of 256 consists of two halves of 128. A half has four runs of 32 columns, whose codes overlap in the same 32
// bytes: the first column of a chunk has half chunk / 8, run chunk % 8 / 2 and byte chunk % 2 * 16.
constexpr int half_of(int chunk) { return chunk / 8; }
constexpr int run_of(int chunk) { return chunk % 8 / 2; }
constexpr int byte_of(int chunk) { return chunk % 2 * 16; }

constexpr Fields codes_2(int c) { return {Field{16 + 32 * half_of(c) + byte_of(c), 2 * run_of(c), 2, 0}, kNoField}; }
constexpr Fields codes_3(int c) {
  return {Field{32 + 32 * half_of(c) + byte_of(c), 2 * run_of(c), 2, 0},
          Field{byte_of(c), 4 * half_of(c) + run_of(c), 1, 2}};
}
// Runs 2 i and 2 i + 1 are the low and high nibbles of the same 32 bytes.
constexpr Fields codes_4(int c) { return {Field{16 + c / 4 * 32 + byte_of(c), c / 2 % 2 * 4, 4, 0}, kNoField}; }
constexpr Fields codes_5(int c) {
  return {Field{48 + c / 4 * 32 + byte_of(c), c / 2 % 2 * 4, 4, 0}, Field{16 + byte_of(c), c / 2, 1, 4}};
}
constexpr Fields codes_6(int c) {
  return {Field{64 * half_of(c) + 32 * (run_of(c) % 2) + byte_of(c), run_of(c) / 2 * 4, 4, 0},
          Field{128 + 32 * half_of(c) + byte_of(c), 2 * run_of(c), 2, 4}};
}
constexpr Fields codes_xs(int c) { return {Field{8 + c / 2 * 16, c % 2 * 4, 4, 0}, kNoField}; }
constexpr Fields codes_nl(int c) { return {Field{2, c * 4, 4, 0}, kNoField}; }
constexpr Fields codes_41(int c) { return {Field{4, c * 4, 4, 0}, kNoField}; }
constexpr Fields codes_51(int c) { return {Field{8, c * 4, 4, 0}, Field{4 + 2 * c, 0, 1, 4}}; }

constexpr Fields scale_2(int g) { return {Field{g, 0, 4, 0}, kNoField}; }
constexpr Fields minimum_2(int g) { return {Field{g, 4, 4, 0}, kNoField}; }
constexpr Fields scale_3(int g) { return {Field{96 + g % 8, g / 8 * 4, 4, 0}, Field{104 + g % 4, g / 4 * 2, 2, 4}}; }
// Eight scales and eight minima of 6 bits are packed in 12 bytes from byte 4 on. Those of the first four groups are the
// low bits of bytes 0-3 and 4-7. Those of the last four are the nibbles of bytes 8-11, with their two high bits above
// the others.
constexpr Fields scale_45(int g) {
  if (g < 4) return {Field{4 + g, 0, 6, 0}, kNoField};
  return {Field{8 + g, 0, 4, 0}, Field{g, 6, 2, 4}};
}
constexpr Fields minimum_45(int g) {
  if (g < 4) return {Field{8 + g, 0, 6, 0}, kNoField};
  return {Field{8 + g, 4, 4, 0}, Field{4 + g, 6, 2, 4}};
}
constexpr Fields scale_6(int g) { return {Field{192 + g, 0, 8, 0}, kNoField}; }
constexpr Fields scale_xs(int g) { return {Field{4 + g / 2, g % 2 * 4, 4, 0}, Field{2 + g / 4, g % 4 * 2, 2, 4}}; }

constexpr FormatSpec spec_of(int bits, int group, bool symmetric, int super = 256) {
  return {.kind = Kind::super_block, .bits = bits, .group = group, .symmetric = symmetric, .super = super};
}
constexpr std::array<SuperType, 9> kTypes = {
    {{3, 3, spec_of(4, 32, false, 32), 20, 0, 2, 0, codes_41, nullptr, nullptr},
     {7, 9, spec_of(5, 32, false, 32), 24, 0, 2, 0, codes_51, nullptr, nullptr},
     {10, 10, spec_of(2, 16, false), 84, 80, 82, 0, codes_2, scale_2, minimum_2},
     {11, 12, spec_of(3, 16, true), 110, 108, 0, 32, codes_3, scale_3, nullptr},
     {12, 15, spec_of(4, 32, false), 144, 0, 2, 0, codes_4, scale_45, minimum_45},
     {13, 17, spec_of(5, 32, false), 176, 0, 2, 0, codes_5, scale_45, minimum_45},
     {14, 18, spec_of(6, 16, true), 210, 208, 0, 0, codes_6, scale_6, nullptr},
     {20, 25, spec_of(4, 32, true, 32), 18, 0, 0, 0, codes_nl, nullptr, nullptr},
     {23, 30, spec_of(4, 32, true), 136, 0, 0, 32, codes_xs, scale_xs, nullptr}}};

int get(const uint8_t* block, const Fields& fields) {
  int value = 0;
  for (const Field& f : fields) value |= (block[f.byte] >> f.shift & ((1 << f.width) - 1)) << f.up;
  return value;
}
void put(int value, const Fields& fields, uint8_t* block) {
  for (const Field& f : fields)
    block[f.byte] = static_cast<uint8_t>(block[f.byte] | (value >> f.up & ((1 << f.width) - 1)) << f.shift);
}
int bits_of(const Fields& fields) { return fields[0].width + fields[1].width; }

// Tells whether the second fields of columns that follow each other are bits that follow each other.
bool has_bits_in_order(const SuperType& type) { return type.codes == codes_51; }
// The m of a block of 32 columns is added, and here it is subtracted.
uint16_t sign_of_minimum(const SuperType& type) { return type.spec.super == 32 ? 0x8000 : 0; }

// A scale of 8 bits is a signed byte.
int scale_from(int stored, const Fields& fields, int bias) {
  return bits_of(fields) == 8 ? static_cast<int8_t>(stored) : stored - bias;
}

// Returns the columns that move together: a super-block or, in another order than the file's, half of one.
int64_t columns_together(const SuperType& type, const Order& columns) {
  return columns.empty() || type.spec.super < 128 ? type.spec.super : 128;
}

}  // namespace

const SuperType* super_type(uint32_t number) {
  const auto found = std::ranges::find(kTypes, number, &SuperType::number);
  return found == kTypes.end() ? nullptr : &*found;
}
const SuperType* super_type(const FormatSpec& spec) {
  for (const SuperType& type : kTypes) {
    FormatSpec ours = type.spec;
    if (spec.super == 128 && ours.super == 256) ours.super = 128;
    if (spec == ours) return &type;
  }
  return nullptr;
}

SuperFields read_block(const SuperType& type, const uint8_t* block) {
  SuperFields f;
  f.d = bits_at(block + type.scale_at);
  if (!type.spec.symmetric) f.m = bits_at(block + type.minimum_at) ^ sign_of_minimum(type);
  for (int chunk = 0; chunk < type.spec.super / kChunk; ++chunk) {
    const auto [low, high] = type.codes(chunk);
    const int low_mask = (1 << low.width) - 1, high_mask = (1 << high.width) - 1;
    const uint8_t *from_low = block + low.byte, *from_high = block + high.byte;
    uint8_t* to = f.codes.data() + kChunk * chunk;
    if (has_bits_in_order(type)) {
      for (int i = 0; i < kChunk; ++i)
        to[i] =
            static_cast<uint8_t>((from_low[i] >> low.shift & low_mask) | (from_high[i / 8] >> (i % 8) & 1) << high.up);
      continue;
    }
    for (int i = 0; i < kChunk; ++i)
      to[i] = static_cast<uint8_t>((from_low[i] >> low.shift & low_mask) | (from_high[i] >> high.shift & high_mask)
                                                                               << high.up);
  }
  for (int g = 0; g < type.spec.super / type.spec.group; ++g) {
    const auto at = static_cast<size_t>(g);
    f.scale[at] = f.minimum[at] = 1;
    if (type.scale) f.scale[at] = scale_from(get(block, type.scale(g)), type.scale(g), type.bias);
    if (type.minimum) f.minimum[at] = get(block, type.minimum(g));
  }
  return f;
}

void write_block(const SuperType& type, const SuperFields& f, uint8_t* block) {
  std::fill_n(block, type.bytes, uint8_t{0});
  const auto put_half = [&](int at, uint16_t bits) {
    block[at] = static_cast<uint8_t>(bits), block[at + 1] = static_cast<uint8_t>(bits >> 8);
  };
  const auto put_number = [&](int value, const Fields& fields, int bias) {
    const int stored = bits_of(fields) == 8 ? static_cast<uint8_t>(value) : value + bias;
    check(stored >= 0 && stored < 1 << bits_of(fields) && (bits_of(fields) < 8 || value == static_cast<int8_t>(stored)),
          "a scale or minimum of {} does not fit the {} bits that ggml has for it", value, bits_of(fields));
    put(stored, fields, block);
  };
  put_half(type.scale_at, f.d);
  if (!type.spec.symmetric) put_half(type.minimum_at, f.m ^ sign_of_minimum(type));
  for (int c = 0; c < type.spec.super; ++c) {
    Fields fields = type.codes(c / kChunk);
    fields[0].byte += c % kChunk;
    if (has_bits_in_order(type))
      fields[1].byte += c % kChunk / 8, fields[1].shift = c % 8;
    else
      fields[1].byte += c % kChunk;
    put(f.codes[static_cast<size_t>(c)], fields, block);
  }
  for (int g = 0; g < type.spec.super / type.spec.group; ++g) {
    const auto at = static_cast<size_t>(g);
    const bool fits = (type.scale || f.scale[at] == 1) && (type.minimum || type.spec.symmetric || f.minimum[at] == 1);
    check(fits, "a scale or minimum that is not 1 does not fit a block of ggml's that has none");
    if (type.scale) put_number(f.scale[at], type.scale(g), type.bias);
    if (type.minimum) put_number(f.minimum[at], type.minimum(g), 0);
  }
}

void decode_block(const SuperType& type, const uint8_t* block, float* values) {
  const SuperFields f = read_block(type, block);
  const float d = to_float(f16{f.d}), m = to_float(f16{f.m});
  const int group = type.spec.group, middle = 1 << (type.spec.bits - 1);
  for (int c = 0; c < type.spec.super; ++c) {
    const auto g = static_cast<size_t>(c / group);
    const uint8_t q = f.codes[static_cast<size_t>(c)];
    const float scale = d * static_cast<float>(f.scale[g]);
    if (!type.spec.symmetric)
      values[c] = scale * static_cast<float>(q) - m * static_cast<float>(f.minimum[g]);
    else
      values[c] = scale * static_cast<float>(type.spec.has_fixed_table() ? kFixedTable[q] : q - middle);
  }
}

std::optional<FormatSpec> super_format(const SuperType& type, const Order& columns) {
  const int64_t together = columns_together(type, columns);
  for (size_t c = 0; c < columns.size(); ++c) {
    const bool begins = c % static_cast<size_t>(together) == 0;
    if (begins ? columns[c] % together != 0 : columns[c] != columns[c - 1] + 1) return {};
  }
  FormatSpec spec = type.spec;
  spec.super = static_cast<int>(together);
  return spec;
}

LinearWeight read_super(const SuperType& type, const FormatSpec& spec, int64_t out, int64_t in,
                        const std::function<const uint8_t*(int64_t)>& row, const Order& columns) {
  LinearWeight w = allocate_weight(spec, out, in);
  auto& to = std::get<SuperBlock>(w.main);
  const int64_t supers = spec.supers(in), each = spec.super / spec.group;
  std::vector<uint8_t> codes(static_cast<size_t>(in));
  auto* scale = reinterpret_cast<uint8_t*>(to.scale.view.data);
  for (int64_t r = 0; r < out; ++r) {
    const uint8_t* blocks = row(r);
    for (int64_t u = 0; u < supers; ++u) {
      const int64_t at = r * supers + u, begin = u * spec.super,
                    from = columns.empty() ? begin : columns[static_cast<size_t>(begin)];
      const SuperFields f = read_block(type, blocks + from / type.spec.super * type.bytes);
      const auto first = static_cast<size_t>(from % type.spec.super);
      std::copy_n(f.codes.begin() + static_cast<std::ptrdiff_t>(first), spec.super, codes.begin() + begin);
      to.super_scale.as<f16>()[static_cast<size_t>(at)] = f16{f.d};
      if (to.super_minimum) to.super_minimum.as<f16>()[static_cast<size_t>(at)] = f16{f.m};
      for (int64_t g = 0; g < each; ++g) {
        const size_t of = first / static_cast<size_t>(spec.group) + static_cast<size_t>(g);
        const int low = f.scale[of], high = spec.bits == 2 ? f.minimum[of] << 4 : 0;
        scale[at * each + g] = static_cast<uint8_t>(low | high);
        if (to.minimum)
          to.minimum.as<uint8_t>()[static_cast<size_t>(at * each + g)] = static_cast<uint8_t>(f.minimum[of]);
      }
    }
    to.codes.set_row(r, codes);
  }
  return w;
}

std::string write_super_row(const LinearWeight& w, int64_t row, const Order& columns) {
  const SuperType& type = *super_type(w.spec);
  const auto& m = std::get<SuperBlock>(w.main);
  const int64_t group = w.spec.group, groups = w.spec.groups(w.in), supers = w.spec.supers(w.in);
  std::vector<uint8_t> codes(static_cast<size_t>(w.in));
  m.codes.get_row(row, codes);
  std::string bytes(static_cast<size_t>(w.in / type.spec.super * type.bytes), '\0');
  for (int64_t block = 0; block < w.in / type.spec.super; ++block) {
    SuperFields f;
    for (int64_t c = 0; c < type.spec.super; c += group) {
      const int64_t place = block * type.spec.super + c,
                    from = columns.empty() ? place : columns[static_cast<size_t>(place)],
                    super = row * supers + from / w.spec.super;
      const uint16_t d = m.super_scale.as<const f16>()[static_cast<size_t>(super)].bits,
                     t = m.super_minimum ? m.super_minimum.as<const f16>()[static_cast<size_t>(super)].bits
                                         : uint16_t{0};
      check(c == 0 || (d == f.d && t == f.m),
            "row {}: the halves of a super-block have different FP16 scales, which ggml's blocks cannot hold", row);
      f.d = d, f.m = t;
      std::copy_n(codes.begin() + from, group, f.codes.begin() + c);
      f.scale[static_cast<size_t>(c / group)] = m.scale_of(row * groups + from / group);
      if (m.super_minimum) f.minimum[static_cast<size_t>(c / group)] = m.minimum_of(row * groups + from / group);
    }
    write_block(type, f, reinterpret_cast<uint8_t*>(bytes.data()) + block * type.bytes);
  }
  return bytes;
}

}  // namespace fidelio::gguf
