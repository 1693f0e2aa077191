#include "sensitivity/gamma.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "core/rng.h"
#include "formats/linear_weight.h"
#include "io/checkpoint.h"

namespace fidelio {
namespace {

// The law must hold within 3% at 4 bits and more. It leaves out two things. The ends of a group's own range are on
// its grid, so 2 of g = 128 values (1 of 128 on the symmetric grid) have no error, which is 0.8% of the ratio. And
// the mean of n squared uniform errors has a relative standard error of sqrt(0.8 / n), which is below 0.4% for the
// ratio of two such means with n = 128 * 1024.
TEST(Gamma, PredictsTheRatioOfRoundingVariances) {
  for (int kind : {0, 1, 2}) {
    Rng rng(13, static_cast<uint64_t>(kind));
    std::vector<float> w(128 * 1024);
    double mean = 0;
    for (size_t i = 0; i < w.size(); ++i) {
      if (i % 128 == 0) mean = 0.5 * rng.normal();
      w[i] = static_cast<float>(kind == 0 ? -0.8 + 2 * rng.uniform() : kind == 1 ? rng.normal() : mean + rng.normal());
    }
    for (int bits : {4, 5, 8}) {
      const GammaLaw law = gamma_law(w, 128, 1024, 128, bits);
      EXPECT_NEAR(law.measured / law.predicted, 1, 0.03) << kind << " " << bits;
      EXPECT_GT(law.predicted, 1.05);
      EXPECT_GE(law.largest, law.predicted);
    }
  }
  // For real weights the test takes the mean over the 28 linears of a trained model's layers. A single one, with
  // 16384 values, has a standard error of 1%. The head is left out: rows of tokens that never occurred in training
  // are nearly the same, and so are their errors.
  const Checkpoint quill = Checkpoint::open(FIDELIO_SOURCE_DIR "/models/quill-1m");
  double sum = 0;
  int linears = 0;
  for (LinearId id : linears_of(quill.config())) {
    if (id.layer < 0) continue;
    const LinearWeight weight = quill.linear(id);
    const GammaLaw law = gamma_law(decode(weight), weight.out, weight.in, 128, 4);
    sum += law.measured / law.predicted;
    ++linears;
  }
  EXPECT_NEAR(sum / linears, 1, 0.03);
}

// For the range [-0.8, 1.2], gamma = 2 * 1.2 / 2. Groups of one value do not count, and a range around zero costs
// nothing.
TEST(Gamma, OfGroupsKnownByHand) {
  EXPECT_NEAR(gamma_law(std::vector<float>{-0.8f, 1.2f, 0.1f, 0.3f}, 1, 4, 0, 4).gamma(), 1.2, 1e-6);
  EXPECT_NEAR(gamma_law(std::vector<float>{-0.8f, 1.2f, 3, 3}, 1, 4, 2, 4).predicted, 1.44, 1e-6);
  EXPECT_DOUBLE_EQ(gamma_law(std::vector<float>{-1, 1, 0.3f, 0.1f}, 1, 4, 4, 3).measured, 1);
  EXPECT_THROW(gamma_law(std::vector<float>{1, 2}, 1, 2, 2, 9), Error);
}

}  // namespace
}  // namespace fidelio
