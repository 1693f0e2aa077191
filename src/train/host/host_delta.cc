// This file computes the gated delta rule (op::DeltaRule in step/program.h) and its backward pass in chunks of 64 rows.
//
// Let S be the state before a chunk, and for its row i let g_i be the product of the shares that rows up to i keep of
// the state, D_ij = g_i / g_j, and b_i the share of the change that row i writes. Then the rows change the state by
// k_i c_i^T, and these changes, which follow from each other, solve a triangular system:
//
//   c_i + b_i sum_{j < i} D_ij (k_i k_j) c_j = b_i (v_i - g_i S^T k_i)
//   y_i = g_i S^T q_i + sum_{j <= i} D_ij (q_i k_j) c_j
//   S' = g_n S + sum_i D_ni k_i c_i^T
//
// This is the chunked form of Yang et al., arXiv 2412.06464, with the system solved for the changes themselves. The
// backward pass makes the states before all chunks of a head once more, and then goes through the chunks from the last
// to the first. Its memory is a state for each chunk, besides what is proportional to the rows.
#include "train/host/host.h"
#include "train/host/host_math.h"

namespace fidelio::train {
namespace {

constexpr int64_t kChunk = 64;

template <typename T>
T sigmoid_of(T x) {
  return T{1} / (T{1} + std::exp(-x));
}
// Computes log(1 + e^x) without overflow.
template <typename T>
T softplus(T x) {
  return std::max(x, T{0}) + std::log1p(std::exp(-std::abs(x)));
}

// A KeyHead holds the queries and keys of one key head in one sequence, divided by their norms, and queries by
// sqrt(key_dim) besides. In the backward pass it collects their gradients.
template <typename T>
struct KeyHead {
  const DeltaNet& net;
  int64_t first, n;  // rows of the sequence
  int64_t head;
  int64_t dk;
  std::vector<T> q, k, q_gradient, k_gradient;  // (n, dk)
  std::vector<T> q_factor, k_factor;            // (n): by what the rows were multiplied

  KeyHead(const DeltaNet& how, const Sequences& sequences, int64_t job, const T* u)
      : net(how), head(job % how.key_heads), dk(how.key_dim) {
    const auto sequence = static_cast<size_t>(job / how.key_heads);
    first = sequences.begin[sequence], n = sequences.begin[sequence + 1] - first;
    normalise(u + q_column(), T{1} / std::sqrt(static_cast<T>(dk)), q, q_factor);
    normalise(u + k_column(), T{1}, k, k_factor);
  }
  int64_t q_column() const { return first * net.channels() + head * dk; }
  int64_t k_column() const { return q_column() + net.keys(); }

  void begin_gradients() { q_gradient.assign(q.size(), T{0}), k_gradient.assign(k.size(), T{0}); }
  // Replaces the queries and keys in u by their gradients.
  void end_gradients(T* u) const {
    normalise_back(q, q_factor, q_gradient, T{1} / static_cast<T>(dk), u + q_column());
    normalise_back(k, k_factor, k_gradient, T{1}, u + k_column());
  }

 private:
  void normalise(const T* from, T scale, std::vector<T>& to, std::vector<T>& factors) {
    to.resize(static_cast<size_t>(n * dk)), factors.resize(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      const T* x = from + i * net.channels();
      const T factor = scale / std::sqrt(dot(x, x, dk) + T(1e-6));
      factors[static_cast<size_t>(i)] = factor;
      for (int64_t c = 0; c < dk; ++c) to[static_cast<size_t>(i * dk + c)] = factor * x[c];
    }
  }
  // For y = f x with f = scale / sqrt(sum x^2 + eps) this computes dx = f (dy - y (y dy) / scale^2).
  void normalise_back(const std::vector<T>& y, const std::vector<T>& factors, const std::vector<T>& dy, T scale_squared,
                      T* to) const {
    for (int64_t i = 0; i < n; ++i) {
      const T *row = y.data() + i * dk, *g = dy.data() + i * dk;
      const T factor = factors[static_cast<size_t>(i)], along = dot(row, g, dk) / scale_squared;
      T* x = to + i * net.channels();
      for (int64_t c = 0; c < dk; ++c) x[c] = factor * (g[c] - along * row[c]);
    }
  }
};

// A Square is a matrix (kChunk, kChunk) of which a chunk uses its rows.
template <typename T>
using Square = std::vector<T>;

// A DeltaChunk is a chunk of one value head: the state before it, and what the head comment of this file names.
template <typename T>
struct DeltaChunk {
  int64_t at = 0, rows = 0;       // its rows within the sequence
  std::vector<T> state;           // (dk, dv): S
  std::vector<T> since, until;    // (rows): g_i and D_ni
  Square<T> decay, alike, reads;  // D_ij for j <= i, D_ij (k_i k_j) for j < i, and D_ij (q_i k_j) for j <= i
  std::vector<T> known, change;   // (rows, dv): S^T k_i and c_i
};

// A ValueHead takes the rows of one value head in one sequence through its state.
template <typename T>
class ValueHead {
 public:
  ValueHead(const KeyHead<T>& keys, int64_t head, const DeltaRates<T>& rates, const T* u, const T* b, const T* a)
      : keys_(keys), head_(head), dk_(keys.dk), dv_(keys.net.value_dim) {
    v_ = u + keys.first * keys.net.channels() + 2 * keys.net.keys() + head * dv_;
    rate_ = -std::exp(rates.log_rate[head]), bias_ = rates.step_bias[head];
    for (int64_t i = 0; i < keys.n; ++i) {
      const int64_t row = (keys.first + i) * keys.net.value_heads + head;
      written_.push_back(sigmoid_of(b[row]));
      log_kept_.push_back(rate_ * softplus(a[row] + bias_));
    }
  }
  int64_t chunks() const { return (keys_.n + kChunk - 1) / kChunk; }
  int64_t states() const { return dk_ * dv_; }

  // Fills a chunk, whose state is given.
  void load(int64_t number, DeltaChunk<T>& c) const {
    c.at = number * kChunk, c.rows = std::min(kChunk, keys_.n - c.at);
    double total[kChunk], sum = 0;  // in FP64, so that small differences of large sums are right
    for (int64_t i = 0; i < c.rows; ++i)
      total[i] = sum += static_cast<double>(log_kept_[static_cast<size_t>(c.at + i)]);
    for (auto* list : {&c.since, &c.until}) list->resize(kChunk);
    for (auto* square : {&c.decay, &c.alike, &c.reads}) square->assign(kChunk * kChunk, T{0});
    for (auto* values : {&c.known, &c.change}) values->resize(static_cast<size_t>(kChunk * dv_));
    for (int64_t i = 0; i < c.rows; ++i) {
      T* decay = c.decay.data() + i * kChunk;
      c.since[static_cast<size_t>(i)] = static_cast<T>(total[i]);
      c.until[static_cast<size_t>(i)] = static_cast<T>(sum - total[i]);
      for (int64_t j = 0; j <= i; ++j) decay[j] = static_cast<T>(total[i] - total[j]);
      exp_row(decay, T{0}, i + 1, decay);
    }
    exp_row(c.since.data(), T{0}, c.rows, c.since.data());
    exp_row(c.until.data(), T{0}, c.rows, c.until.data());
    const T *q = keys_.q.data() + c.at * dk_, *k = keys_.k.data() + c.at * dk_;
    gemm(false, true, c.rows, c.rows, dk_, T{1}, k, dk_, k, dk_, T{0}, c.alike.data(), kChunk);
    gemm(false, true, c.rows, c.rows, dk_, T{1}, q, dk_, k, dk_, T{0}, c.reads.data(), kChunk);
    for (int64_t i = 0; i < c.rows; ++i)
      for (int64_t j = i * kChunk; j < i * kChunk + c.rows; ++j) {
        c.alike[static_cast<size_t>(j)] *= j < i * kChunk + i ? c.decay[static_cast<size_t>(j)] : T{0};
        c.reads[static_cast<size_t>(j)] *= c.decay[static_cast<size_t>(j)];  // 0 behind the diagonal
      }
    solve(c);
  }

  // Computes y from a chunk.
  void read(const DeltaChunk<T>& c, T* y) const {
    T* to = own_rows(c, y);
    gemm(false, false, c.rows, dv_, dk_, T{1}, keys_.q.data() + c.at * dk_, dk_, c.state.data(), dv_, T{0}, to,
         stride());
    for (int64_t i = 0; i < c.rows; ++i)
      for (int64_t e = 0; e < dv_; ++e) to[i * stride() + e] *= c.since[static_cast<size_t>(i)];
    gemm(false, false, c.rows, dv_, c.rows, T{1}, c.reads.data(), kChunk, c.change.data(), dv_, T{1}, to, stride());
  }

  // Computes the state after a chunk. The state before it may be in the same memory.
  void advance(const DeltaChunk<T>& c, std::vector<T>& state) const {
    if (&state != &c.state) state = c.state;
    const std::vector<T> keys = scaled(c.until, keys_.k.data() + c.at * dk_, c.rows, dk_, dk_);
    gemm(true, false, dk_, dv_, c.rows, T{1}, keys.data(), dk_, c.change.data(), dv_,
         c.since[static_cast<size_t>(c.rows - 1)], state.data(), dv_);
  }

  // Goes back through a chunk. On entry dstate is the gradient of the state after it, on return of the state before it.
  // It adds to the gradients of queries and keys, and replaces v in u, and b and a, by theirs.
  void backward(const DeltaChunk<T>& c, const T* dy, KeyHead<T>& keys, std::vector<T>& dstate, T* u, T* b, T* a) const;

 private:
  int64_t stride() const { return keys_.net.values(); }
  int64_t channels() const { return keys_.net.channels(); }
  template <typename P>
  P* own_rows(const DeltaChunk<T>& c, P* y) const {
    return y + (keys_.first + c.at) * stride() + head_ * dv_;
  }
  T written(const DeltaChunk<T>& c, int64_t i) const { return written_[static_cast<size_t>(c.at + i)]; }
  static std::vector<T> scaled(const std::vector<T>& by, const T* x, int64_t rows, int64_t columns, int64_t stride) {
    std::vector<T> y(static_cast<size_t>(rows * columns));
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t e = 0; e < columns; ++e)
        y[static_cast<size_t>(i * columns + e)] = by[static_cast<size_t>(i)] * x[i * stride + e];
    return y;
  }

  void solve(DeltaChunk<T>& c) const {
    gemm(false, false, c.rows, dv_, dk_, T{1}, keys_.k.data() + c.at * dk_, dk_, c.state.data(), dv_, T{0},
         c.known.data(), dv_);
    for (int64_t i = 0; i < c.rows; ++i) {
      T* change = c.change.data() + i * dv_;
      const T *v = v_ + (c.at + i) * channels(), *known = c.known.data() + i * dv_;
      const T b = written(c, i), g = c.since[static_cast<size_t>(i)];
      for (int64_t e = 0; e < dv_; ++e) change[e] = b * (v[e] - g * known[e]);
      for (int64_t j = 0; j < i; ++j) {
        const T by = b * c.alike[static_cast<size_t>(i * kChunk + j)];
        const T* other = c.change.data() + j * dv_;
        for (int64_t e = 0; e < dv_; ++e) change[e] -= by * other[e];
      }
    }
  }

  // These are the steps of backward(). dtotal (rows) is the gradient of the sums of log_kept up to each row.
  std::vector<T> changes_back(const DeltaChunk<T>& c, const T* dy, const std::vector<T>& dstate, T* dtotal) const;
  void reads_back(const DeltaChunk<T>& c, const T* dy, KeyHead<T>& keys, T* dtotal) const;
  void system_back(const DeltaChunk<T>& c, const std::vector<T>& dright, KeyHead<T>& keys, T* dwritten,
                   T* dtotal) const;
  std::vector<T> right_back(const DeltaChunk<T>& c, const std::vector<T>& dright, T* u, T* dwritten, T* dtotal) const;
  void states_back(const DeltaChunk<T>& c, const T* dy, const std::vector<T>& dknown, KeyHead<T>& keys,
                   std::vector<T>& dstate, T* dtotal) const;

  const KeyHead<T>& keys_;
  int64_t head_, dk_, dv_;
  const T* v_;  // the head's columns of v, from the sequence's first row
  T rate_, bias_;
  std::vector<T> written_, log_kept_;  // (n)
};

// Returns the gradient of the right sides of the system, from those of the changes that y and the next state read.
template <typename T>
std::vector<T> ValueHead<T>::changes_back(const DeltaChunk<T>& c, const T* dy, const std::vector<T>& dstate,
                                          T* dtotal) const {
  std::vector<T> dchange(static_cast<size_t>(c.rows * dv_)), wanted(dchange.size());
  gemm(true, false, c.rows, dv_, c.rows, T{1}, c.reads.data(), kChunk, own_rows(c, dy), stride(), T{0}, dchange.data(),
       dv_);
  gemm(false, false, c.rows, dv_, dk_, T{1}, keys_.k.data() + c.at * dk_, dk_, dstate.data(), dv_, T{0}, wanted.data(),
       dv_);
  for (int64_t i = 0; i < c.rows; ++i) {
    const T until = c.until[static_cast<size_t>(i)];
    const T along = until * dot(wanted.data() + i * dv_, c.change.data() + i * dv_, dv_);
    dtotal[c.rows - 1] += along, dtotal[i] -= along;
    for (int64_t e = i * dv_; e < (i + 1) * dv_; ++e)
      dchange[static_cast<size_t>(e)] += until * wanted[static_cast<size_t>(e)];
  }
  for (int64_t i = c.rows; i-- > 0;)
    for (int64_t j = 0; j < i; ++j) {
      const T by = written(c, i) * c.alike[static_cast<size_t>(i * kChunk + j)];
      const T* from = dchange.data() + i * dv_;
      T* to = dchange.data() + j * dv_;
      for (int64_t e = 0; e < dv_; ++e) to[e] -= by * from[e];
    }
  return dchange;
}

// Goes back through sum_j D_ij (q_i k_j) c_j to q, k and D.
template <typename T>
void ValueHead<T>::reads_back(const DeltaChunk<T>& c, const T* dy, KeyHead<T>& keys, T* dtotal) const {
  Square<T> dreads(kChunk * kChunk);
  gemm(false, true, c.rows, c.rows, dv_, T{1}, own_rows(c, dy), stride(), c.change.data(), dv_, T{0}, dreads.data(),
       kChunk);
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t j = 0; j < c.rows; ++j) {
      const auto at = static_cast<size_t>(i * kChunk + j);
      const T pair = dreads[at] * c.reads[at];
      dtotal[i] += pair, dtotal[j] -= pair;
      dreads[at] *= c.decay[at];
    }
  const int64_t rows = c.at * dk_;
  gemm(false, false, c.rows, dk_, c.rows, T{1}, dreads.data(), kChunk, keys.k.data() + rows, dk_, T{1},
       keys.q_gradient.data() + rows, dk_);
  gemm(true, false, c.rows, dk_, c.rows, T{1}, dreads.data(), kChunk, keys.q.data() + rows, dk_, T{1},
       keys.k_gradient.data() + rows, dk_);
}

// Goes back through the matrix b_i D_ij (k_i k_j) of the system.
template <typename T>
void ValueHead<T>::system_back(const DeltaChunk<T>& c, const std::vector<T>& dright, KeyHead<T>& keys, T* dwritten,
                               T* dtotal) const {
  Square<T> dmatrix(kChunk * kChunk), both(kChunk * kChunk);
  gemm(false, true, c.rows, c.rows, dv_, T{-1}, dright.data(), dv_, c.change.data(), dv_, T{0}, dmatrix.data(), kChunk);
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t j = 0; j < i; ++j) {
      const auto at = static_cast<size_t>(i * kChunk + j);
      const T b = written(c, i), of_written = dmatrix[at] * c.alike[at], pair = b * of_written;
      dwritten[i] += of_written;
      dtotal[i] += pair, dtotal[j] -= pair;
      both[at] = both[static_cast<size_t>(j * kChunk + i)] = dmatrix[at] * b * c.decay[at];
    }
  const int64_t rows = c.at * dk_;
  gemm(false, false, c.rows, dk_, c.rows, T{1}, both.data(), kChunk, keys.k.data() + rows, dk_, T{1},
       keys.k_gradient.data() + rows, dk_);
}

// Goes back through the right sides b_i (v_i - g_i S^T k_i). Returns the gradient of S^T k_i.
template <typename T>
std::vector<T> ValueHead<T>::right_back(const DeltaChunk<T>& c, const std::vector<T>& dright, T* u, T* dwritten,
                                        T* dtotal) const {
  std::vector<T> dknown(dright.size());
  T* values = u + (v_ - u) + c.at * channels();
  for (int64_t i = 0; i < c.rows; ++i) {
    const T *g = dright.data() + i * dv_, *known = c.known.data() + i * dv_;
    T* v = values + i * channels();
    const T b = written(c, i), since = c.since[static_cast<size_t>(i)], of_known = since * dot(g, known, dv_);
    dwritten[i] += dot<T>(g, v, dv_) - of_known;
    dtotal[i] -= b * of_known;
    for (int64_t e = 0; e < dv_; ++e) {
      dknown[static_cast<size_t>(i * dv_ + e)] = -b * since * g[e];
      v[e] = b * g[e];
    }
  }
  return dknown;
}

// Goes back through g_i S^T q_i, S^T k_i and the state after the chunk.
template <typename T>
void ValueHead<T>::states_back(const DeltaChunk<T>& c, const T* dy, const std::vector<T>& dknown, KeyHead<T>& keys,
                               std::vector<T>& dstate, T* dtotal) const {
  const int64_t rows = c.at * dk_;
  const T* q = keys.q.data() + rows;
  T *dq = keys.q_gradient.data() + rows, *dk = keys.k_gradient.data() + rows;
  const T* own = own_rows(c, dy);
  const std::vector<T> dread = scaled(c.since, own, c.rows, dv_, stride());
  std::vector<T> read(dread.size());
  gemm(false, false, c.rows, dv_, dk_, T{1}, q, dk_, c.state.data(), dv_, T{0}, read.data(), dv_);
  for (int64_t i = 0; i < c.rows; ++i) dtotal[i] += dot(read.data() + i * dv_, dread.data() + i * dv_, dv_);
  gemm(false, true, c.rows, dk_, dv_, T{1}, dread.data(), dv_, c.state.data(), dv_, T{1}, dq, dk_);
  gemm(false, true, c.rows, dk_, dv_, T{1}, dknown.data(), dv_, c.state.data(), dv_, T{1}, dk, dk_);
  const std::vector<T> change = scaled(c.until, c.change.data(), c.rows, dv_, dv_);
  gemm(false, true, c.rows, dk_, dv_, T{1}, change.data(), dv_, dstate.data(), dv_, T{1}, dk, dk_);
  const T kept = c.since[static_cast<size_t>(c.rows - 1)];
  dtotal[c.rows - 1] += kept * dot(c.state.data(), dstate.data(), states());
  gemm(true, false, dk_, dv_, c.rows, T{1}, q, dk_, dread.data(), dv_, kept, dstate.data(), dv_);
  gemm(true, false, dk_, dv_, c.rows, T{1}, keys.k.data() + rows, dk_, dknown.data(), dv_, T{1}, dstate.data(), dv_);
}

template <typename T>
void ValueHead<T>::backward(const DeltaChunk<T>& c, const T* dy, KeyHead<T>& keys, std::vector<T>& dstate, T* u, T* b,
                            T* a) const {
  T dtotal[kChunk] = {}, dwritten[kChunk] = {};
  const std::vector<T> dright = changes_back(c, dy, dstate, dtotal);
  reads_back(c, dy, keys, dtotal);
  system_back(c, dright, keys, dwritten, dtotal);
  states_back(c, dy, right_back(c, dright, u, dwritten, dtotal), keys, dstate, dtotal);
  T sum = 0;
  for (int64_t i = c.rows; i-- > 0;) {
    sum += dtotal[i];  // log_kept of a row is in the sums of this row and of those behind it
    const int64_t row = (keys.first + c.at + i) * keys.net.value_heads + head_;
    const T share = written(c, i);
    b[row] = dwritten[i] * share * (T{1} - share);
    a[row] = sum * rate_ * sigmoid_of(a[row] + bias_);
  }
}

}  // namespace

// A job has all value heads of one key head in one sequence.
template <typename T>
void Host<T>::delta_rule(const Rows& rows, const DeltaNet& net, const DeltaRates<T>& rates, const T* u, const T* b,
                         const T* a, T* y) {
  const int64_t each = net.value_heads / net.key_heads;
  pool_->run(rows.sequences.count() * net.key_heads, [&](int64_t job, int) {
    const KeyHead<T> keys(net, rows.sequences, job, u);
    DeltaChunk<T> chunk;
    for (int64_t head = keys.head * each; head < (keys.head + 1) * each; ++head) {
      const ValueHead<T> values(keys, head, rates, u, b, a);
      chunk.state.assign(static_cast<size_t>(values.states()), T{0});
      for (int64_t number = 0; number < values.chunks(); ++number) {
        values.load(number, chunk);
        values.read(chunk, y);
        values.advance(chunk, chunk.state);
      }
    }
  });
}

template <typename T>
void Host<T>::delta_rule_backward(const Rows& rows, const DeltaNet& net, const DeltaRates<T>& rates, const T* dy, T* u,
                                  T* b, T* a) {
  const int64_t each = net.value_heads / net.key_heads;
  pool_->run(rows.sequences.count() * net.key_heads, [&](int64_t job, int) {
    KeyHead<T> keys(net, rows.sequences, job, u);
    keys.begin_gradients();
    std::vector<DeltaChunk<T>> chunks;
    for (int64_t head = keys.head * each; head < (keys.head + 1) * each; ++head) {
      const ValueHead<T> values(keys, head, rates, u, b, a);
      std::vector<T> state(static_cast<size_t>(values.states()), T{0});
      chunks.resize(static_cast<size_t>(values.chunks()));
      for (int64_t number = 0; number < values.chunks(); ++number) {
        DeltaChunk<T>& chunk = chunks[static_cast<size_t>(number)];
        chunk.state = state;
        values.load(number, chunk);
        values.advance(chunk, state);
      }
      std::fill(state.begin(), state.end(), T{0});  // from here on it is the gradient of the state
      for (size_t number = chunks.size(); number-- > 0;) values.backward(chunks[number], dy, keys, state, u, b, a);
    }
    keys.end_gradients(u);
  });
}

template void Host<float>::delta_rule(const Rows&, const DeltaNet&, const DeltaRates<float>&, const float*,
                                      const float*, const float*, float*);
template void Host<double>::delta_rule(const Rows&, const DeltaNet&, const DeltaRates<double>&, const double*,
                                       const double*, const double*, double*);
template void Host<float>::delta_rule_backward(const Rows&, const DeltaNet&, const DeltaRates<float>&, const float*,
                                               float*, float*, float*);
template void Host<double>::delta_rule_backward(const Rows&, const DeltaNet&, const DeltaRates<double>&, const double*,
                                                double*, double*, double*);

}  // namespace fidelio::train
