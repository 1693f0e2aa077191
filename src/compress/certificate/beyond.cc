#include "compress/certificate/beyond.h"

#include <fmt/format.h>

#include <cmath>
#include <tuple>

namespace fidelio {
namespace {

// Quantiles hardly move from one processor to another, and the largest moves by some percent: a claim that is half of
// what is measured was not measured on this model.
std::string tails_not_borne_out(const Tails& claimed, const Tails& measured) {
  constexpr double kMostBetter = 0.5;
  if (claimed.positions == 0 || measured.positions == 0) return "";
  for (const auto& [name, claim, found] : {std::tuple{"99% of", claimed.kl_p99, measured.kl_p99},
                                           std::tuple{"99.9% of", claimed.kl_p999, measured.kl_p999},
                                           std::tuple{"all", claimed.kl_largest, measured.kl_largest}})
    if (claim < kMostBetter * found)
      return fmt::format("it claims a KL of at most {:.6f} at {} positions, measured is {:.6f}", claim, name, found);
  return "";
}

}  // namespace

std::vector<PlainWords> words_beyond_means(const Certificate& c) {
  std::vector<PlainWords> words;
  if (c.sampling && c.all.ear_sampled)
    words.push_back({"As it is sampled",
                     fmt::format("at {}, which the original's authors recommend, the overlap is {} over all the text.",
                                 sampling_text(*c.sampling), percent_with_interval(*c.all.ear_sampled))});
  if (c.tails.positions > 0)
    words.push_back(
        {"At worst",
         fmt::format(
             "at one token in a hundred KL is above {:.5f} nats, at one in a thousand above {:.5f}; the largest "
             "of all {} is {:.5f}, and the lowest overlap {:.2f}%.",
             c.tails.kl_p99, c.tails.kl_p999, c.tails.positions, c.tails.kl_largest, 100 * c.tails.ear_lowest)});
  if (c.answers)
    words.push_back(
        {"Whole answers",
         fmt::format(
             "{} of the {} greedy answers of up to {} tokens {} the original's word for word, {}; a single token "
             "that differs changes all that follows.",
             c.answers->same, c.answers->prompts, c.answers->max_tokens, c.answers->same == 1 ? "is" : "are",
             percent_with_interval(c.answers->share()))});
  return words;
}

std::string beyond_not_borne_out(const Certificate& claimed, const Certificate& measured) {
  if (const std::string tails = tails_not_borne_out(claimed.tails, measured.tails); !tails.empty()) return tails;
  if (!claimed.answers || !measured.answers || claimed.answers->sha256 != measured.answers->sha256) return "";
  // Two tokens that are as good as equal may change places, and the rest of the answer with them.
  const Estimate claim = claimed.answers->share(), found = measured.answers->share();
  if (claim.value <= found.ci95.high) return "";
  return fmt::format("it claims that {} of the answers are the original's, measured is {}",
                     percent_with_interval(claim), percent_with_interval(found));
}

}  // namespace fidelio
