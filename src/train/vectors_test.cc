// These tests check vector codes as latents. They give back the bytes that they came from and decode to what the
// format decodes to, and their gradients are those of the values.
#include <cstring>

#include "train/gradient_check.h"
#include "train/host/vector_rounding.h"
#include "train/matrix.h"

namespace fidelio::train {
namespace {

using Values = std::vector<double>;

const std::vector<std::string> kVectorFormats = {"vq8k9s1", "vq8k13s4+r5.0", "vq8k16s8", "vq8k12s4+r2.0", "vq8k20s8"};

// Returns a random but valid weight. The last vector of a row is incomplete.
LinearWeight random_vectors(const std::string& name, int64_t out = 19, int64_t in = 61) {
  LinearWeight w = allocate_weight(parse_format(name), out, in);
  auto& m = std::get<SignedVectors>(w.main);
  const VectorShape& s = m.shape;
  Rng rng(12);
  for (int64_t i = 0; i < s.entries * kVector; ++i)
    m.codebook.as<int8_t>()[i] = static_cast<int8_t>(s.signs == 8 ? rng.below(128) : rng.below(255) - 127);
  for (f16& x : m.row_scale.as<f16>()) x = to_f16(static_cast<float>(0.5 + rng.uniform()));
  for (f16& x : m.column_scale.as<f16>()) x = to_f16(static_cast<float>(0.01 + 0.01 * rng.uniform()));
  for (int64_t r = 0; r < out; ++r)
    for (int64_t v = 0; v < s.vectors; ++v) {
      const auto index = static_cast<int>(rng.below(static_cast<uint64_t>(s.entries)));
      set_vector(m, r, v, {index, static_cast<uint8_t>(rng.below(uint64_t{1} << s.signs))});
    }
  for (int64_t i = 0; i < s.sparse; ++i) {
    ++m.sparse_count.as<uint16_t>()[i % out];
    m.sparse_scale.as<f16>()[i] = to_f16(static_cast<float>(0.01 + 0.01 * rng.uniform()));
    for (int j = 0; j < kVector; ++j)
      m.sparse_value.as<int8_t>()[i * kVector + j] = static_cast<int8_t>(j == 3 ? 127 : rng.below(255) - 127);
  }
  for (int64_t r = 0, at = 0; r < out && s.sparse > 0; ++r)
    for (int64_t i = 0; i < m.sparse_count.as<uint16_t>()[r]; ++i)
      m.sparse_index.as<uint16_t>()[at++] = static_cast<uint16_t>(2 * i + 1);
  check_codes(w);
  return w;
}

class Vectors : public testing::TestWithParam<std::string> {};

TEST_P(Vectors, LatentsGiveTheValuesAndScalesTheyCameFrom) {
  const LinearWeight w = random_vectors(GetParam());
  const std::vector<float> expected = decode(w);
  std::vector<float> source = expected;
  Rng rng(5);
  for (float& x : source) x += 0.3f * static_cast<float>(rng.normal());
  Host<float> host(2);
  for (const std::vector<float>& from : {source, std::vector<float>{}}) {
    Matrix<Host<float>> matrix(host, "m", w, from, 0.45f);
    const LinearWeight back = matrix.encode();
    // Signs of entries that are zero, and equal entries, have several codes; so values are compared.
    EXPECT_EQ(decode(back), expected);
    const auto a = stored_tensors(w), b = stored_tensors(back);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i].suffix.starts_with(".plane") || a[i].suffix == ".sign") continue;
      EXPECT_EQ(std::memcmp(a[i].tensor.data, b[i].tensor.data, static_cast<size_t>(a[i].tensor.bytes())), 0)
          << a[i].suffix;
    }
    // There are two products and, for corrections, a sum: three roundings of at most the terms' magnitudes.
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(matrix.view().weight[i], expected[i], 4 * 0x1p-24 * (std::abs(expected[i]) + 2 * 2.6)) << i;
  }
}

// FP16's rounding is a staircase. So masters lie on stored values, and differences take whole steps of it.
TEST_P(Vectors, GradientsOfScalesAndCodebook) {
  const LinearWeight w = random_vectors(GetParam());
  const VectorLatents l = vector_latents(w, {}, vector_neighbours(w));
  const VectorSizes& s = l.sizes;
  Host<double> host(2);
  const auto wide = [](const std::vector<float>& x) { return Values(x.begin(), x.end()); };
  Values latent = wide(l.latent), book = wide(l.codebook), near = wide(l.neighbours), of_row = wide(l.book),
         row = wide(l.row), column = wide(l.column), correction = wide(l.correction), place = wide(l.place),
         code = wide(l.code), value(static_cast<size_t>(s.out * s.in));
  const VectorView<double> view{latent.data(), book.data(),       near.data(),  of_row.data(), row.data(),
                                column.data(), correction.data(), place.data(), code.data()};
  const Values weights = normal_values(8, s.out * s.in);
  const auto f = [&] {
    host.decode(s, view, value.data());
    double sum = 0;
    for (size_t i = 0; i < value.size(); ++i) sum += weights[i] * value[i];
    return sum;
  };
  f();
  Values dlatent = weights, drow(row.size()), dcolumn(column.size()), dbook(book.size()),
         dcorrection(correction.size());
  host.decode_backward(s, view, {dlatent.data(), drow.data(), dcolumn.data(), dbook.data(), dcorrection.data()});
  // The function is linear in each of these, so a step of any size that is stored exactly gives its slope.
  const auto expect_slope = [&](Values& x, const Values& gradient, size_t i, double step) {
    const double here = x[i], before = f();
    x[i] = here + step;
    const double slope = (f() - before) / step;
    x[i] = here;
    EXPECT_NEAR(slope, gradient[i], 1e-9 * (1 + std::abs(before) / std::abs(step))) << i;
  };
  for (size_t i = 0; i < row.size(); i += 3) expect_slope(row, drow, i, row[i]);  // the step is the value itself
  for (size_t i = 0; i < column.size(); i += 3) expect_slope(column, dcolumn, i, column[i]);
  // Codebook values change so little, compared with their entries' distances, that every code stays where it is.
  for (size_t i = 0; i < book.size(); i += 97) expect_slope(book, dbook, i, 0x1p-20);
  // The corrections keep their largest value, and another value moves by a step of their scale.
  for (int64_t i = 0; i < s.corrections; ++i) {
    const double unit = correction_scale(&correction[static_cast<size_t>(i * kVector)]);
    const auto at = static_cast<size_t>(i * kVector) + 1;
    expect_slope(correction, dcorrection, at, correction[at] > 0 ? -unit : unit);
  }
  for (int64_t r = 0; r < s.out; ++r)
    for (int64_t c = 0; c < s.in; ++c)
      EXPECT_EQ(
          dlatent[static_cast<size_t>(r * s.in + c)],
          weights[static_cast<size_t>(r * s.in + c)] * row[static_cast<size_t>(r)] * column[static_cast<size_t>(c)]);
}

// A SharedPair is two matrices of different shapes that read the model's codebook.
template <class D>
struct SharedPair {
  LinearWeight weight[2] = {random_vectors("vq8k16s8m"), random_vectors("vq8k16s8m", 33, 40)};
  std::shared_ptr<Codebook<D>> book;
  std::vector<std::unique_ptr<Matrix<D>>> matrix;

  SharedPair(D& device, bool trained)
      : book(std::make_shared<Codebook<D>>(device, shared_name(weight[0].spec), weight[0], trained)) {
    for (const LinearWeight& w : weight)
      matrix.push_back(std::make_unique<Matrix<D>>(device, "m", w, std::span<const float>{}, 0.45f, book));
  }
  int64_t size(size_t of) const { return weight[of].out * weight[of].in; }
  void decode(bool choose = true) {
    book->decode();
    for (auto& m : matrix) m->decode(choose);
  }
};

std::vector<int8_t> codebook_bytes(const LinearWeight& of) {
  const auto bytes = shared_codebook(of)->as<const int8_t>();
  return {bytes.begin(), bytes.end()};
}

// The gradient of the codebook is the sum over the matrices. With the codes unchanged, values are linear in the
// levels, which whole steps of the masters are. So differences are slopes, but for the rounding of a sum of 2,500
// terms in FP64.
TEST(SharedCodebook, ItsGradientIsTheSumOverItsMatrices) {
  Host<double> host(2);
  SharedPair<Host<double>> pair(host, true);
  Values weights[2] = {normal_values(8, pair.size(0)), normal_values(9, pair.size(1))};
  const auto f = [&] {
    pair.decode(false);
    double sum = 0;
    for (const size_t m : {0, 1})
      for (size_t i = 0; i < weights[m].size(); ++i) sum += weights[m][i] * pair.matrix[m]->view().weight[i];
    return sum;
  };
  const double before = f();
  Parameter<Host<double>>& book = pair.book->parameter();
  EXPECT_EQ(book.name, "codebooks.vq8k16s8m");
  const auto backward = [&](bool shared) {
    for (const size_t m : {0, 1}) {
      std::copy(weights[m].begin(), weights[m].end(), pair.matrix[m]->view().weight_gradient);
      pair.matrix[m]->backward(shared);
    }
  };
  backward(false);
  for (int64_t i = 0; i < book.n; ++i) ASSERT_EQ(book.gradient[i], 0) << i;
  backward(true);
  double norm = 0;
  for (int64_t i = 0; i < book.n; ++i) {
    const double here = book.value[i], step = here > 0 ? -1 : 1;
    book.value[i] = here + step;
    EXPECT_NEAR((f() - before) / step, book.gradient[i], 1e-9 * (1 + std::abs(before))) << i;
    book.value[i] = here;
    norm += book.gradient[i] * book.gradient[i];
  }
  EXPECT_GT(norm, 0);
}

// Returns how much remains, after some steps, of the distance to the same codes with other entries. The weights are
// returned in `to`.
double error_after_steps(bool trained, std::vector<LinearWeight>& to) {
  Host<float> host(1);
  SharedPair<Host<float>> pair(host, trained);
  std::vector<std::vector<float>> target;
  for (LinearWeight w : pair.weight) {
    auto& m = std::get<SignedVectors>(w.main);
    for (int8_t& x : m.codebook.as<int8_t>()) x = static_cast<int8_t>(x * 0.9 + (x % 7) * 1.5);
    target.push_back(decode(w));
  }
  double error = 0;
  for (int64_t step = 0; step <= 60; ++step) {
    error = 0;
    host.zero(pair.book->parameter().gradient.get(), pair.book->parameter().n);
    for (const size_t m : {0, 1}) {
      const LinearView<float> view = pair.matrix[m]->view();
      for (int64_t i = 0; i < pair.size(m); ++i) {
        const float by = view.weight[i] - target[m][static_cast<size_t>(i)];
        view.weight_gradient[i] = 2 * by;
        error += double{by} * by;
      }
      pair.matrix[m]->backward();
    }
    if (step == 60) break;
    const auto move = [&](Parameter<Host<float>>& p) {
      p.step(host, {.rate = p.share == Share::grid ? 0.3 : 0.002, .eps = 1e-12, .step = step + 1}, 1);
    };
    for (auto& m : pair.matrix) m->parameters(move);
    if (trained) move(pair.book->parameter());
    pair.decode();
  }
  to.clear();
  for (auto& m : pair.matrix) to.push_back(m->encode());
  return error;
}

TEST(SharedCodebook, TrainingItLeavesLessOfTheLossAndOneForAll) {
  const std::vector<int8_t> start = codebook_bytes(random_vectors("vq8k16s8m"));
  std::vector<LinearWeight> with, without;
  const double left_with = error_after_steps(true, with), left_without = error_after_steps(false, without);
  EXPECT_LT(left_with, 0.5 * left_without);
  EXPECT_EQ(codebook_bytes(with[0]), codebook_bytes(with[1]));
  EXPECT_NE(codebook_bytes(with[0]), start);
  for (const LinearWeight& w : without) EXPECT_EQ(codebook_bytes(w), start);
}

// A run that is continued has the same values, although the codes do not follow from the parameters alone.
TEST(Vectors, ChoicesAreKeptBesideTheParameters) {
  Host<float> host(1);
  const LinearWeight w = random_vectors("vq8k16s8");
  Matrix<Host<float>> first(host, "m", w, {}), second(host, "m", w, {});
  std::vector<std::vector<float>> state;
  const auto keep = [&](const float* values, int64_t n) { state.emplace_back(values, values + n); };
  // The latents end far from where they began, after three random walks.
  for (const uint64_t walk : {1, 2, 3}) {
    first.parameters([&](Parameter<Host<float>>& p) {
      const std::vector<double> by = normal_values(walk, p.n, p.share == Share::codes ? 60 : 0);
      for (int64_t i = 0; i < p.n; ++i) p.value[i] += static_cast<float>(by[static_cast<size_t>(i)]);
    });
    first.decode();
  }
  first.parameters([&](Parameter<Host<float>>& p) { keep(p.value.get(), p.n); });
  first.choices([&](const std::string& name, const float* values, int64_t n) {
    EXPECT_EQ(name, "m.chosen");
    keep(values, n);
  });
  size_t at = 0;
  second.parameters([&](Parameter<Host<float>>& p) { host.upload(state[at++], p.value.get()); });
  second.choices([&](const std::string&, float* values, int64_t) { host.upload(state[at++], values); });
  second.decode(false);
  const auto values = [&](const Matrix<Host<float>>& m) {
    return std::vector<float>(m.view().weight, m.view().weight + w.out * w.in);
  };
  EXPECT_EQ(values(first), values(second));
  first.decode(), second.decode();
  EXPECT_EQ(values(first), values(second));
}

// Latents that are moved to another entry take its code.
TEST(Vectors, TheNearestNeighbourIsTaken) {
  const LinearWeight w = random_vectors("vq8k16s8");
  VectorLatents l = vector_latents(w, {}, vector_neighbours(w));
  const VectorSizes& s = l.sizes;
  const auto code = static_cast<int64_t>(l.code[0]);
  const auto other = static_cast<int64_t>(l.neighbours[static_cast<size_t>(code % s.entries * s.neighbours + 5)]);
  for (size_t j = 0; j < kVector; ++j) l.latent[j] = -l.codebook[static_cast<size_t>(other) * kVector + j];
  Host<float> host(1);
  std::vector<float> value(static_cast<size_t>(s.out * s.in));
  host.decode(s,
              VectorView<float>{l.latent.data(), l.codebook.data(), l.neighbours.data(), l.book.data(), l.row.data(),
                                l.column.data(), l.correction.data(), l.place.data(), l.code.data()},
              value.data());
  for (size_t j = 0; j < kVector; ++j)
    EXPECT_EQ(value[j], l.row[0] * l.column[j] * -l.codebook[static_cast<size_t>(other) * kVector + j]);
}

INSTANTIATE_TEST_SUITE_P(All, Vectors, testing::ValuesIn(kVectorFormats), [](const auto& info) {
  std::string name = info.param;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
});

}  // namespace
}  // namespace fidelio::train
