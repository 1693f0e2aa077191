// A HalvesRing brings keys and values of an FP16 cache to a warp. It is a ring in shared memory, and each warp has
// its own. A unit is the keys or the values of a span; kUnits of them are under way or in use at a time. A unit's
// rows begin four banks apart, so that ldmatrix never uses a bank twice. (Permuting the pieces of rows would do that
// too, but then each copy would need an address of its own.)
#pragma once
#include "kernels/cuda/attention/attention_spans.cuh"
#include "kernels/cuda/device/ptx.cuh"

namespace fidelio::cuda {

// The template parameter kWidest is the largest e. Spans says where the next unit comes from.
template <class Spans, int kWidest, int kUnits>
struct HalvesRing : Spans {
  using Spans::a, Spans::part, Spans::is_there;
  // Bytes of a row and of a unit.
  static constexpr int kPieces = kWidest / 8, kRow = kWidest * 2 + 16, kUnit = kSpan * kRow;
  int readable;  // the last position that is in the cache
  int unit = 0;  // the unit to be used next
  float* own;    // memory of the ring
  uint32_t ring;

  __device__ HalvesRing(const AttentionArguments& arguments, const Part& of, int readable, float* shared)
      : Spans(arguments, of), readable(readable), own(shared), ring(ptx::shared_address(shared)) {}
  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static uint32_t piece_at(int row, int piece) { return row * kRow + piece * 16; }
  __device__ uint32_t unit_at(int i) const { return ring + i * kUnit; }
  __device__ int spare() const { return unit == 0 ? kUnits - 1 : unit - 1; }

  // Asks for the next unit, into the one that was used last. A span that is read completely, at the full width, needs
  // only one address.
  template <bool of_values>
  __device__ void ask() {
    const int from = this->begin;
    if (is_there(from)) {
      constexpr int kRows = 32 / kPieces;  // rows copied at a time
      const int row = lane() / kPieces, piece = lane() % kPieces;
      const uint32_t to = unit_at(spare()) + piece_at(row, piece);
      const auto* base = static_cast<const uint16_t*>(of_values ? a.values : a.keys);
      if (from + kSpan - 1 <= readable && from >= part.first && a.e == kWidest) {
        const uint16_t* at = base + int64_t{this->slot()} * kWidest + lane() * 8;
#pragma unroll
        for (int i = 0; i < kSpan; i += kRows) ptx::copy_async(to + i * kRow, at + i * kWidest);
      } else {
#pragma unroll 1
        for (int i = row; i < kSpan; i += kRows) {
          const bool there = from + i <= readable && from + i >= part.first && piece * 8 < a.e;
          ptx::copy_async_or_zeros(to + (i - row) * kRow,
                                   there ? base + int64_t{this->slot() + i} * a.e + piece * 8 : base, there);
        }
      }
    }
    ptx::commit_copies();
    if constexpr (of_values) {
      this->look_ahead();
      this->go_on();
    }
  }
  __device__ void load() {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      unit = i + 1;
      i % 2 == 0 ? ask<false>() : ask<true>();
    }
    unit = 0;
  }
  // Asks for more after all lanes have read the unit that was used last, keys or values.
  template <bool was_values>
  __device__ void refill() {
    __syncwarp();
    ask<kUnits % 2 == 0 ? was_values : !was_values>();
  }
  // Waits for the next unit and returns its address.
  __device__ uint32_t take() {
    ptx::wait_for_copies<kUnits - 1>();
    __syncwarp();
    const uint32_t taken = unit_at(unit);
    unit = unit + 1 == kUnits ? 0 : unit + 1;
    return taken;
  }
};

}  // namespace fidelio::cuda
