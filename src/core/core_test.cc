#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <algorithm>
#include <vector>

#include <atomic>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <set>

#include "core/file.h"
#include "core/hash.h"
#include "core/rng.h"
#include "core/tensor.h"
#include "core/test_support.h"
#include "core/thread_pool.h"

namespace fidelio {
namespace {

TEST(DType, EveryHalfRoundTripsThroughFloat) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const f16 h{static_cast<uint16_t>(i)};
    const bf16 b{static_cast<uint16_t>(i)};
    if (!std::isnan(to_float(h))) {
      EXPECT_EQ(to_f16(to_float(h)).bits, h.bits);
    }
    if (!std::isnan(to_float(b))) {
      EXPECT_EQ(to_bf16(to_float(b)).bits, b.bits);
    }
  }
}

// This finds the nearest half by definition, by searching all finite halves, whose bits are in the order of their
// values. Of two that are equally near it takes the one with an even last bit. 65520 lies halfway between the largest
// finite half and the number that would follow it.
uint16_t nearest_half(float x) {
  const auto sign = static_cast<uint16_t>(std::signbit(x) ? 0x8000 : 0);
  const double size = std::abs(double{x});
  if (size >= 65520) return sign | 0x7c00;
  int low = 0, high = 0x7c00;  // The search keeps value(low) <= size < value(high).
  const auto value = [](int bits) {
    return bits == 0x7c00 ? 65536.0 : double{to_float(f16{static_cast<uint16_t>(bits)})};
  };
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (value(middle) <= size ? low : high) = middle;
  }
  const double below = size - value(low), above = value(high) - size;
  const bool up = above < below || (above == below && low % 2 == 1);
  return static_cast<uint16_t>(sign | (up ? high : low));
}

TEST(DType, HalfRoundsToNearestEven) {
  Rng rng(1);
  for (int i = 0; i < 100000; ++i) {
    const float x = static_cast<float>(rng.normal() * std::pow(10.0, rng.uniform() * 12 - 8));
    EXPECT_EQ(to_f16(x).bits, nearest_half(x)) << x;
    // These are ties, which lie halfway between two neighbours.
    const float half = to_float(to_f16(x)), next = to_float(f16{static_cast<uint16_t>(to_f16(x).bits ^ 1)});
    const float tie = half / 2 + next / 2;
    EXPECT_EQ(to_f16(tie).bits, nearest_half(tie)) << tie;
  }
}

TEST(ThreadPool, RangesCoverEveryJobOnce) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int64_t jobs : {0, 1, 2, 3, 17, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(jobs));
      pool.run_ranges(jobs, [&](int64_t first, int64_t last, int thread) {
        EXPECT_LT(thread, threads);
        EXPECT_LT(first, last);
        for (int64_t job = first; job < last; ++job) ++seen[static_cast<size_t>(job)];
      });
      for (const auto& count : seen) EXPECT_EQ(count, 1);
    }
  }
}

// The sizes lie around the size of a chunk. The arena is destroyed first, and the buffers keep its chunks alive.
TEST(Arena, KeepsBytesApartAndAlignedBeyondItsOwnLife) {
  std::vector<Buffer> kept;
  const std::vector<size_t> sizes = {
      0, 1, 63, 65, 1000, size_t{7} << 20, size_t{8} << 20, size_t{9} << 20, size_t{8} << 20, 5};
  {
    Arena arena;
    for (size_t i = 0; i < sizes.size(); ++i) {
      Buffer buffer(sizes[i]);
      std::fill_n(buffer.as<uint8_t>(), sizes[i], static_cast<uint8_t>(i + 1));
      kept.push_back(arena.keep(std::move(buffer)));
    }
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    ASSERT_EQ(kept[i].size(), sizes[i]);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(kept[i].data()) % 64, 0u);
    const auto* bytes = kept[i].as<uint8_t>();
    EXPECT_EQ(std::count(bytes, bytes + sizes[i], static_cast<uint8_t>(i + 1)), static_cast<std::ptrdiff_t>(sizes[i]));
  }
}

TEST(ThreadPool, EveryJobOnceAndExceptionsArrive) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 200; ++round) {
      std::vector<std::atomic<int>> seen(37);
      pool.run(37, [&](int64_t job, int thread) {
        EXPECT_LT(thread, threads);
        ++seen[static_cast<size_t>(job)];
      });
      for (auto& s : seen) EXPECT_EQ(s.load(), 1);
    }
    EXPECT_THROW(pool.run(8, [](int64_t job, int) { check(job != 3, "job {}", job); }), Error);
    pool.run(4, [](int64_t, int) {});
  }
}

TEST(File, AtomicWriteLeavesNothingWithoutCommit) {
  const ScratchFolder scratch;
  const std::string& folder = scratch.path();
  {
    AtomicFile file(folder + "/a");
    file.write("half");
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  write_file_atomically(folder + "/a", "whole");
  EXPECT_EQ(read_text_file(folder + "/a"), "whole");
  EXPECT_THROW(write_file_atomically(folder + "/none/a", "x"), Error);
  EXPECT_THROW(MappedFile::open(folder), Error);
}

// A superuser is kept back by no permissions, so without the check a rename would replace /dev/null.
TEST(File, AtomicWriteLeavesDevicesAndPipesAlone) {
  const ScratchFolder scratch;
  const std::string& folder = scratch.path();
  ASSERT_EQ(::mkfifo((folder + "/pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/null", folder + "/device");
  std::filesystem::create_symlink("/proc/self/fd/1", folder + "/stream");
  for (const std::string name : {"pipe", "device", "stream"}) {
    try {
      write_file_atomically(folder + "/" + name, "text");
      ADD_FAILURE() << name << " was written";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("cannot write " + folder + "/" + name + ": expected")) << name;
    }
    EXPECT_FALSE(std::filesystem::is_regular_file(std::filesystem::symlink_status(folder + "/" + name))) << name;
  }
}

// Two processes write to one output. The second is told what is in its way, whatever failed before.
TEST(File, TemporaryFolderNamesWhatStandsInItsWay) {
  const ScratchFolder scratch;
  const std::string folder = scratch.path() + "/out";
  TemporaryFolder temporary(folder);
  std::filesystem::create_directories(folder + "/of another");
  errno = ENOENT;
  try {
    temporary.commit();
    FAIL() << "a folder was overwritten";
  } catch (const Error& e) {
    EXPECT_EQ(e.what(), "cannot write " + folder + ": Directory not empty");
  }
}

TEST(Hash, KnownAnswer) {
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Rng, PhiloxKnownAnswerAndMoments) {
  // The expected words are Random123's known-answer test for philox4x32-10 with zero counter and key.
  EXPECT_EQ(Rng(0).block(0), (std::array<uint32_t, 4>{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  Rng rng(7);
  double sum = 0, square = 0;
  const int n = 200000;
  for (int i = 0; i < n; ++i) {
    const double x = rng.normal();
    sum += x;
    square += x * x;
  }
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));  // Both bounds allow five standard errors.
  EXPECT_NEAR(square / n, 1, 5 * std::sqrt(2.0 / n));
}

}  // namespace
}  // namespace fidelio
