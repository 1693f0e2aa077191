// formats: what a weight can be stored as. Scalar, obviously right; the fast twins live in kernels/.
//
// FormatSpec says what to do to a linear. It round-trips to a short string, and that string is the vocabulary of the
// whole project (command line, plans, benches, logs, test names):
//
//   bf16  f16  f32            dense
//   int4g128z                 integer codes of 4 bits, groups of 128 columns, a zero point (asymmetric), FP16 scales
//   int4g128                  the same, symmetric: w = s (q - 2^(b-1))
//   int5g64zs8                8-bit scales: w = r s (q - z), s an unsigned byte, r one FP32 a row
//   int8c                     one group a row (channel-wise)
//   lut4g64                   a grid of 16 signed bytes per matrix, a signed 8-bit scale a group, one FP32 a row
//   fp4g16  fp4g16z           E2M1 codes with an E4M3 scale a block of 16, z: and an E4M3 offset
//   fp8                       E4M3 with one FP32 scale a row
//   vq8k16s4                  vectors of 8 columns: 2^16 virtual centroids, of which 4 bits are signs and 2^12 are stored
//   vq8k16s4+r2.2             the same, and 2.2 percent of the vectors have a correction of their own
//   vq8k16s4m                 the 2^12 are the model's: all linears that have them share one codebook, stored once
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace fidelio {

enum class Kind : uint8_t { f32, f16, bf16, integer, grid, fp4, fp8, vq };
enum class ScaleKind : uint8_t { f16, u8 };  // u8: an unsigned byte times one FP32 a row

struct FormatSpec {
  Kind kind = Kind::bf16;
  int bits = 16;          // of a code: integer 2..8, grid 2..6, fp4 4, fp8 8, vq 9..20 (of 8 weights), dense 16 or 32
  int group = 0;          // columns sharing a scale: 16, 32, 64, 128; 0 = the whole row (integer, fp8, dense)
  bool symmetric = true;  // false: a zero point (integer) or an offset (fp4) per group
  ScaleKind scale =
      ScaleKind::f16;   // integer only; the other kinds have one kind of scale each and leave this as it is
  int signs = 0;        // vq only: how many of a code's bits are signs: 1, 4 or 8
  int sparse = 0;       // vq only: vectors with a correction, in hundredths of a percent
  bool shared = false;  // vq only: the codebook is the model's
  int below = 0;  // integers and grids: low bits of every code that a view leaves out (high_planes); 0 in every file

  bool is_dense() const { return kind == Kind::f32 || kind == Kind::f16 || kind == Kind::bf16; }
  bool operator==(const FormatSpec&) const = default;
  // Columns of a group in a matrix of `in` columns, and the number of groups (the last may be ragged).
  int64_t group_size(int64_t in) const { return group == 0 ? in : group; }
  int64_t groups(int64_t in) const { return (in + group_size(in) - 1) / group_size(in); }
};

std::string to_string(const FormatSpec& spec);
FormatSpec parse_format(std::string_view text);  // throws Error showing the nearest and the grammar

// Exact bytes in a file of an (out, in) matrix in this format: codes, scales, zeros, codebook, row scales.
int64_t stored_bytes(const FormatSpec& spec, int64_t out, int64_t in);
// What a file has once where any of its linears has this format: the name of the tensor, "codebooks.vq8k16s4m" whatever
// corrections there are, and its bytes. "" and 0 for all but shared codebooks.
std::string shared_name(const FormatSpec& spec);
int64_t shared_bytes(const FormatSpec& spec);
// The paper's own bits-per-parameter formula (SLQ Table 5: b + 20/128 for every asymmetric width, b + 16/128 symmetric,
// FP4 4.5 or 5.0, FP8 8.0), which charges a 4-bit zero point at every width; ours is stored_bytes * 8 / (out * in).
// Vector codes: SCVQ's equation 7 (vector_code.h).
double paper_bits(const FormatSpec& spec);

}  // namespace fidelio
