// How a step reads what it reads: activations, keys and values, weights.
#pragma once
#include <cstdint>
#include <string_view>

#include "formats/format_spec.h"

namespace fidelio {

// How linears see their input. f32: exact, for oracles. a16: the default that serves (two INT8 planes with an FP32
// scale per group for codes; BF16 for dense BF16 weights). a8: one INT8 plane per group, for drafts and targets that
// allow it. a6, a4: as a8, with 6 or 4 bits of it used; aw: with as many bits as the weight's own codes have (W4A4,
// W6A6: SLQ's W+A, where a group's width is that of its weights and of what they meet): for studies, they cost what a8
// costs.
enum class Activations : uint8_t { f32, a16, a8, a6, a4, aw };
inline constexpr Activations kAllActivations[] = {Activations::f32, Activations::a16, Activations::a8,
                                                  Activations::a6,  Activations::a4,  Activations::aw};
// Integers of 8 bits or fewer: activations that cost as much fidelity as weights do.
constexpr bool is_coarse(Activations mode) { return mode >= Activations::a8; }
// What a weight of codes meets in a coarse mode: integers of so many bits, at most 2^(bits - 1) - 1, under one scale
// for so many columns of a row (the weight's group, at least 32 and at most 128).
int activation_bits(Activations mode, const FormatSpec& spec);
int64_t activation_group(const FormatSpec& spec);
// A gathered input in a mode of fewer than 8 bits: what exceeds this part of its group's largest magnitude becomes that.
inline constexpr float kGroupClip = 0.9f;
constexpr bool clips_groups(Activations mode) { return mode > Activations::a8; }
// How keys and values are kept. i8 and i4x2 are asymmetric per head and token; i4x2 stores the byte as two nibble
// planes so that a draft can read the high one.
enum class KvFormat : uint8_t { f32, f16, bf16, i8, i4x2 };

std::string_view name_of(Activations mode);
std::string_view name_of(KvFormat format);

// How one step reads the weights. high_bits: of every integer or grid of a layer at most so many high bits of its codes
// are read, where its planes can be cut there, else the fewest they can be cut to; a runner may be asked to pack them so
// that they can (RunnerOptions::high_bits). Read whole are weights that cannot be cut at all, the head (what it loses is
// lost from the logits directly), and all weights where high_bits is 0. A draft reads {a8, 4} where its verifier reads
// {a16}. short_head: of the head the rows of a draft's tokens alone are read (Runner::set_short_head); others' logits are
// -infinity.
struct Reading {
  constexpr Reading(Activations a = Activations::a16, int high = 0, bool short_head = false)
      : activations(a), high_bits(high), short_head(short_head) {}
  Activations activations;
  int high_bits;
  bool short_head;
  bool operator==(const Reading&) const = default;
};

}  // namespace fidelio
