// These tests check that what ranks put together has the same bytes for any number of ranks.
#include "train/tune/team.h"

#include <gtest/gtest.h>

#include <numeric>

#include "core/rng.h"
#include "ranks/thread_ranks_fixture.h"
#include "train/host/host.h"
#include "train/tune/tuner.h"

namespace fidelio::train {
namespace {

std::vector<float> slice_gradient(size_t slice, size_t tensor, size_t n) {
  Rng rng(slice, tensor);
  std::vector<float> values(n);
  for (float& x : values) x = static_cast<float>(rng.normal());
  return values;
}

// There are tensors of several sizes, one with fewer values than ranks. The sum is ((s0 + s1) + s2) + ..., whoever
// made the slices.
TEST(Team, GradientsAddUpInTheOrderOfTheirSlices) {
  const std::vector<size_t> sizes = {5, 1, 1000, 17};
  for (size_t slices = 1; slices <= 6; ++slices)
    for (int size = 1; size <= 4; ++size) {
      ThreadRanks(size).run([&](const Ranks& ranks) {
        Host<float> host(1);
        Team<Host<float>> team(host, ranks);
        for (int step = 0; step < 2; ++step) {
          std::vector<std::vector<float>> values;
          for (const size_t n : sizes) values.emplace_back(n);
          std::vector<Team<Host<float>>::Values> tensors;
          for (auto& v : values) tensors.push_back({v.data(), static_cast<int64_t>(v.size())});
          team.add_up(tensors, slices, [&](size_t slice) {
            for (size_t t = 0; t < sizes.size(); ++t) {
              const std::vector<float> one = slice_gradient(slice, t, sizes[t]);
              for (size_t i = 0; i < one.size(); ++i) values[t][i] += one[i];
            }
          });
          for (size_t t = 0; t < sizes.size(); ++t) {
            std::vector<float> sum = slice_gradient(0, t, sizes[t]);
            for (size_t slice = 1; slice < slices; ++slice) {
              const std::vector<float> one = slice_gradient(slice, t, sizes[t]);
              for (size_t i = 0; i < one.size(); ++i) sum[i] += one[i];
            }
            EXPECT_EQ(values[t], sum) << slices << " slices, " << size << " ranks, tensor " << t;
          }
        }
      });
    }
}

TEST(Team, JobsAreDealtAndEveryRankHasAll) {
  for (int size = 1; size <= 3; ++size)
    ThreadRanks(size).run([&](const Ranks& ranks) {
      Host<float> host(1);
      Team<Host<float>> team(host, ranks);
      const auto numbers = team.collect(5, [&](size_t job) {
        EXPECT_TRUE(team.has(job));
        return std::vector<double>(job, static_cast<double>(job));
      });
      ASSERT_EQ(numbers.size(), 5u);
      for (size_t job = 0; job < 5; ++job) EXPECT_EQ(numbers[job], std::vector<double>(job, static_cast<double>(job)));

      std::vector<float> rows(10, -1);
      std::vector<Team<Host<float>>::Values> pieces;
      for (size_t job = 0; job < 5; ++job) {
        pieces.push_back({rows.data() + 2 * job, 2});
        if (team.has(job)) rows[2 * job] = rows[2 * job + 1] = static_cast<float>(job);
      }
      team.pass_on(pieces);
      for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i], static_cast<float>(i / 2));
    });
}

// There must be as few slices as possible, each of about as many windows, with all windows in order.
TEST(Team, StepsAreCutEvenly) {
  Rng rng(3);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<int64_t> windows(1 + rng.below(20));
    for (int64_t& w : windows) w = 1 + static_cast<int64_t>(rng.below(50));
    const auto rows = static_cast<int64_t>(50 + rng.below(200));
    const auto slices = slices_of(windows, rows);
    size_t next = 0, fewest = windows.size(), most = 0;
    for (auto [first, last] : slices) {
      EXPECT_EQ(first, next);
      EXPECT_LE(std::accumulate(windows.begin() + static_cast<int64_t>(first),
                                windows.begin() + static_cast<int64_t>(last), int64_t{0}),
                rows);
      fewest = std::min(fewest, last - first), most = std::max(most, last - first);
      next = last;
    }
    EXPECT_EQ(next, windows.size());
    EXPECT_LE(most, fewest + 1);
    EXPECT_GE(fewest, 1u);
  }
  const std::vector<int64_t> alike(8, 512);
  EXPECT_EQ(slices_of(alike, 2048).size(), 2u);
  EXPECT_EQ(slices_of(alike, 4096).size(), 1u);
  EXPECT_EQ(slices_of(alike, 512).size(), 8u);
}

}  // namespace
}  // namespace fidelio::train
