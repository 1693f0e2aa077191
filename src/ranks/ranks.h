// Processes that share one job, as mpirun starts them. Every rank runs the same program over the same files; what can
// be dealt out is dealt by number, and results are gathered so that every rank goes on with the same values. A program
// that nobody launched is one rank and never touches MPI.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fidelio {

// Bytes that go to another rank, or come from it.
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
  virtual int on_this_host() const { return 1; }       // of `size`, sharing this machine's memory
  virtual int rank_on_this_host() const { return 0; }  // among those
  // Every rank gives its part and receives all parts, by rank. All ranks must call it. It is the barrier, too.
  virtual std::vector<std::vector<double>> gather(const std::vector<double>& mine) const { return {mine}; }
  // Sends and receives all of these at once, in the host's memory; returns when all are done. What one rank sends to
  // another that one must receive, message by message, of the same sizes.
  virtual void exchange(const std::vector<Message>& send, const std::vector<Message>& receive) const {
    (void)send, (void)receive;
  }
  // Ends all ranks after an error in this one: the others wait for what will never come. Returns only if there are
  // none.
  virtual void give_up(const std::string& why) const { (void)why; }
  bool first() const { return rank() == 0; }
};

// The ranks of the launcher that started this process, known by the environment it sets (Open MPI's
// OMPI_COMM_WORLD_SIZE, PMI_SIZE of MPICH and Slurm); one rank if there is none. To be called once in a process: MPI
// cannot begin a second time.
std::unique_ptr<Ranks> launched_ranks();

}  // namespace fidelio
