#include "compress/certificate/beyond.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace fidelio {
namespace {

using testing::HasSubstr;

Certificate with_figures_beyond() {
  Certificate c;
  c.all.ear_sampled = Estimate{0.979, {0.978, 0.98}};
  c.all.kl_sampled = Estimate{0.003, {0.002, 0.004}};
  c.sampling = SamplingOptions{};
  c.sampling->temperature = 0.6;
  c.sampling->top_p = 0.9;
  c.tails.positions = 5000;
  c.tails.kl_p50 = 0.001;
  c.tails.kl_p99 = 0.009;
  c.tails.kl_p999 = 0.02;
  c.tails.kl_largest = 0.03;
  c.tails.ear_lowest = 0.87;
  c.answers = WholeAnswers{200, 24, 9, 4000, 3950, {}, "prompts"};
  return c;
}

TEST(BeyondMeans, IsSaidInPlainWords) {
  std::string all;
  for (const PlainWords& w : words_beyond_means(with_figures_beyond())) all += w.about + ": " + w.sentence + "\n";
  EXPECT_THAT(all,
              HasSubstr("temperature 0.6, top-p 0.9, which the original's authors recommend, the overlap is 97.90% "
                        "[97.80, 98.00]"));
  EXPECT_THAT(all, HasSubstr("one token in a hundred KL is above 0.00900"));
  EXPECT_THAT(all, HasSubstr("lowest overlap 87.00%"));
  EXPECT_THAT(all,
              HasSubstr("9 of the 24 greedy answers of up to 200 tokens are the original's word for word, 37.50% ["));
  EXPECT_TRUE(words_beyond_means({}).empty());
}

TEST(BeyondMeans, ABetterClaimIsNotBorneOut) {
  const Certificate measured = with_figures_beyond();
  EXPECT_EQ(beyond_not_borne_out(measured, measured), "");
  Certificate claimed = measured;
  claimed.tails.kl_largest = 0.025;  // another processor
  claimed.answers->same = 11;
  EXPECT_EQ(beyond_not_borne_out(claimed, measured), "");
  claimed.tails.kl_p999 = 0.009;
  EXPECT_THAT(beyond_not_borne_out(claimed, measured), HasSubstr("KL of at most 0.009000 at 99.9% of positions"));
  claimed = measured;
  claimed.answers->same = 24;
  EXPECT_THAT(beyond_not_borne_out(claimed, measured), HasSubstr("100.00%"));
  claimed.answers->sha256 = "others";
  EXPECT_EQ(beyond_not_borne_out(claimed, measured), "");
}

}  // namespace
}  // namespace fidelio
