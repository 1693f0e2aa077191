// This file says how a step reads its activations, its keys and values, and its weights.
#pragma once
#include <cstdint>
#include <string_view>

#include "formats/format_spec.h"

namespace fidelio {

// Activations says in which precision linears see their input.
//   f32          Exact, for comparisons with a reference.
//   a16          The default of serving: two INT8 planes with an FP32 scale for each group where weights are codes, and
//                BF16 where they are dense BF16.
//   a8           One INT8 plane with a scale for each group, for drafts and for targets that allow it.
//   a6, a4, aw   As a8, but only 6 or 4 of its bits are used, or as many as the weight's own codes have (W4A4, W6A6;
//                SLQ calls this W+A and gives activations the groups of the weight). They cost what a8 costs and are
//                for studies.
enum class Activations : uint8_t { f32, a16, a8, a6, a4, aw };
inline constexpr Activations kAllActivations[] = {Activations::f32, Activations::a16, Activations::a8,
                                                  Activations::a6,  Activations::a4,  Activations::aw};
// Tells whether activations are integers of 8 bits or fewer, which cost as much fidelity as weights do.
constexpr bool is_coarse(Activations mode) { return mode >= Activations::a8; }
// These describe activations in a coarse mode, as a weight of codes meets them. They are integers of
// activation_bits() bits, at most 2^(bits - 1) - 1 in size. activation_group() columns of a row share a scale: the
// weight's group, but at least 32 and at most 128.
int activation_bits(Activations mode, const FormatSpec& spec);
int64_t activation_group(const FormatSpec& spec);
// In modes of fewer than 8 bits, gathered inputs are clipped: a value beyond this part of its group's largest
// magnitude becomes that part.
inline constexpr float kGroupClip = 0.9f;
constexpr bool clips_groups(Activations mode) { return mode > Activations::a8; }
// KvFormat says how keys and values are kept. i8 and i4x2 have a scale and a zero point for each head and token. i4x2
// stores the byte as two planes of four bits, so that a draft can read the high one alone.
enum class KvFormat : uint8_t { f32, f16, bf16, i8, i4x2 };

std::string_view name_of(Activations mode);
std::string_view name_of(KvFormat format);

// A Reading says how one step reads activations and weights. high_bits limits the bits of each code that are read of
// every integer or grid of a layer: the highest so many, where its planes can be cut there, else the fewest to which
// they can be cut. A runner can be asked to pack weights so that they can be cut there (RunnerOptions::high_bits).
// With high_bits 0 all weights are read whole. So are weights that cannot be cut, and the head, because its errors go
// into the logits directly. A draft reads {a8, 4} where its verifier reads {a16}. With short_head only the head's
// rows of the draft's tokens are read (Runner::set_short_head), and the logits of other tokens are -infinity.
struct Reading {
  constexpr Reading(Activations a = Activations::a16, int high = 0, bool short_head = false)
      : activations(a), high_bits(high), short_head(short_head) {}
  Activations activations;
  int high_bits;
  bool short_head;
  bool operator==(const Reading&) const = default;
};

}  // namespace fidelio
