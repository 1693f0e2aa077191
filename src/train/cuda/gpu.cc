#include "train/cuda/gpu.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace fidelio::train {

Gpu::Gpu(int device, cuda::Arithmetic arithmetic) : arithmetic_(arithmetic) {
  cuda::open_device(device);
  stream_ = cuda::make_stream();
  blas_.emplace(stream_, arithmetic);
  sums_ = cuda::DeviceBuffer((gpu::kSumParts + 1) * sizeof(double));  // the last one is the result of squares()
}

Gpu::~Gpu() {
  cuda::wait_for(stream_);
  nccl_.reset();
  blas_.reset();
  cuda::destroy_stream(stream_);
}

Gpu::Array Gpu::allocate(int64_t n) {
  auto owner = std::make_shared<cuda::DeviceBuffer>(static_cast<size_t>(n) * sizeof(float));
  return Array(owner, owner->as<float>());
}

void Gpu::upload(std::span<const float> from, float* to) {
  cuda::to_device(stream_, to, from.data(), from.size_bytes());
  cuda::wait_for(stream_);  // the caller's memory may change from here on
}
void Gpu::download(const float* from, std::span<float> to) {
  cuda::from_device(stream_, to.data(), from, to.size_bytes());
}
void Gpu::download(const float* from, std::span<double> to) {
  std::vector<float> values(to.size());
  download(from, values);
  std::copy(values.begin(), values.end(), to.begin());
}
void Gpu::zero(float* x, int64_t n) { cuda::zero_device(stream_, x, static_cast<size_t>(n) * sizeof(float)); }
void Gpu::copy(const float* from, float* to, int64_t n) {
  cuda::on_device(stream_, to, from, static_cast<size_t>(n) * sizeof(float));
}
void Gpu::add(const float* from, float* to, int64_t n) { gpu::add(stream_, from, to, n, false); }
void Gpu::add_absolute(const float* from, float* to, int64_t n) { gpu::add(stream_, from, to, n, true); }

void Gpu::exchange(const Ranks& ranks, const std::vector<Message>& send, const std::vector<Message>& receive) {
  if (!nccl_) nccl_ = std::make_unique<Nccl>(ranks, stream_);
  nccl_->exchange(send, receive);
}

namespace {

template <typename T>
std::shared_ptr<cuda::DeviceBuffer> on_device(cuda::Stream stream, const std::vector<T>& values) {
  auto buffer = std::make_shared<cuda::DeviceBuffer>(std::max<size_t>(1, values.size()) * sizeof(T));
  cuda::to_device(stream, buffer->data(), values.data(), values.size() * sizeof(T));
  cuda::wait_for(stream);
  return buffer;
}

}  // namespace

Gpu::Rows Gpu::load(const Sequences& s) {
  Rows rows;
  rows.n_ = s.rows();
  const auto n = static_cast<size_t>(s.rows());
  std::vector<int32_t> lists(4 * n);
  std::map<int32_t, std::vector<int32_t>> of_length;  // the first rows of the sequences of each length
  std::copy(s.ids.begin(), s.ids.end(), lists.begin());
  for (size_t i = 0; i + 1 < s.begin.size(); ++i) {
    const int32_t first = s.begin[i], count = s.begin[i + 1] - first;
    rows.longest_ = std::max<int64_t>(rows.longest_, count);
    for (int32_t p = 0; p < count; ++p) {
      const auto row = static_cast<size_t>(first + p);
      lists[n + row] = p + 1 < count ? s.ids[row + 1] : -1;
      lists[2 * n + row] = p;
    }
    of_length[count].push_back(first);
  }
  const auto order = lists.begin() + static_cast<int64_t>(3 * n);
  std::iota(order, lists.end(), 0);
  std::stable_sort(order, lists.end(), [&](int32_t a, int32_t b) { return s.ids[a] < s.ids[b]; });
  std::vector<int32_t> distinct, begins;
  for (size_t i = 0; i < n; ++i) {
    const int32_t id = s.ids[static_cast<size_t>(order[static_cast<int64_t>(i)])];
    if (distinct.empty() || distinct.back() != id) distinct.push_back(id), begins.push_back(static_cast<int32_t>(i));
  }
  begins.push_back(static_cast<int32_t>(n));
  rows.distinct_ = static_cast<int64_t>(distinct.size());
  std::vector<int32_t> firsts;
  for (const auto& [length, all] : of_length) {
    if (length == 0) continue;
    rows.alike_.push_back({length, static_cast<int64_t>(firsts.size()), static_cast<int64_t>(all.size())});
    firsts.insert(firsts.end(), all.begin(), all.end());
  }
  distinct.insert(distinct.end(), begins.begin(), begins.end());
  rows.lists_ = on_device(stream_, lists), rows.begins_ = on_device(stream_, distinct);
  rows.sequences_ = on_device(stream_, firsts);
  return rows;
}

Gpu::Copy* Gpu::copy_of(const float* x) {
  for (Copy& copy : copies_)
    if (copy.users > 0 && copy.of == x) return &copy;
  return nullptr;
}
Gpu::Held Gpu::make_copy(const float* x, int64_t n) {
  const auto bytes = static_cast<size_t>(n) * sizeof(uint16_t);
  // Takes the copy that these values have already. Otherwise it takes the smallest free one that is large enough, or
  // else the largest free one, which grows.
  size_t best = copies_.size();
  if (const Copy* now = copy_of(x)) best = static_cast<size_t>(now - copies_.data());
  for (size_t i = 0; i < copies_.size() && copy_of(x) == nullptr; ++i) {
    if (copies_[i].users > 0) continue;
    const size_t size = copies_[i].values.size(), chosen = best < copies_.size() ? copies_[best].values.size() : 0;
    if (chosen < bytes ? size >= chosen : size >= bytes && size < chosen) best = i;
  }
  if (best == copies_.size()) copies_.emplace_back();
  copies_[best].of = x;
  cuda::reserve(stream_, copies_[best].values, static_cast<int64_t>(bytes));
  return {this, best};
}
Gpu::Held Gpu::hold(const float* x, int64_t n) {
  if (!is_bf16()) return {};
  const bool there = copy_of(x) != nullptr;
  Held held = make_copy(x, n);
  if (!there) gpu::to_bf16(stream_, x, n, values_of(x));
  return held;
}
void Gpu::multiply(const Product<float>& p) {
  blas_->product(p.m, p.n, p.k, factor(p.a, p.m * p.k, 0), p.a_transposed, factor(p.b, p.k * p.n, 1), p.b_transposed,
                 p.beta, p.c);
}
void Gpu::add_bias(const float* bias, int64_t rows, int64_t columns, float* y) {
  gpu::add_bias(stream_, bias, rows, columns, y);
}
void Gpu::sum_rows(const float* x, int64_t rows, int64_t columns, float* sums) {
  gpu::sum_rows(stream_, x, nullptr, nullptr, rows, columns, scratch(gpu::row_parts(rows) * columns), sums);
}
void Gpu::gather(const Rows& rows, const float* table, int64_t d, float* x) {
  gpu::gather(stream_, rows.at(0), rows.n_, table, d, x);
}
void Gpu::scatter(const Rows& rows, const float* x, int64_t d, float* table) {
  const auto* distinct = rows.begins_->as<int32_t>();
  gpu::scatter(stream_, rows.at(3), distinct + rows.distinct_, distinct, rows.distinct_, x, d, table);
}
void Gpu::norm(const float* x, const float* weight, double eps, int64_t rows, int64_t columns, float* y) {
  gpu::norm(stream_, x, weight, static_cast<float>(eps), rows, columns, y);
}
Gpu::Held Gpu::norm_for_products(const float* x, const float* weight, double eps, int64_t rows, int64_t columns,
                                 float* y) {
  if (!is_bf16()) {
    norm(x, weight, eps, rows, columns, y);
    return {};
  }
  Held held = make_copy(y, rows * columns);
  gpu::norm_bf16(stream_, x, weight, static_cast<float>(eps), rows, columns, values_of(y));
  return held;
}
void Gpu::norm_backward(const float* x, const float* weight, double eps, int64_t rows, int64_t columns, const float* dy,
                        float* dx, bool add, float* dweight) {
  float* inverse = scratch(rows + gpu::row_parts(rows) * columns);
  gpu::norm_backward(stream_, x, weight, static_cast<float>(eps), rows, columns, dy, dx, add, inverse);
  if (dweight != nullptr) gpu::sum_rows(stream_, x, dy, inverse, rows, columns, inverse + rows, dweight);
}

void Gpu::turn(const AttentionSizes& sizes, int64_t positions) {
  const int64_t half = sizes.e / 2;
  if (frequencies_ != sizes.frequencies || rope_scale_ != sizes.rope_scale) turned_ = 0;
  if (positions <= turned_) return;
  frequencies_ = sizes.frequencies, rope_scale_ = sizes.rope_scale;
  std::vector<float> cosine, sine;
  for (int64_t p = 0; p < positions; ++p)
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p) * static_cast<double>(frequencies_[static_cast<size_t>(i)]);
      cosine.push_back(static_cast<float>(std::cos(angle) * static_cast<double>(rope_scale_)));
      sine.push_back(static_cast<float>(std::sin(angle) * static_cast<double>(rope_scale_)));
    }
  cuda::wait_for(stream_);
  cosine_ = cuda::DeviceBuffer(cosine.size() * sizeof(float)), sine_ = cuda::DeviceBuffer(sine.size() * sizeof(float));
  upload(cosine, cosine_.as<float>()), upload(sine, sine_.as<float>());
  turned_ = positions;
}

void Gpu::rope(const Rows& rows, const AttentionSizes& sizes, int64_t heads, bool back, float* x) {
  turn(sizes, rows.longest_);
  gpu::rope(stream_, rows.at(2), cosine_.as<float>(), sine_.as<float>(), rows.n_, heads, sizes.e, back, x);
}

Gpu::Held Gpu::swiglu(const float* gate, const float* up, int64_t n, float* y) {
  if (!is_bf16()) {
    gpu::swiglu(stream_, gate, up, n, y);
    return {};
  }
  Held held = make_copy(y, n);
  gpu::swiglu_bf16(stream_, gate, up, n, values_of(y));
  return held;
}
std::pair<Gpu::Held, Gpu::Held> Gpu::swiglu_backward(float* gate, float* up, int64_t n, const float* dy, bool others) {
  if (!is_bf16() || others) {
    gpu::swiglu_backward(stream_, gate, up, n, dy);
    return {};
  }
  std::pair<Held, Held> held = {make_copy(gate, n), make_copy(up, n)};
  gpu::swiglu_backward_bf16(stream_, gate, up, n, dy, values_of(gate), values_of(up));
  return held;
}
double Gpu::difference(const float* target, double scale, int64_t n, float* x) {
  gpu::difference(stream_, target, static_cast<float>(scale), n, x, sums_.as<double>());
  return sum_of_parts();
}
void Gpu::scale_difference(const float* target, double scale, int64_t n, float* x) {
  gpu::difference(stream_, target, static_cast<float>(scale), n, x, sums_.as<double>());
}
void Gpu::divergence(const float* teacher, float* student, const int32_t* labels, int64_t rows, int64_t v,
                     const LossMix& mix, double gradient_scale, float* losses) {
  gpu::divergence(stream_, teacher, student, labels, rows, v,
                  {static_cast<float>(mix.forward), static_cast<float>(mix.reverse), static_cast<float>(mix.label)},
                  static_cast<float>(gradient_scale), losses);
}
double Gpu::sum_of_squares(const float* x, const float* unit, int64_t n) {
  gpu::sum_of_squares(stream_, x, unit, n, sums_.as<double>());
  return sum_of_parts();
}
void Gpu::add_squares(const float* x, const float* unit, int64_t n, double by) {
  gpu::sum_of_squares(stream_, x, unit, n, sums_.as<double>());
  gpu::add_sum(stream_, sums_.as<double>(), by, sums_.as<double>() + gpu::kSumParts);
}
double Gpu::squares() {
  double sum = 0;
  double* at = sums_.as<double>() + gpu::kSumParts;
  cuda::from_device(stream_, &sum, at, sizeof sum);
  cuda::zero_device(stream_, at, sizeof sum);
  return sum;
}
void Gpu::adam(const float* gradient, const float* unit, int64_t n, const AdamStep& how, float* value, float* m,
               float* v) {
  const auto step = static_cast<double>(how.step);
  gpu::adam(stream_, gradient, unit, n,
            {static_cast<float>(how.rate), static_cast<float>(how.beta1), static_cast<float>(how.beta2),
             static_cast<float>(how.eps), static_cast<float>(1 / (1 - std::pow(how.beta1, step))),
             static_cast<float>(1 / (1 - std::pow(how.beta2, step))), static_cast<float>(how.clip),
             static_cast<float>(how.low), static_cast<float>(how.high)},
            value, m, v);
}

void Gpu::round(const float* x, int64_t n, Kind kind, float* rounded) { gpu::round(stream_, x, n, kind, rounded); }
void Gpu::keep_ascending(const float* grid, int64_t levels, float* level) {
  gpu::keep_ascending(stream_, grid, static_cast<int>(levels), level);
}
void Gpu::resolve(const ScaleView<float>& view, const ScaleValues<float>& values) {
  gpu::resolve(stream_, view, values);
}
void Gpu::resolve_backward(const ScaleView<float>& view, const ScaleGradient<float>& gradient) {
  gpu::resolve_backward(stream_, view, gradient);
}
void Gpu::decode(const CodeSizes& sizes, const CodeView<float>& view, float* values) {
  gpu::decode(stream_, sizes, view, values);
}
void Gpu::decode_backward(const CodeSizes& sizes, const CodeView<float>& view, const CodeGradient<float>& gradient) {
  gpu::decode_backward(stream_, sizes, view, gradient,
                       gradient.level == nullptr ? nullptr : scratch(gpu::level_parts(sizes)));
}
void Gpu::decode(const VectorSizes& sizes, const VectorView<float>& view, float* values) {
  gpu::decode(stream_, sizes, view, values);
}
void Gpu::decode_backward(const VectorSizes& sizes, const VectorView<float>& view,
                          const VectorGradient<float>& gradient) {
  gpu::decode_backward(stream_, sizes, view, gradient);
}

float* Gpu::scratch(int64_t values) {
  cuda::reserve(stream_, scratch_, values * static_cast<int64_t>(sizeof(float)));
  return scratch_.as<float>();
}
double Gpu::sum_of_parts() {
  std::vector<double> parts(gpu::kSumParts);
  cuda::from_device(stream_, parts.data(), sums_.data(), parts.size() * sizeof(double));
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}
void* Gpu::factor(const float* x, int64_t n, int which) {
  if (!is_bf16()) return const_cast<float*>(x);  // cuBLAS reads the values themselves
  if (const Copy* copy = copy_of(x)) return copy->values.data();
  cuda::DeviceBuffer& to = factors_[which];
  cuda::reserve(stream_, to, n * static_cast<int64_t>(sizeof(uint16_t)));
  gpu::to_bf16(stream_, x, n, to.as<uint16_t>());
  return to.data();
}

}  // namespace fidelio::train
