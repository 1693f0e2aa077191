#include "formats/format_spec.h"

#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "core/foreign/foreign_text.h"
#include "formats/foreign_formats.h"
#include "formats/vector_code.h"

namespace fidelio {
namespace {

constexpr std::string_view kGrammar =
    "  bf16 | f16 | f32                      dense\n"
    "  int{2..8}{g16|g32|g64|g128|c}[z][s8]  integer; c: one group a row, z: zero points, s8: 8-bit scales (not with "
    "c)\n"
    "  lut{2..6}{g16|g32|g64|g128}           a grid per matrix, signed 8-bit scales\n"
    "  fp4g16[z]                             E2M1 in blocks of 16, z: an offset a block\n"
    "  mxfp4                                 E2M1 in blocks of 32, a power of two a block\n"
    "  fp8                                   E4M3 with one scale a row\n"
    "  int{2..6}g{16|32}[z]k | lut4g32k      ggml's Q2_K to Q6_K and IQ4_XS, which are read and not made\n"
    "  vq8k{9..20}s{1|4|8}[m][+r{percent}]   vectors of 8: log2 of centroids with their signs, sign bits, m: the "
    "model's "
    "centroids, corrected vectors\n"
    "for example int4g128z, int5g64zs8, int8c, lut4g64, vq8k16s4+r2.2";

// This class reads a string from the left, one piece at a time.
struct Reader {
  std::string_view rest;
  bool take(std::string_view piece) {
    if (!rest.starts_with(piece)) return false;
    rest.remove_prefix(piece.size());
    return true;
  }
  int number() {  // It returns -1 when there is no number, or when the number has a leading zero.
    int value = -1;
    if (rest.empty() || rest[0] < '1' || rest[0] > '9') return -1;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (error != std::errc()) return -1;
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    return value;
  }
  bool group(FormatSpec& spec, bool channel_allowed) {
    if (channel_allowed && take("c")) {
      spec.group = 0;
      return true;
    }
    if (!take("g")) return false;
    spec.group = number();
    return spec.group == 16 || spec.group == 32 || spec.group == 64 || spec.group == 128;
  }
};

// A super-block's string ends with k and the columns that share FP16 numbers, unless they are 256. Q2_K, Q3_K, Q4_K,
// Q5_K, Q6_K and ggml's table of 16 (IQ4_XS) exist, and of 32 columns Q4_1, Q5_1 and IQ4_NL.
bool parse_super(Reader& r, FormatSpec& spec, bool table) {
  spec.kind = Kind::super_block;
  spec.super = 256;
  if (!r.rest.empty()) {
    spec.super = r.number();
    if (spec.super != 128 && (spec.super != 32 || spec.group != 32)) return false;
  }
  const bool whole = table || spec.bits == 4 || spec.bits == 5;
  const bool minima = !table && (spec.bits == 2 || spec.bits == 4 || spec.bits == 5);
  return spec.bits <= (table ? 4 : 6) && (!table || spec.bits == 4) && spec.group == (whole ? 32 : 16) &&
         spec.symmetric == !minima;
}

bool parse_integer(Reader& r, FormatSpec& spec) {
  spec.kind = Kind::integer;
  spec.bits = r.number();
  if (spec.bits < 2 || spec.bits > 8 || !r.group(spec, true)) return false;
  spec.symmetric = !r.take("z");
  if (r.take("k")) return parse_super(r, spec, false);
  if (r.take("s8")) {
    if (spec.group == 0) return false;  // Then the one FP32 scale of a row would already be the only scale.
    spec.scale = ScaleKind::u8;
  }
  return true;
}

bool parse_grid(Reader& r, FormatSpec& spec) {
  spec.kind = Kind::grid;
  spec.bits = r.number();
  if (spec.bits < 2 || spec.bits > 6 || !r.group(spec, false)) return false;
  return !r.take("k") || parse_super(r, spec, true);
}

// Reads "2.2" or "2.25" as hundredths and accepts one spelling only. Returns -1 for anything else.
int parse_hundredths(Reader& r) {
  const int whole = r.take("0.") ? 0 : r.number();
  if (whole < 0 || whole > 20 || (whole > 0 && !r.take("."))) return -1;
  const auto digit = [&] {
    if (r.rest.empty() || r.rest[0] < '0' || r.rest[0] > '9') return -1;
    const int value = r.rest[0] - '0';
    r.rest.remove_prefix(1);
    return value;
  };
  const int tenths = digit(), hundredths = digit();
  if (tenths < 0 || hundredths == 0) return -1;
  return whole * 100 + tenths * 10 + std::max(0, hundredths);
}

bool parse_vectors(Reader& r, FormatSpec& spec) {
  spec.kind = Kind::vq;
  if (!r.take("8k")) return false;
  spec.bits = r.number();
  if (!r.take("s")) return false;
  spec.signs = r.number();
  if (spec.signs != 1 && spec.signs != 4 && spec.signs != 8) return false;
  if (spec.bits - spec.signs < 8 || spec.bits - spec.signs > (spec.signs == 1 ? 11 : 12)) return false;
  spec.shared = r.take("m");
  if (r.take("+r")) {
    spec.sparse = parse_hundredths(r);
    if (spec.sparse < 1 || spec.sparse > 2000) return false;
  }
  return true;
}

bool parse(Reader& r, FormatSpec& spec) {
  if (r.take("bf16")) return spec = {.kind = Kind::bf16, .bits = 16}, true;
  if (r.take("f16")) return spec = {.kind = Kind::f16, .bits = 16}, true;
  if (r.take("f32")) return spec = {.kind = Kind::f32, .bits = 32}, true;
  if (r.take("fp8")) return spec = {.kind = Kind::fp8, .bits = 8}, true;
  if (r.take("fp4g16")) {
    spec = {.kind = Kind::fp4, .bits = 4, .group = 16};
    spec.symmetric = !r.take("z");
    return true;
  }
  if (r.take("mxfp4")) return spec = {.kind = Kind::mxfp4, .bits = 4, .group = 32}, true;
  if (r.take("int")) return parse_integer(r, spec);
  if (r.take("lut")) return parse_grid(r, spec);
  if (r.take("vq")) return parse_vectors(r, spec);
  return false;
}

std::string vectors_to_string(const FormatSpec& spec) {
  std::string text = fmt::format("vq8k{}s{}{}", spec.bits, spec.signs, spec.shared ? "m" : "");
  if (spec.sparse == 0) return text;
  text += fmt::format("+r{}.{}", spec.sparse / 100, spec.sparse / 10 % 10);
  return spec.sparse % 10 == 0 ? text : text + std::to_string(spec.sparse % 10);
}

std::string group_suffix(const FormatSpec& spec) { return spec.group == 0 ? "c" : fmt::format("g{}", spec.group); }

}  // namespace

FormatSpec parse_format(std::string_view text) {
  FormatSpec spec;
  Reader reader{text};
  if (parse(reader, spec) && reader.rest.empty()) return spec;
  const std::string small = lower_case(text);
  Reader small_reader{small};
  const std::string near = small != text && parse(small_reader, spec) && small_reader.rest.empty()
                               ? fmt::format("formats are written in small letters, {}", small)
                               : nearest_format(text);
  throw Error("\"{}\" is not a format{}. A format is one of\n{}", text, near.empty() ? "" : ": " + near, kGrammar);
}

FormatSpec parse_target(std::string_view text) {
  const FormatSpec spec = parse_format(text);
  FormatSpec nearest{.kind = Kind::integer, .bits = spec.bits, .group = 32, .symmetric = false, .scale = ScaleKind::u8};
  if (spec.has_fixed_table()) nearest = {.kind = Kind::grid, .bits = 4, .group = 32};
  check(spec.kind != Kind::super_block,
        "\"{}\" is a format of ggml's, which is read as it is and not made here; the nearest that can be made is {}",
        text, to_string(nearest));
  return spec;
}

std::string to_string(const FormatSpec& spec) {
  switch (spec.kind) {
    case Kind::f32:
      return "f32";
    case Kind::f16:
      return "f16";
    case Kind::bf16:
      return "bf16";
    case Kind::fp8:
      return "fp8";
    case Kind::fp4:
      return spec.symmetric ? "fp4g16" : "fp4g16z";
    case Kind::mxfp4:
      return "mxfp4";
    case Kind::grid:
    case Kind::integer:
      break;
    case Kind::vq:
      return vectors_to_string(spec);
    case Kind::super_block:
      return fmt::format("{}{}g{}{}k{}", spec.has_fixed_table() ? "lut" : "int", spec.bits, spec.group,
                         spec.symmetric ? "" : "z", spec.super == 256 ? "" : std::to_string(spec.super));
  }
  const std::string whole =
      fmt::format("{}{}{}{}{}", spec.kind == Kind::grid ? "lut" : "int", spec.bits + spec.below, group_suffix(spec),
                  spec.symmetric ? "" : "z", spec.scale == ScaleKind::u8 ? "s8" : "");
  return spec.below == 0 ? whole : fmt::format("the {} high bits of {}", spec.bits, whole);
}

std::string shared_name(const FormatSpec& spec) {
  if (!spec.shared) return "";
  FormatSpec plain = spec;
  plain.sparse = 0;
  return "codebooks." + to_string(plain);
}

int64_t shared_bytes(const FormatSpec& spec) {
  return spec.shared ? (int64_t{1} << (spec.bits - spec.signs)) * kVectorDim : 0;
}

int64_t stored_bytes(const FormatSpec& spec, int64_t out, int64_t in) {
  if (spec.is_dense()) return out * in * spec.bits / 8;
  if (spec.kind == Kind::vq) return vector_code_bytes(spec, out, in);
  const int64_t groups = spec.groups(in);
  const auto plane = [](int64_t count, int width) { return (count * width + 7) / 8; };
  // These are the bytes of one row: the codes plane by plane, then what each group adds, then the FP32 scale of the
  // row.
  int64_t row = 0;
  // The planes are the binary digits of `bits`, except that 8 bits are two planes of 4.
  for (const int width : {4, 2, 1})
    if (spec.bits & width) row += plane(in, width);
  if (spec.bits == 8) row += 2 * plane(in, 4);
  switch (spec.kind) {
    case Kind::integer:
      row += spec.scale == ScaleKind::u8 ? groups + 4 : 2 * groups;
      if (!spec.symmetric) row += plane(groups, spec.bits);
      return out * row;
    case Kind::grid:
      return out * (row + groups + 4) + (int64_t{1} << spec.bits);
    case Kind::fp4:
      return out * (row + (spec.symmetric ? groups : 2 * groups) + 4);
    case Kind::mxfp4:
      return out * (row + groups);
    case Kind::super_block:  // The scales and minima of 2-bit codes are nibbles of one byte.
      if (!spec.symmetric) return out * (row + (spec.bits == 2 ? groups : 2 * groups) + 4 * spec.supers(in));
      return out * (row + groups + 2 * spec.supers(in));
    default:
      return out * (row + 4);  // This is fp8.
  }
}

double paper_bits(const FormatSpec& spec) {
  const double group = spec.group;
  switch (spec.kind) {
    case Kind::integer:
      if (spec.group == 0) return spec.bits;
      return spec.bits + ((spec.scale == ScaleKind::u8 ? 8 : 16) + (spec.symmetric ? 0 : 4)) / group;
    case Kind::grid:
      return spec.bits + 8 / group;
    case Kind::fp4:
      return spec.symmetric ? 4.5 : 5.0;
    case Kind::mxfp4:
      return 4.25;
    case Kind::vq:
      return scvq_paper_bits(spec.bits, spec.signs, spec.sparse / 10000.0);
    case Kind::super_block: {  // In ggml's files scales of groups have 4, 6 or 8 bits.
      const int scale_bits = spec.super == 32 ? 0 : spec.bits == 2 ? 4 : spec.bits == 6 ? 8 : 6;
      return spec.bits + (spec.symmetric ? 1 : 2) * (scale_bits / group + 16.0 / spec.super);
    }
    default:
      return spec.bits;
  }
}

}  // namespace fidelio
