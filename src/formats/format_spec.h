// This file defines FormatSpec, which says how the weights of a linear layer are stored. The folder (formats) holds the
// meaning of every format as scalar, obviously right code; the fast versions are in kernels/.
//
// A FormatSpec round-trips to a short string, and that string is the vocabulary of the whole project (command line,
// plans, benches, logs, test names):
//
//   bf16  f16  f32            dense
//   int4g128z                 integer codes of 4 bits, groups of 128 columns, a zero point (asymmetric), FP16 scales
//   int4g128                  the same, symmetric: w = s (q - 2^(b-1))
//   int5g64zs8                8-bit scales: w = r s (q - z), s an unsigned byte, r one FP32 a row
//   int8c                     one group a row (channel-wise)
//   lut4g64                   a grid of 16 signed bytes per matrix, a signed 8-bit scale a group, one FP32 a row
//   fp4g16  fp4g16z           E2M1 codes with an E4M3 scale a block of 16, z: and an E4M3 offset
//   mxfp4                     E2M1 codes with a power of two a block of 32
//   fp8                       E4M3 with one FP32 scale a row
//   int4g32zk                 ggml's Q4_K as it is: integer scales and minima of groups, relative to two FP16 of each
//                             256 columns. The others are int2g16zk (Q2_K), int3g16k, int5g32zk and int6g16k (Q6_K).
//   lut4g32k                  ggml's IQ4_XS as it is; k32, where 32 columns share the FP16: IQ4_NL, Q4_1, Q5_1
//   vq8k16s4                  vectors of 8 columns: 2^16 virtual centroids, 4 of whose bits are signs; 2^12 are stored
//   vq8k16s4+r2.2             the same, and 2.2 percent of the vectors have a correction of their own
//   vq8k16s4m                 the 2^12 are the model's: all linears that have them share one codebook, stored once
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace fidelio {

enum class Kind : uint8_t { f32, f16, bf16, integer, grid, fp4, mxfp4, fp8, vq, super_block };
enum class ScaleKind : uint8_t { f16, u8 };  // u8 is an unsigned byte times one FP32 a row.

struct FormatSpec {
  Kind kind = Kind::bf16;
  // These are the bits of a code: integer 2..8, grid 2..6, super_block 2..6, fp4 and mxfp4 4, fp8 8, vq 9..20 (for 8
  // weights), dense 16 or 32.
  int bits = 16;
  int group = 0;  // This many columns share a scale: 16, 32, 64, 128; 0 means the whole row (integer, fp8, dense).
  // If false, each group has a zero point (integer), an offset (fp4) or a minimum (super_block).
  bool symmetric = true;
  // The scale is for integers only; the other kinds have one kind of scale each and leave it as it is.
  ScaleKind scale = ScaleKind::f16;
  int signs = 0;        // This is for vq only: this many bits of a code are signs, 1, 4 or 8.
  int sparse = 0;       // This is for vq only: the share of vectors with a correction, in hundredths of a percent.
  bool shared = false;  // This is for vq only: the whole model shares one codebook.
  int super = 0;        // This is for super_block only: this many columns share an FP16 scale, 256, 128 or 32.
  // This is for integers and grids: this many low bits of every code are left out by high_planes(). It is 0 in every
  // file.
  int below = 0;

  bool is_dense() const { return kind == Kind::f32 || kind == Kind::f16 || kind == Kind::bf16; }
  // Tells whether codes are places in ggml's fixed table of 16 (formats/linear_weight.h) and not integers themselves.
  bool has_fixed_table() const { return kind == Kind::super_block && bits == 4 && symmetric; }
  bool operator==(const FormatSpec&) const = default;
  // The group size is the number of columns of a group in a matrix of `in` columns. groups() counts the groups of a
  // row, of which the last may be ragged.
  int64_t group_size(int64_t in) const { return group == 0 ? in : group; }
  int64_t groups(int64_t in) const { return (in + group_size(in) - 1) / group_size(in); }
  int64_t supers(int64_t in) const { return (in + super - 1) / super; }
};

std::string to_string(const FormatSpec& spec);
FormatSpec parse_format(std::string_view text);  // It throws Error showing the nearest format and the grammar.
// Parses the name of a format that weights are to be put into. Formats that are only read are refused, with the nearest
// that can be made.
FormatSpec parse_target(std::string_view text);

// Returns the exact bytes in a file of an (out, in) matrix in this format: codes, scales, zeros, codebook, row scales.
// A shared codebook is not included.
int64_t stored_bytes(const FormatSpec& spec, int64_t out, int64_t in);
// A file stores a shared codebook once, where any of its linears has this format. These return the name of its tensor,
// which is "codebooks.vq8k16s4m" whatever corrections the format has, and its bytes. They return "" and 0 for formats
// without a shared codebook.
std::string shared_name(const FormatSpec& spec);
int64_t shared_bytes(const FormatSpec& spec);
// Returns bits per parameter by the formula of the paper that defines the format. For integers this is SLQ, Table 5: b
// + 20/128 for every asymmetric width, b + 16/128 symmetric, FP4 4.5 or 5.0, FP8 8.0. It charges a 4-bit zero point at
// every width, whereas the exact figure is stored_bytes * 8 / (out * in). For vector codes it is SCVQ's equation 7
// (vector_code.h).
double paper_bits(const FormatSpec& spec);

}  // namespace fidelio
