// This file decides how many thread blocks attend to a row's shares, and where these meet (attention_cuts.cuh).
#pragma once
#include <algorithm>

#include "kernels/cuda/attention/attention_cuts.cuh"

namespace fidelio::cuda {

// An AttentionCall holds the arguments of attend().
struct AttentionCall {
  Stream stream;
  const AttentionArguments& a;
  const FreshHeads& fresh;
  const float* q;
  const AttentionScratch& scratch;
  float* out;
  PreparedRows prepared;
};

// A row's shares are divided among the thread blocks of a cluster, if all clusters can run at once; otherwise the
// last ones would work alone. If they cannot, they are divided among separate thread blocks, as many as can run.
// Among the numbers that give the same largest share, evenly() returns the smallest.
inline int evenly(int ranks, int shares) {
  const int each = (shares + ranks - 1) / ranks;
  return (shares + each - 1) / each;
}
// Walks names the walk of a cluster's thread blocks with one share each, with one share of one cut (where two share a
// multiprocessor), with several shares, and the walk of separate thread blocks.
template <class One_, class Short_, class Some_, class Apart_>
struct Walks {
  using One = One_;
  using Short = Short_;
  using Some = Some_;
  using Apart = Apart_;
};

template <class W>
struct Launcher {
  AttentionCall call;
  int heads, passes;  // heads of a thread block; thread blocks that a kv head needs
  int units;          // rows, or groups of rows that attend together
  int shares, pairs;  // shares of a unit; units times thread blocks with one share each

  explicit Launcher(const AttentionCall& of) : call(of) {
    const int group = of.a.h / of.a.hk;
    heads = std::min(W::Some::kHeads, group);
    passes = (group + heads - 1) / heads;
    units = W::Some::kTogether ? of.a.units.count : of.a.n;
    shares = std::min(of.scratch.cuts, kDealt);
    pairs = units * of.a.hk * passes;
  }
  template <class Walk>
  Layout layout() const {
    return {call.a.e, heads * call.a.units.rows, Walk::query_floats(call.a.e),
            call.fresh.k ? Walk::fresh_floats(call.a.units.of_sequence, call.a.e) : 0,
            Walk::own_floats(heads, call.a.e)};
  }
  // Returns the shared memory of a thread block: 227 KB on Hopper, or the 99 KB that the smallest multiprocessors
  // since 8.0 have.
  static int most_shared() { return (is_hopper() ? 226 : 96) * 1024; }
  template <class Walk, bool kClusters>
  static void allow() {
    static const cudaError_t allowed =
        cudaFuncSetAttribute(attend_cuts<Walk, kClusters>, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared());
    cuda_check(allowed, "allowing attention its shared memory");
  }
  template <class Walk, bool kClusters>
  void launch_units(int ranks, int at_once) const {
    const Layout layout = this->layout<Walk>();
    for (int first = 0; first < units; first += at_once)
      launch("attention", call.stream,
             LaunchShape{dim3(std::min(units - first, at_once), call.a.hk * passes, ranks), kThreads,
                         layout.bytes(ranks, kClusters ? joiners_of(ranks, Walk::kTogether) : 0),
                         kClusters ? static_cast<unsigned>(ranks) : 1},
             attend_cuts<Walk, kClusters>, call.a, call.fresh, call.q, first, layout, call.scratch.parts,
             call.scratch.arrived, call.out, call.prepared);
  }
  template <class Walk>
  bool launched_as_clusters(int ranks) const {
    constexpr int kMostThreads = 2048;  // threads of a multiprocessor
    // This needs no query of the device.
    if (ranks > 1 && pairs * ranks > kMostThreads / kThreads * multiprocessors()) return false;
    const size_t shared = layout<Walk>().bytes(ranks, joiners_of(ranks, Walk::kTogether));
    if (shared > static_cast<size_t>(most_shared())) return false;
    allow<Walk, true>();
    if (ranks > 1 && pairs > clusters_at_once(kThreads, shared, ranks, attend_cuts<Walk, true>)) return false;
    launch_units<Walk, true>(ranks, units);
    return true;
  }
  void launch_apart() const {
    using Walk = typename W::Apart;
    allow<Walk, false>();
    int resident = 0;
    cuda_check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, attend_cuts<Walk, false>, kThreads,
                                                             layout<Walk>().bytes(1, 0)),
               "counting thread blocks");
    const int ranks = evenly(std::clamp(resident * multiprocessors() / pairs, 1, shares), shares);
    launch_units<Walk, false>(
        ranks, ranks == 1 ? units : static_cast<int>(std::min<int64_t>(units, call.scratch.rows / call.a.units.rows)));
  }
  void attend() const {
    if (is_hopper()) {
      if (launched_as_clusters<typename W::One>(shares)) return;
      if (call.scratch.cuts <= kDealt && launched_as_clusters<typename W::Short>(shares)) return;
      for (int ranks = shares - 1; ranks > 1; --ranks)
        if (evenly(ranks, shares) == ranks && launched_as_clusters<typename W::Some>(ranks)) return;
    }
    launch_apart();
  }
};

template <class W>
void attend_by(const AttentionCall& call) {
  const Launcher<W> launcher(call);
  launcher.attend();
}

// ---- The next functions are for one kind of cache each: attention_halves.cu, attention_together.cu (for units),
// attention_integers.cu.
bool has_halves(KvKind kind, int e);
void attend_halves(const AttentionCall& call);
void attend_together(const AttentionCall& call);
void attend_integers(const AttentionCall& call);

}  // namespace fidelio::cuda
