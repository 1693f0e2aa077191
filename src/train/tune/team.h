// A Team is the ranks that share a tuning (ranks/ranks.h), over a device. Jobs are divided by number, job i to rank i
// modulo size. Their results are put together in the order of their numbers, so the bytes are the same for any number
// of ranks.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "ranks/ranks.h"
#include "train/device.h"

namespace fidelio::train {

template <class D>
class Team {
 public:
  using Real = typename D::Real;
  // These values lie in the device's memory.
  struct Values {
    Real* data = nullptr;
    int64_t n = 0;
  };

  Team(D& device, const Ranks& ranks) : device_(device), ranks_(ranks), rank_(ranks.rank()), size_(ranks.size()) {}

  int size() const { return size_; }
  bool first() const { return rank_ == 0; }
  bool has(size_t job) const { return owner_of(job) == rank_; }

  // Returns what f(job), a list of numbers, gives for every job below `jobs`, on every rank.
  template <typename F>
  std::vector<std::vector<double>> collect(size_t jobs, const F& f) {
    std::vector<double> mine;
    for (auto job = static_cast<size_t>(rank_); job < jobs; job += static_cast<size_t>(size_)) {
      const std::vector<double> numbers = f(job);
      mine.push_back(static_cast<double>(numbers.size()));
      mine.insert(mine.end(), numbers.begin(), numbers.end());
    }
    const std::vector<std::vector<double>> of_ranks = ranks_.gather(mine);
    std::vector<std::vector<double>> all;
    std::vector<size_t> read(static_cast<size_t>(size_));
    for (size_t job = 0; job < jobs; ++job) {
      const auto owner = static_cast<size_t>(owner_of(job));
      const auto begin = of_ranks[owner].begin() + static_cast<int64_t>(read[owner]) + 1;
      const auto count = static_cast<int64_t>(of_ranks[owner][read[owner]]);
      all.emplace_back(begin, begin + count);
      read[owner] += static_cast<size_t>(count) + 1;
    }
    return all;
  }

  // Sends pieces[i], which job i has made, from its rank to all others.
  void pass_on(const std::vector<Values>& pieces) {
    if (size_ == 1) return;
    std::vector<Message> send, receive;
    for (size_t job = 0; job < pieces.size(); ++job) {
      if (!has(job))
        add(receive, owner_of(job), pieces[job].data, pieces[job].n);
      else
        for (int peer = 0; peer < size_; ++peer)
          if (peer != rank_) add(send, peer, pieces[job].data, pieces[job].n);
    }
    device_.exchange(ranks_, send, receive);
  }

  // Computes the gradients of a step in `slices` slices. make(slice) adds a slice's gradients to these tensors, which
  // are zeros at the beginning. In the end they hold the sum in the order of the slices, ((s0 + s1) + s2) + .... Each
  // rank makes one slice at a time and adds up its share of every tensor; the shares are exchanged at the end.
  template <typename Make>
  void add_up(const std::vector<Values>& tensors, size_t slices, const Make& make) {
    const auto together = static_cast<size_t>(size_);
    for (size_t first = 0; first < slices; first += together) {
      const size_t mine = first + static_cast<size_t>(rank_), last = std::min(slices, first + together);
      if (first > 0)
        for (const Values& t : tensors) device_.zero(t.data, t.n);
      if (mine < last) make(mine);
      if (slices == 1 && size_ == 1) return;
      make_room(tensors);
      deal(tensors, first, last);
      int64_t at = 0;
      for (const Values& t : tensors) {
        for (size_t slice = first; slice < last; ++slice) add_slice(t, slice, slices, at);
        at += share(t, rank_).n;
      }
    }
    std::vector<Message> send, receive;
    for (const Values& t : tensors)
      for (int peer = 0; peer < size_; ++peer) {
        if (peer == rank_) continue;
        add(send, peer, share(t, rank_).data, share(t, rank_).n);
        add(receive, peer, share(t, peer).data, share(t, peer).n);
      }
    if (size_ > 1) device_.exchange(ranks_, send, receive);
  }

 private:
  int owner_of(size_t job) const { return static_cast<int>(job % static_cast<size_t>(size_)); }
  // Returns the part of a tensor that this rank adds up.
  Values share(const Values& t, int rank) const {
    const int64_t begin = t.n * rank / size_, end = t.n * (rank + 1) / size_;
    return {t.data + begin, end - begin};
  }
  static void add(std::vector<Message>& to, int peer, Real* data, int64_t n) {
    if (n > 0) to.push_back({peer, data, n * static_cast<int64_t>(sizeof(Real))});
  }
  Real* received(int peer, int64_t at) const {
    return received_.get() + (peer < rank_ ? peer : peer - 1) * share_ + at;
  }

  void make_room(const std::vector<Values>& tensors) {
    int64_t all = 0;
    for (const Values& t : tensors) all += share(t, rank_).n;
    if (all <= share_) return;
    sums_.reset(), received_.reset();
    share_ = all;
    sums_ = device_.allocate(share_);
    if (size_ > 1) received_ = device_.allocate((size_ - 1) * share_);
  }

  // Sends every rank its share of the slices [first, last), of which each rank has made one.
  void deal(const std::vector<Values>& tensors, size_t first, size_t last) {
    if (size_ == 1) return;
    std::vector<Message> send, receive;
    int64_t at = 0;
    for (const Values& t : tensors) {
      for (int peer = 0; peer < size_; ++peer) {
        if (peer == rank_) continue;
        if (first + static_cast<size_t>(rank_) < last) add(send, peer, share(t, peer).data, share(t, peer).n);
        if (first + static_cast<size_t>(peer) < last) add(receive, peer, received(peer, at), share(t, rank_).n);
      }
      at += share(t, rank_).n;
    }
    device_.exchange(ranks_, send, receive);
  }

  // Adds one more slice to this rank's share of a tensor. Its sum begins at index `at` among the sums; the last
  // slice's result goes to the tensor.
  void add_slice(const Values& t, size_t slice, size_t slices, int64_t at) {
    const Values own = share(t, rank_);
    Real *sum = sums_.get() + at, *one = has(slice) ? own.data : received(owner_of(slice), at);
    const bool last = slice + 1 == slices;
    if (slice == 0) {
      if (!last) device_.copy(one, sum, own.n);
      if (last && one != own.data) device_.copy(one, own.data, own.n);
    } else if (last && one == own.data) {
      device_.add(sum, one, own.n);
    } else {
      device_.add(one, sum, own.n);
      if (last) device_.copy(sum, own.data, own.n);
    }
  }

  D& device_;
  const Ranks& ranks_;
  int rank_, size_;
  int64_t share_ = 0;                        // number of values in this rank's shares of all tensors
  std::shared_ptr<Real[]> sums_, received_;  // (share), (size - 1, share)
};

}  // namespace fidelio::train
