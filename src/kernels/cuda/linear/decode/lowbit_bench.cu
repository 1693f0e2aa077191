// This program measures the speed of low-bit products, and of cuBLAS in BF16 for comparison, by replaying CUDA graphs
// over rotating layers that are larger than L2.
//   lowbit_bench copy                            the device's copy bandwidth
//   lowbit_bench cublas N K M,M,...              BF16 in and out
//   lowbit_bench speed N K M,M,... FORMAT,...    4 = int4g128z, 104 = int4g64zs8, 14 = lut4g64, and so on
//   lowbit_bench prefill N K M,M,... FORMAT,...  many rows: the kernel of lowbit_many.h; dequantised once a call, then
//                                                cuBLASLt in FP16; cuBLAS in BF16; replayed in turn
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/device/cuda_error.cuh"
#include "kernels/cuda/linear/dense/gemm.h"
#include "kernels/cuda/linear/prefill/lowbit_many.h"
#include "kernels/cuda/rows/ops.h"

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
  LowbitWeight pack(Stream stream, bool with_bias) const {
    LowbitWeight w;
    w.shape = shape;
    w.symmetric = symmetric;
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
  const int64_t bytes = (rows + kMaxRows - 1) / kMaxRows * input_bytes(rows, blocks);  // bytes of all chunks
  uint8_t* p = device<uint8_t>(bytes);
  cuda_check(cudaMemset(p, 0xff, bytes), "poisoning");
  float* dx = upload(x);
  prepare_input(stream, dx, rows, columns, {p, {}});
  cuda_check(cudaDeviceSynchronize(), "preparing");
  cudaFree(dx);
  in.blocks = p;
  in.rows = rows;
  return in;
}

// Returns the median microseconds of one call of each function. For each, `calls` different calls are captured in a
// graph. The graphs are replayed in turn, so that all run at the same clocks.
std::vector<double> graph_times(Stream stream, int calls, const std::vector<std::function<void(int)>>& each) {
  std::vector<cudaGraphExec_t> graphs;
  for (const auto& call : each) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing");
    for (int i = 0; i < calls; ++i) call(i);
    cuda_check(cudaStreamEndCapture(stream, &graph), "capturing");
    cuda_check(cudaGraphInstantiate(&exec, graph, 0), "instantiating");
    cudaGraphDestroy(graph);
    graphs.push_back(exec);
  }
  cudaEvent_t a, b;
  cudaEventCreate(&a);
  cudaEventCreate(&b);
  std::vector<std::vector<double>> times(each.size());
  for (int i = 0; i < 23; ++i)
    for (size_t which = 0; which < each.size(); ++which) {
      cudaEventRecord(a, stream);
      cuda_check(cudaGraphLaunch(graphs[which], stream), "replaying");
      cudaEventRecord(b, stream);
      cuda_check(cudaEventSynchronize(b), "replaying");
      float ms;
      cudaEventElapsedTime(&ms, a, b);
      if (i >= 3) times[which].push_back(ms * 1e3 / calls);
    }
  std::vector<double> medians;
  for (auto& t : times) {
    std::sort(t.begin(), t.end());
    medians.push_back(t[t.size() / 2]);
  }
  for (cudaGraphExec_t exec : graphs) cudaGraphExecDestroy(exec);
  return medians;
}
double graph_time(Stream stream, int calls, const std::function<void(int)>& call) {
  return graph_times(stream, calls, {call})[0];
}

__global__ void copy_kernel(const uint4* from, uint4* to, size_t n) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n; i += size_t{gridDim.x} * blockDim.x)
    to[i] = from[i];
}

void copy_rate(Stream stream) {
  const size_t n = size_t{2} << 30;
  uint8_t *a = device<uint8_t>(n), *b = device<uint8_t>(n);
  cudaMemset(a, 1, n);
  const double us = graph_time(stream, 4, [&](int) {
    copy_kernel<<<1056, 512, 0, stream>>>(reinterpret_cast<const uint4*>(a), reinterpret_cast<uint4*>(b), n / 16);
  });
  // The copy is made by multiprocessors; cudaMemcpy inside a graph takes a copy engine, at 2.8.
  printf("copy %.2f TB/s\n", 2.0 * n / us / 1e6);
  cudaFree(a);
  cudaFree(b);
}

// CublasBf16 multiplies with BF16 in and out by cuBLAS, with rotating weights.
struct CublasBf16 {
  cublasHandle_t handle;
  void* workspace = device<uint8_t>(64 << 20);
  int64_t N, K;
  std::vector<__nv_bfloat16> base = std::vector<__nv_bfloat16>(1 << 20);
  std::vector<__nv_bfloat16*> w;
  __nv_bfloat16 *x = nullptr, *y = nullptr;
  int M = 0;

  CublasBf16(Stream stream, int64_t N, int64_t K) : N(N), K(K) {
    cublasCreate(&handle);
    cublasSetStream(handle, stream);
    cublasSetWorkspace(handle, workspace, 64 << 20);
    std::mt19937 rng(3);
    std::normal_distribution<float> normal;
    std::vector<__nv_bfloat16> host(N * K);
    for (auto& v : base) v = __float2bfloat16(normal(rng) * 0.02f);
    for (size_t i = 0; i < host.size(); ++i) host[i] = base[(i * 7 + i / base.size()) % base.size()];
    for (int i = 0; i < layers(); ++i) w.push_back(upload(host));
  }
  ~CublasBf16() {
    for (auto* p : w) cudaFree(p);
    cudaFree(x);
    cudaFree(y);
    cudaFree(workspace);
    cublasDestroy(handle);
  }
  int layers() const { return std::max<int>(2, std::min<int>(64, (256 << 20) / (N * K * 2) + 2)); }
  void rows(int count) {
    M = count;
    std::mt19937 rng(3);
    std::vector<__nv_bfloat16> host(M * K);
    for (auto& v : host) v = base[rng() % base.size()];
    cudaFree(x);
    cudaFree(y);
    x = upload(host);
    y = device<__nv_bfloat16>(M * N);
  }
  void operator()(int i) const {
    const float one = 1, zero = 0;
    cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, N, M, K, &one, w[i % w.size()], CUDA_R_16BF, K, x, CUDA_R_16BF, K,
                 &zero, y, CUDA_R_16BF, N, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  }
};

void cublas(Stream stream, int64_t N, int64_t K, const std::vector<int>& rows) {
  CublasBf16 product(stream, N, K);
  for (int M : rows) {
    product.rows(M);
    const double us = graph_time(stream, product.layers() * (M > 512 ? 1 : 3), [&](int i) { product(i); });
    printf("%lldx%lld cublas-bf16 M=%d %.2f us %.2f TB/s %.0f TFLOP/s\n", (long long)N, (long long)K, M, us,
           N * K * 2.0 / us / 1e6, 2e-6 * M * N * K / us);
  }
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

struct Rotating {
  LowbitShape shape;
  std::vector<LowbitWeight> layers;
  Rotating(Stream stream, LowbitShape s, int64_t N, int64_t K) : shape(s) {
    shape.out = N;
    shape.in = K;
    const int count = std::max<int>(3, std::min<int>(96, (320 << 20) / shape.bytes() + 1));
    layers.push_back(Host(shape, false, 5).pack(stream, false));
    for (int i = 1; i < count; ++i) {
      LowbitWeight w = layers[0];
      uint8_t* copy = device<uint8_t>(shape.bytes());
      cudaMemcpy(copy, w.blocks, shape.bytes(), cudaMemcpyDeviceToDevice);
      w.blocks = copy;
      layers.push_back(w);
    }
  }
  ~Rotating() {
    for (auto& w : layers) cudaFree(const_cast<uint8_t*>(w.blocks));
  }
};

std::vector<float> normals(size_t n) {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (auto& x : v) x = normal(rng);
  return v;
}

void speed(Stream stream, const Rotating& w, const char* name, const std::vector<int>& rows) {
  for (int M : rows) {
    LowbitInput x = prepared(stream, normals(M * w.shape.in), M, w.shape.in);
    float* y = device<float>(M * w.shape.out);
    const int layers = static_cast<int>(w.layers.size());
    const double us = graph_time(stream, layers * 4, [&](int i) {
      const LowbitOutput o{&w.layers[i % layers], y};
      lowbit_linear(stream, x, {&o, 1}, false, {});
    });
    printf("%lldx%lld %-10s M=%-2d %6.2f us %.2f TB/s\n", (long long)w.shape.out, (long long)w.shape.in, name, M, us,
           w.shape.bytes() / us / 1e6);
    cudaFree(y);
    cudaFree(const_cast<uint8_t*>(x.blocks));
  }
}

void prefill(Stream stream, const Rotating& w, const char* name, const std::vector<int>& rows) {
  const int64_t N = w.shape.out, K = w.shape.in;
  Gemm gemm;
  CublasBf16 product(stream, N, K);
  uint16_t* halves = device<uint16_t>(N * K);
  dequantise(stream, w.layers[0], 1, halves);
  for (int M : rows) {
    product.rows(M);
    float* x = upload(normals(M * K));
    float *y = device<float>(M * N), *factor = device<float>(M);
    uint16_t* x16 = device<uint16_t>(M * K);
    const ManyRows many{device<uint8_t>(many_bytes(M, K)), device<float>(many_rows(M))};
    prepare_halves(stream, x, M, K, x16, factor);
    prepare_many(stream, x, M, K, many);
    const auto layer = [&](int i) -> const LowbitWeight& { return w.layers[i % w.layers.size()]; };
    std::vector<std::function<void(int)>> parts = {[&](int i) { product(i); },
                                                   [&](int) { prepare_many(stream, x, M, K, many); },
                                                   [&](int i) { dequantise(stream, layer(i), 1, halves); },
                                                   [&](int) { gemm.run(stream, halves, x16, 1, M, N, K, y, false); }};
    const bool kernel = takes_many(w.layers[0], 1);
    if (kernel)
      parts.push_back([&](int i) {
        const LowbitOutput o{&layer(i), y};
        lowbit_many(stream, many, M, {&o, 1}, false);
      });
    ManyRows whole = many;  // the integers of A8, if it has them
    whole.halves = device<uint8_t>(many_bytes(M, K));
    whole.rounding = rounding_of(128, 127);
    whole.integers = takes_integers(w.layers[0], whole.rounding);
    if (kernel && whole.integers) {
      prepare_many(stream, x, M, K, whole);
      parts.push_back([&](int i) {
        const LowbitOutput o{&layer(i), y};
        lowbit_many(stream, whole, M, {&o, 1}, false);
      });
    }
    const std::vector<double> us = graph_times(stream, 6, parts);
    printf("%lldx%lld %-10s M=%d us: cuBLAS BF16 %.1f", (long long)N, (long long)K, name, M, us[0]);
    if (kernel) printf(", codes %.1f (%.0f TFLOP/s, %.3f of cuBLAS)", us[4], 2e-6 * M * N * K / us[4], us[0] / us[4]);
    if (us.size() > 5) printf(", A8 as integers %.1f (%.0f TOP/s)", us[5], 2e-6 * M * N * K / us[5]);
    printf(", round %.1f; dequantise %.1f + FP16 cuBLASLt %.1f\n", us[1], us[2], us[3]);
    for (void* p :
         {(void*)x, (void*)y, (void*)factor, (void*)x16, (void*)many.halves, (void*)whole.halves, (void*)many.factor})
      cudaFree(p);
  }
  cudaFree(halves);
}

}  // namespace

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  cudaStream_t stream;
  cuda_check(cudaStreamCreate(&stream), "starting");
  const std::string verb = argc > 1 ? argv[1] : "";
  if (verb == "copy") return copy_rate(stream), 0;
  if (argc < (verb == "cublas" ? 5 : 6)) return printf("usage: see the head of lowbit_bench.cu\n"), 2;
  const int64_t N = std::atoll(argv[2]), K = std::atoll(argv[3]);
  const std::vector<int> rows = numbers(argv[4]);
  if (verb == "cublas") return cublas(stream, N, K, rows), 0;
  for (int code : numbers(argv[5])) {
    LowbitShape s;
    s.bits = code % 10;
    if (s.bits < 2 || s.bits > 8) return printf("%d names no format: see the head of lowbit_bench.cu\n", code), 2;
    if (code / 10 == 1) s.kind = CodeKind::grid, s.group = 64;
    if (code / 100 == 1) s.byte_scale = true, s.group = 64;
    char name[32];
    snprintf(name, sizeof name, "%s%dg%d%s", s.kind == CodeKind::grid ? "lut" : "int", s.bits, s.group,
             s.kind == CodeKind::grid ? ""
             : s.byte_scale           ? "zs8"
                                      : "z");
    const Rotating w(stream, s, N, K);
    if (verb == "prefill")
      prefill(stream, w, name, rows);
    else
      speed(stream, w, name, rows);
  }
  return 0;
}
