// This file says which positions the warps of attention attend to, and where these are in the cache.
#pragma once
#include "kernels/cuda/attention/kv_cache.cuh"

namespace fidelio::cuda {

constexpr int kSpan = 16;  // positions that a warp handles at a time

// A Part says for which heads, rows, positions and cuts a thread block works: those of shares rank, rank + ranks, ...
// Its rows are consecutive ones of one sequence; a head of one of them is a query.
struct Part {
  // The first row, the number of rows, and how many of the step's rows their sequence has before them.
  int row, rows, before;
  int sequence, kv_head, head0, heads;
  int first, last;  // the positions that any of the rows sees
  int rank, ranks;
  int shares;  // one bit for each share that has cuts
  __device__ int queries() const { return rows * heads; }
  __device__ int last_of(int row_here) const { return last - (rows - 1 - row_here); }
  // These describe the positions that this step appends to the sequence, as far as the rows see them.
  __device__ int fresh() const { return before + rows; }
  __device__ int first_fresh() const { return last - fresh() + 1; }
  __device__ bool has(int position) const { return position / kCut % kDealt % ranks == rank; }
  __device__ int first_cut_of(int share) const {
    const int cut = first / kCut;
    return cut + ((share - cut) & (kDealt - 1));
  }
  __device__ void find_shares() {
    const int cuts = min(last / kCut - first / kCut + 1, kDealt), one_by_one = (1 << cuts) - 1,
              from = first / kCut % kDealt;
    shares = (one_by_one << from | one_by_one >> (kDealt - from)) & ((1 << kDealt) - 1);
  }
  __device__ bool has_cuts(int share) const { return shares >> share & 1; }
  __device__ bool works(int of_rank) const {
    for (int share = of_rank; share < kDealt; share += ranks)
      if (has_cuts(share)) return true;
    return false;
  }
};

// A SpanPlace says where a warp's spans are: one in each of its thread block's cuts, except for those before or past
// what the row sees.
struct SpanPlace {
  const AttentionArguments& a;
  const Part& part;
  static constexpr int kStep = kDealt * kCut;  // distance between spans of a share

  __device__ bool is_there(int begin) const { return begin <= part.last; }
  __device__ int first_of(int share) const {
    const int span = part.first_cut_of(share) * kCut + static_cast<int>(threadIdx.x) / 32 * kSpan;
    return span + kSpan <= part.first ? span + kStep : span;
  }
  __device__ int page_at(int position) const {
    return is_there(position) ? a.page_of[int64_t{part.sequence} * a.pages_per_sequence + position / kPage] : 0;
  }
  // Returns the slot in the cache, which has fewer than 2^31.
  __device__ int slot_of(int position, int page) const {
    return (page * a.hk + part.kv_head) * kPage + position % kPage;
  }
};
// SpansOfOne are the spans of one share. A lane knows the slot of one of 32 consecutive spans, which takes few
// registers, and few instructions before the first span.
struct SpansOfOne : SpanPlace {
  static constexpr bool kOne = true;
  int begin, next;         // positions of the present span and of the next; past the row's last one if there is none
  int here, ahead, slots;  // the slots of these, and the lane's slot
  int number = 0;          // number of the present span

  __device__ SpansOfOne(const AttentionArguments& arguments, const Part& of) : SpanPlace{arguments, of} {
    begin = first_of(part.rank);
    look_up(begin);
    here = __shfl_sync(~0u, slots, 0);
  }
  __device__ int slot() const { return here; }
  __device__ int next_slot() const { return ahead; }
  __device__ void look_up(int from) {
    const int position = from + static_cast<int>(threadIdx.x) % 32 * kStep;
    slots = slot_of(position, page_at(position));
  }
  __device__ bool is_in(int position, int) const { return is_there(position); }
  __device__ static int following(int of_begin) { return of_begin + kStep; }
  __device__ void look_ahead() {  // finds the next span
    next = begin + kStep;
    if (++number % 32 == 0) look_up(next);
    ahead = __shfl_sync(~0u, slots, number % 32);
  }
  __device__ void go_on() { begin = next, here = ahead; }
};
// SpansOfSome are the spans of several shares, one share after the other. Pages are looked up two spans ahead.
struct SpansOfSome : SpanPlace {
  static constexpr bool kOne = false;
  // Positions of the present span and of those after it; past the row's last one if there is none.
  int begin, next, after;
  int page, next_page, after_page;

  __device__ SpansOfSome(const AttentionArguments& arguments, const Part& of) : SpanPlace{arguments, of} {
    begin = first_from(part.rank);
    page = page_at(begin);
    next = following(begin);
    next_page = page_at(next);
  }
  __device__ int slot() const { return slot_of(begin, page); }
  __device__ int next_slot() const { return slot_of(next, next_page); }
  __device__ bool is_in(int position, int share) const {
    return is_there(position) && position / kCut % kDealt == share;
  }
  __device__ int first_from(int share) const {
    for (; share < kDealt; share += part.ranks)
      if (const int span = first_of(share); is_there(span)) return span;
    return part.last + 1;
  }
  __device__ int following(int of_begin) const {
    if (!is_there(of_begin) || is_there(of_begin + kStep)) return of_begin + kStep;
    return first_from(of_begin / kCut % kDealt + part.ranks);
  }
  __device__ void look_ahead() {
    after = following(next);
    after_page = page_at(after);
  }
  __device__ void go_on() {
    begin = next, page = next_page;
    next = after, next_page = after_page;
  }
};

}  // namespace fidelio::cuda
