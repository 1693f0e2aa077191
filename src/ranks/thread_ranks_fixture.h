// This file simulates ranks by threads of one process, for tests of code that ranks share, where no launcher starts
// processes.
#pragma once
#include <barrier>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "core/error.h"
#include "ranks/ranks.h"

namespace fidelio {

class ThreadRanks {
 public:
  explicit ThreadRanks(int size)
      : size_(size), barrier_(size), gathered_(static_cast<size_t>(size)), sent_(gathered_.size()) {}

  // Runs f in a thread for every rank. An exception ends the program, as the other ranks would wait.
  void run(const std::function<void(const Ranks&)>& f) {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size_; ++rank) threads.emplace_back([this, rank, &f]() noexcept { f(One(*this, rank)); });
  }

 private:
  class One final : public Ranks {
   public:
    One(ThreadRanks& all, int rank) : all_(all), rank_(rank) {}
    int rank() const override { return rank_; }
    int size() const override { return all_.size_; }
    int on_this_host() const override { return all_.size_; }
    int rank_on_this_host() const override { return rank_; }

    std::vector<std::vector<double>> gather(const std::vector<double>& mine) const override {
      all_.gathered_[static_cast<size_t>(rank_)] = mine;
      all_.barrier_.arrive_and_wait();
      std::vector<std::vector<double>> parts = all_.gathered_;
      all_.barrier_.arrive_and_wait();
      return parts;
    }
    void exchange(const std::vector<Message>& send, const std::vector<Message>& receive) const override {
      all_.sent_[static_cast<size_t>(rank_)] = send;
      all_.barrier_.arrive_and_wait();
      std::vector<size_t> read(all_.sent_.size());  // It counts, for each rank, how many of its messages were searched.
      for (const Message& m : receive) {
        const std::vector<Message>& sent = all_.sent_[static_cast<size_t>(m.peer)];
        size_t& at = read[static_cast<size_t>(m.peer)];
        while (at < sent.size() && sent[at].peer != rank_) ++at;
        check(at < sent.size() && sent[at].bytes == m.bytes, "rank {} waits for {} bytes of rank {}", rank_, m.bytes,
              m.peer);
        std::memcpy(m.data, sent[at++].data, static_cast<size_t>(m.bytes));
      }
      all_.barrier_.arrive_and_wait();
    }

   private:
    ThreadRanks& all_;
    int rank_;
  };

  int size_;
  std::barrier<> barrier_;
  std::vector<std::vector<double>> gathered_;
  std::vector<std::vector<Message>> sent_;
};

}  // namespace fidelio
