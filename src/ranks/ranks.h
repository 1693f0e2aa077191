// This file gives access to the processes (ranks) that share one job, as mpirun starts them. Every rank runs the same
// program over the same files. Work is divided by rank number, and results are gathered so that every rank continues
// with the same values. A program that no launcher started is one rank and never uses MPI.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fidelio {

// These are bytes sent to another rank, or received from it.
struct Message {
  int peer = 0;
  void* data = nullptr;
  int64_t bytes = 0;
};

class Ranks {
 public:
  virtual ~Ranks() = default;
  virtual int rank() const { return 0; }
  virtual int size() const { return 1; }
  virtual int on_this_host() const { return 1; }       // This many of the `size` ranks share this machine's memory.
  virtual int rank_on_this_host() const { return 0; }  // This is the number of this rank among those.
  // Every rank gives its part and receives all parts, ordered by rank. All ranks must call it. It is also the barrier.
  virtual std::vector<std::vector<double>> gather(const std::vector<double>& mine) const { return {mine}; }
  // Sends and receives all of these messages at once, in host memory, and returns when all are done. For every message
  // that a rank sends, the other rank must receive one of the same size, in the same order.
  virtual void exchange(const std::vector<Message>& send, const std::vector<Message>& receive) const {
    (void)send, (void)receive;
  }
  // Ends all ranks after an error in this one, as the others would wait for ever. Returns only if there are none.
  virtual void give_up(const std::string& why) const { (void)why; }
  bool first() const { return rank() == 0; }
};

// Returns the ranks of the launcher that started this process, or one rank if there is none. The launcher is recognised
// by its environment variables (Open MPI's OMPI_COMM_WORLD_SIZE, PMI_SIZE of MPICH and Slurm). It may be called once in
// a process, as MPI cannot begin a second time.
std::unique_ptr<Ranks> launched_ranks();

}  // namespace fidelio
