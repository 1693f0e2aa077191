// Speed of the low-bit products, and of cuBLAS in BF16 beside them: CUDA-graph replay over rotating layers larger than L2.
//   lowbit_bench test            conformance against doubles and row invariance
//   lowbit_bench speed N K [M,M,...] [formats]
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_error.cuh"
#include "kernels/cuda/lowbit.h"

using namespace fidelio::cuda;

namespace {

template <typename T>
T* device(size_t n) {
  void* p = nullptr;
  cuda_check(cudaMalloc(&p, n * sizeof(T) + 256), "allocating");
  return static_cast<T*>(p);
}
template <typename T>
T* upload(const std::vector<T>& v) {
  T* p = device<T>(v.size());
  cuda_check(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice), "uploading");
  return p;
}

struct Host {  // canonical tensors with random content
  LowbitShape shape;
  int widths[3] = {}, planes = 0;
  std::vector<uint8_t> plane[3], zero, byte_scale;
  std::vector<__half> half_scale;
  std::vector<float> row_factor, bias;
  std::vector<int8_t> grid;
  int64_t groups;
  bool symmetric;

  Host(LowbitShape s, bool symmetric, int seed) : shape(s), symmetric(symmetric) {
    static const int W[9][3] = {{}, {}, {2}, {2, 1}, {4}, {4, 1}, {4, 2}, {4, 2, 1}, {4, 4}};
    std::mt19937 rng(seed);
    for (int i = 0; i < 3 && W[s.bits][i]; ++i) {
      widths[planes] = W[s.bits][i];
      plane[planes].resize(s.out * ((s.in * widths[planes] + 7) / 8));
      for (auto& b : plane[planes]) b = rng();
      ++planes;
    }
    groups = (s.in + s.group - 1) / s.group;
    std::normal_distribution<float> n;
    for (int64_t i = 0; i < s.out * groups; ++i) {
      half_scale.push_back(__float2half(0.01f * (0.5f + std::fabs(n(rng)))));
      byte_scale.push_back(rng());
    }
    zero.resize(s.out * ((groups * s.bits + 7) / 8));
    for (auto& b : zero) b = rng();
    for (int64_t i = 0; i < s.out; ++i) row_factor.push_back(0.001f * (1 + std::fabs(n(rng)))), bias.push_back(n(rng));
    for (int i = 0; i < 16; ++i) grid.push_back(rng());
  }
  int code(int64_t r, int64_t c) const {
    int q = 0;
    for (int i = 0; i < planes; ++i) {
      const int w = widths[i];
      q = q << w | (plane[i][r * ((shape.in * w + 7) / 8) + c * w / 8] >> (c * w % 8) & ((1 << w) - 1));
    }
    return q;
  }
  double value(int64_t r, int64_t c) const {
    const int64_t g = c / shape.group;
    if (shape.kind == CodeKind::grid) return double(row_factor[r]) * int8_t(byte_scale[r * groups + g]) * grid[code(r, c)];
    int z = 1 << (shape.bits - 1);
    if (!symmetric) {
      z = 0;
      for (int j = 0; j < shape.bits; ++j) {
        const int64_t bit = g * shape.bits + j;
        z |= (zero[r * ((groups * shape.bits + 7) / 8) + bit / 8] >> (bit % 8) & 1) << j;
      }
    }
    const double s = shape.byte_scale ? double(row_factor[r]) * byte_scale[r * groups + g] : double(__half2float(half_scale[r * groups + g]));
    return s * (code(r, c) - z);
  }
  LowbitWeight pack(Stream stream, bool with_bias) const {
    LowbitWeight w;
    w.shape = shape;
    CanonicalWeight from;
    for (int i = 0; i < planes; ++i) from.planes[i] = upload(plane[i]);
    const bool bytes = shape.byte_scale || shape.kind == CodeKind::grid;
    from.scale = bytes ? static_cast<const void*>(upload(byte_scale)) : upload(half_scale);
    from.zero = symmetric ? nullptr : upload(zero);
    from.groups = groups;
    from.group_columns = shape.group;
    uint8_t* blocks = device<uint8_t>(shape.bytes());
    pack_lowbit(stream, shape, from, blocks);
    w.blocks = blocks;
    if (bytes) w.row_factor = upload(row_factor);
    if (with_bias) w.bias = upload(bias);
    if (shape.kind == CodeKind::grid) w.grid = upload(grid);
    cuda_check(cudaDeviceSynchronize(), "packing");
    for (int i = 0; i < planes; ++i) cudaFree(const_cast<uint8_t*>(from.planes[i]));
    cudaFree(const_cast<void*>(from.scale));
    cudaFree(const_cast<uint8_t*>(from.zero));
    return w;
  }
};

LowbitInput prepared(Stream stream, const std::vector<float>& x, int rows, int64_t columns) {
  LowbitInput in;
  const int64_t blocks = (columns + kBlockColumns - 1) / kBlockColumns;
  uint8_t* p = device<uint8_t>(blocks * input_block_bytes(rows));
  cuda_check(cudaMemset(p, 0xff, blocks * input_block_bytes(rows)), "poisoning");
  float* scale = device<float>(rows);
  float* dx = upload(x);
  prepare_input(stream, dx, rows, columns, p, scale);
  cuda_check(cudaDeviceSynchronize(), "preparing");
  cudaFree(dx);
  in.blocks = p;
  in.row_scale = scale;
  in.rows = rows;
  return in;
}

int test(Stream stream) {
  int failures = 0, cases = 0;
  double worst = 0;
  const int64_t out = 300, in = 992;
  std::mt19937 rng(7);
  std::normal_distribution<float> normal;
  const int kRows = 32;
  std::vector<float> x(kRows * in);
  for (int m = 0; m < kRows; ++m)
    for (int64_t k = 0; k < in; ++k) x[m * in + k] = normal(rng) * std::exp2(m - 12.0f);
  std::vector<double> rounded(x.size());
  for (int m = 0; m < kRows; ++m) {
    float amax = 0;
    for (int64_t k = 0; k < in; ++k) amax = std::max(amax, std::fabs(x[m * in + k]));
    int e;
    std::frexp(amax, &e);
    for (int64_t k = 0; k < in; ++k) rounded[m * in + k] = std::ldexp(__half2float(__float2half(std::ldexp(x[m * in + k], 15 - e))), e - 15);
  }
  std::vector<LowbitInput> inputs;
  const int row_counts[] = {1, 3, 8, 13, 16, 17, 32};
  for (int M : row_counts) inputs.push_back(prepared(stream, std::vector<float>(x.begin(), x.begin() + M * in), M, in));
  for (int kind = 0; kind < 2; ++kind)
    for (int bits = 2; bits <= (kind ? 4 : 8); ++bits)
      for (int group : {32, 64, 128})
        for (int variant = 0; variant < (kind ? 1 : 4); ++variant) {
          LowbitShape s{kind ? CodeKind::grid : CodeKind::integer, bits, group, (variant & 1) != 0, out, in};
          Host host(s, variant & 2, bits * 100 + group + variant);
          LowbitWeight w = host.pack(stream, variant & 1);
          std::vector<double> ref(kRows * out);
          for (int64_t r = 0; r < out; ++r) {
            std::vector<double> row(in);
            for (int64_t k = 0; k < in; ++k) row[k] = host.value(r, k);
            for (int m = 0; m < kRows; ++m) {
              double sum = (variant & 1) ? host.bias[r] : 0;
              for (int64_t k = 0; k < in; ++k) sum += row[k] * rounded[m * in + k];
              ref[m * out + r] = sum;
            }
          }
          std::vector<float> widest;
          for (int which = 6; which >= 0; --which)
            for (int cluster : {1, 2, 4, 8})
              for (int overlap : {0, 1}) {
                const int M = row_counts[which];
                std::vector<float> y(M * out, NAN);
                float* dy = upload(y);
                LowbitOutput o{&w, dy};
                LowbitLaunch how;
                how.cluster = cluster;
                how.overlap = overlap;
                lowbit_linear(stream, inputs[which], {&o, 1}, false, how);
                cuda_check(cudaStreamSynchronize(stream), "running");
                cuda_check(cudaMemcpy(y.data(), dy, y.size() * 4, cudaMemcpyDeviceToHost), "downloading");
                cudaFree(dy);
                ++cases;
                if (widest.empty()) {
                  widest = y;
                  for (int m = 0; m < M; ++m) {
                    double e = 0, n = 0;
                    for (int64_t r = 0; r < out; ++r) e += std::pow(y[m * out + r] - ref[m * out + r], 2), n += std::pow(ref[m * out + r], 2);
                    const double relative = std::sqrt(e / n);
                    if (!(relative < 4e-6)) ++failures, printf("FAIL kind %d bits %d group %d variant %d row %d: relative error %g\n", kind, bits, group, variant, m, relative);
                    worst = std::max(worst, relative);
                  }
                } else if (std::memcmp(y.data(), widest.data(), y.size() * 4) != 0) {
                  ++failures;
                  printf("FAIL kind %d bits %d group %d variant %d M %d cluster %d overlap %d: differs from the batch of 32\n", kind, bits, group, variant, M, cluster, overlap);
                }
              }
          cudaFree(const_cast<uint8_t*>(w.blocks));
        }
  printf("lowbit test: %d cases, %d failures, worst relative error %.2e\n", cases, failures, worst);
  return failures;
}

// Microseconds a call: `calls` different calls captured in a graph, replayed; the median of replays.
double graph_time(Stream stream, int calls, const std::function<void(int)>& call) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing");
  for (int i = 0; i < calls; ++i) call(i);
  cuda_check(cudaStreamEndCapture(stream, &graph), "capturing");
  cuda_check(cudaGraphInstantiate(&exec, graph, 0), "instantiating");
  cudaEvent_t a, b;
  cudaEventCreate(&a);
  cudaEventCreate(&b);
  std::vector<float> times;
  for (int i = 0; i < 23; ++i) {
    cudaEventRecord(a, stream);
    cuda_check(cudaGraphLaunch(exec, stream), "replaying");
    cudaEventRecord(b, stream);
    cuda_check(cudaEventSynchronize(b), "replaying");
    float ms;
    cudaEventElapsedTime(&ms, a, b);
    if (i >= 3) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  return times[times.size() / 2] * 1e3 / calls;
}

void copy_rate(Stream stream) {
  const size_t n = size_t{2} << 30;
  uint8_t *a = device<uint8_t>(n), *b = device<uint8_t>(n);
  cudaMemset(a, 1, n);
  const double us = graph_time(stream, 4, [&](int) { cudaMemcpyAsync(b, a, n, cudaMemcpyDeviceToDevice, stream); });
  printf("copy %.2f TB/s\n", 2.0 * n / us / 1e6);
  cudaFree(a);
  cudaFree(b);
}

void cublas(Stream stream, int64_t N, int64_t K, const std::vector<int>& rows) {
  cublasHandle_t handle;
  cublasCreate(&handle);
  cublasSetStream(handle, stream);
  void* workspace = device<uint8_t>(64 << 20);
  cublasSetWorkspace(handle, workspace, 64 << 20);
  const int layers = std::max<int>(2, std::min<int>(64, (256 << 20) / (N * K * 2) + 2));
  std::vector<float> random(1 << 16);
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  std::vector<__nv_bfloat16> host(N * K);
  std::vector<__nv_bfloat16> base(1 << 20);
  for (auto& v : base) v = __float2bfloat16(normal(rng) * 0.02f);
  for (size_t i = 0; i < host.size(); ++i) host[i] = base[(i * 7 + i / base.size()) % base.size()];
  std::vector<__nv_bfloat16*> w;
  for (int i = 0; i < layers; ++i) w.push_back(upload(host));
  const float one = 1, zero = 0;
  for (int M : rows) {
    std::vector<__nv_bfloat16> hx(M * K);
    for (auto& v : hx) v = base[rng() % base.size()];
    __nv_bfloat16* x = upload(hx);
    __nv_bfloat16* y = device<__nv_bfloat16>(M * N);
    const int calls = M > 512 ? layers : layers * 3;
    const double us = graph_time(stream, calls, [&](int i) {
      cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, N, M, K, &one, w[i % layers], CUDA_R_16BF, K, x, CUDA_R_16BF, K, &zero, y, CUDA_R_16BF, N,
                   CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    });
    printf("%lldx%lld cublas-bf16 M=%d %.2f us %.2f TB/s %.0f TFLOP/s\n", (long long)N, (long long)K, M, us, N * K * 2.0 / us / 1e6, 2e-6 * M * N * K / us);
    cudaFree(x);
    cudaFree(y);
  }
  for (auto* p : w) cudaFree(p);
  cudaFree(workspace);
  cublasDestroy(handle);
}

std::vector<int> numbers(const char* text) {
  std::vector<int> out;
  for (const char* p = text; *p;) {
    out.push_back(std::atoi(p));
    while (*p && *p != ',') ++p;
    if (*p) ++p;
  }
  return out;
}

void speed(Stream stream, int64_t N, int64_t K, const std::vector<int>& rows, LowbitShape shape, const char* name, const std::vector<LowbitLaunch>& hows) {
  shape.out = N;
  shape.in = K;
  const int layers = std::max<int>(3, std::min<int>(96, (320 << 20) / shape.bytes() + 1));
  Host host(shape, false, 5);
  std::vector<LowbitWeight> weights{host.pack(stream, false)};
  for (int i = 1; i < layers; ++i) {
    LowbitWeight w = weights[0];
    uint8_t* copy = device<uint8_t>(shape.bytes());
    cudaMemcpy(copy, w.blocks, shape.bytes(), cudaMemcpyDeviceToDevice);
    w.blocks = copy;
    weights.push_back(w);
  }
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  for (int M : rows) {
    std::vector<float> hx(M * K);
    for (auto& v : hx) v = normal(rng);
    LowbitInput x = prepared(stream, hx, M, K);
    float* y = device<float>(M * N);
    printf("%lldx%lld %-10s M=%-2d", (long long)N, (long long)K, name, M);
    for (const LowbitLaunch& how : hows) {
      const double us = graph_time(stream, layers * 4, [&](int i) {
        LowbitOutput o{&weights[i % layers], y};
        lowbit_linear(stream, x, {&o, 1}, false, how);
      });
      printf(" | c%d s%d o%d v%d %6.2f us %.2f TB/s", how.cluster, how.stages, how.overlap, how.variant, us, shape.bytes() / us / 1e6);
    }
    printf("\n");
    cudaFree(y);
  }
  for (auto& w : weights) cudaFree(const_cast<uint8_t*>(w.blocks));
}

}  // namespace

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  cudaStream_t stream;
  cuda_check(cudaStreamCreate(&stream), "starting");
  const std::string verb = argc > 1 ? argv[1] : "test";
  if (verb == "test") return test(stream) != 0;
  if (verb == "copy") return copy_rate(stream), 0;
  const int64_t N = std::atoll(argv[2]), K = std::atoll(argv[3]);
  if (verb == "cublas") return cublas(stream, N, K, numbers(argv[4])), 0;
  // speed N K rows bits,... hows: "c.s.o,c.s.o"
  std::vector<LowbitLaunch> hows;
  for (const char* p = argc > 6 ? argv[6] : "0.0.1.0"; *p;) {
    LowbitLaunch how;
    int overlap = 1, used = 0;
    sscanf(p, "%d.%d.%d.%d%n", &how.cluster, &how.stages, &overlap, &how.variant, &used);
    how.overlap = overlap;
    hows.push_back(how);
    p += used;
    if (*p == ',') ++p;
  }
  for (int bits : numbers(argv[5])) {  // 4 = int4g128z, 14 = lut4g64, 104 = int4g64zs8
    LowbitShape s;
    s.bits = bits % 10;
    if (bits / 10 == 1) s.kind = CodeKind::grid, s.group = 64;
    if (bits / 100 == 1) s.byte_scale = true, s.group = 64;
    char name[32];
    snprintf(name, sizeof name, "%s%dg%d%s", s.kind == CodeKind::grid ? "lut" : "int", s.bits, s.group, s.kind == CodeKind::grid ? "" : s.byte_scale ? "zs8" : "z");
    speed(stream, N, K, numbers(argv[4]), s, name, hows);
  }
  return 0;
}
