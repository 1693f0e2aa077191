// This fixture has the parts that tests of an Engine share: answers are compared with those of the same requests alone,
// and a crowd of requests is answered of which many are cancelled.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <span>
#include <vector>

#include "core/rng.h"
#include "engine/engine.h"

namespace fidelio {

inline void expect_same(std::span<const Generation> got, std::span<const Generation> expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].ids, expected[i].ids) << "request " << i;
    EXPECT_EQ(got[i].logprobs, expected[i].logprobs) << "request " << i;  // bit for bit
    EXPECT_EQ(got[i].finish_reason, expected[i].finish_reason) << "request " << i;
  }
}

// Adds ten thousand of these requests, at most 60 at a time, and runs them to their ends. Some are cancelled between
// steps, and some, one in so many tokens, from callbacks of their own and of others. Expects that nothing is lost, and
// that answers are those of the requests alone, up to where they were cancelled.
struct CrowdCounts {
  int64_t cancelled = 0, compared = 0;
};
inline CrowdCounts run_crowd(Engine& engine, std::span<const GenerationRequest> requests,
                             std::span<const Generation> expected, uint64_t cancelled_in) {
  constexpr int64_t kRequests = 10000;
  Rng rng(8);
  std::set<int64_t> open;
  CrowdCounts counts;
  int64_t added = 0;
  const auto add = [&] {
    const auto which = static_cast<size_t>(rng.below(requests.size()));
    RequestEvents events;
    events.on_token = [&](const NewToken& token) {
      if (rng.below(cancelled_in) == 0) engine.cancel(token.request);
      if (rng.below(cancelled_in) == 0 && !open.empty()) engine.cancel(*open.begin());
    };
    events.on_finish = [&, which](int64_t i, Generation&& g) {
      EXPECT_EQ(open.erase(i), 1u);
      const auto& ids = expected[which].ids;
      if (g.finish_reason == FinishReason::cancelled) {
        ++counts.cancelled;
        EXPECT_TRUE(g.ids.size() <= ids.size() && std::equal(g.ids.begin(), g.ids.end(), ids.begin()));
      } else {
        ++counts.compared;
        EXPECT_EQ(g.ids, ids);
      }
    };
    open.insert(engine.add(requests[which], std::move(events)));
  };
  while (counts.cancelled + counts.compared < kRequests) {
    for (int i = 0; i < 4 && added < kRequests && open.size() < 60; ++i, ++added) add();
    if (rng.below(8) == 0 && !open.empty()) {
      auto it = open.begin();
      std::advance(it, static_cast<int64_t>(rng.below(open.size())));
      EXPECT_TRUE(engine.cancel(*it));
    }
    engine.step();
  }
  EXPECT_FALSE(engine.step());
  return counts;
}

}  // namespace fidelio
