#include "ranks/ranks.h"

// The C++ bindings of MPI were removed from the standard, and their headers only cause warnings.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "core/error.h"
#include "core/standard_error.h"

namespace fidelio {
namespace {

class MpiRanks final : public Ranks {
 public:
  MpiRanks() {
    check(MPI_Init(nullptr, nullptr) == MPI_SUCCESS, "MPI_Init failed");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    MPI_Comm host = MPI_COMM_NULL;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host);
    MPI_Comm_size(host, &on_this_host_);
    MPI_Comm_rank(host, &rank_on_this_host_);
    MPI_Comm_free(&host);
  }
  ~MpiRanks() override { MPI_Finalize(); }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int on_this_host() const override { return on_this_host_; }
  int rank_on_this_host() const override { return rank_on_this_host_; }

  std::vector<std::vector<double>> gather(const std::vector<double>& mine) const override {
    const auto ranks = static_cast<size_t>(size_);
    const auto count = static_cast<int>(mine.size());
    std::vector<int> counts(ranks), begins(ranks);
    MPI_Allgather(&count, 1, MPI_INT, counts.data(), 1, MPI_INT, MPI_COMM_WORLD);
    int64_t total = 0;
    for (size_t r = 0; r < ranks; ++r) {
      begins[r] = static_cast<int>(total);
      total += counts[r];
      check(total <= std::numeric_limits<int>::max(), "{} ranks have more results than MPI can gather at once", size_);
    }
    std::vector<double> all(static_cast<size_t>(total));
    MPI_Allgatherv(mine.data(), count, MPI_DOUBLE, all.data(), counts.data(), begins.data(), MPI_DOUBLE,
                   MPI_COMM_WORLD);
    std::vector<std::vector<double>> parts(ranks);
    for (size_t r = 0; r < ranks; ++r) parts[r].assign(all.begin() + begins[r], all.begin() + begins[r] + counts[r]);
    return parts;
  }

  void exchange(const std::vector<Message>& send, const std::vector<Message>& receive) const override {
    constexpr int64_t kPiece = int64_t{1} << 30;  // MPI counts in int, so longer messages are sent in pieces.
    std::vector<MPI_Request> waiting;
    const auto each_piece = [&](const std::vector<Message>& messages, const auto& start) {
      for (const Message& m : messages)
        for (int64_t at = 0; at < m.bytes; at += kPiece)
          check(start(static_cast<char*>(m.data) + at, static_cast<int>(std::min(kPiece, m.bytes - at)), m.peer,
                      &waiting.emplace_back()) == MPI_SUCCESS,
                "rank {}: no message to or from rank {}", rank_, m.peer);
    };
    each_piece(receive, [](char* data, int bytes, int peer, MPI_Request* request) {
      return MPI_Irecv(data, bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD, request);
    });
    each_piece(send, [](char* data, int bytes, int peer, MPI_Request* request) {
      return MPI_Isend(data, bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD, request);
    });
    check(MPI_Waitall(static_cast<int>(waiting.size()), waiting.data(), MPI_STATUSES_IGNORE) == MPI_SUCCESS,
          "rank {}: messages to other ranks failed", rank_);
  }

  void give_up(const std::string& why) const override {
    print_error(fmt::format("fidelio: rank {} of {}: {}\n", rank_, size_, why));
    std::fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }

 private:
  int rank_ = 0, size_ = 1, on_this_host_ = 1, rank_on_this_host_ = 0;
};

}  // namespace

std::unique_ptr<Ranks> launched_ranks() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const char* value = std::getenv(name); value && std::atoi(value) > 1) return std::make_unique<MpiRanks>();
  return std::make_unique<Ranks>();
}

}  // namespace fidelio
