// Decoding of a llama-3-8b-shaped model on a GPU with random weights, by the very ops that serve (forward.h over Cuda):
//   decode_cuda_bench FORMAT [batch,batch,...] [context,context,...] [head's format, else bf16] [cache, else f16]
//   decode_cuda_bench FORMAT prefill [tokens,tokens,...]
// Prints milliseconds a step, bytes of weights and cache read, and the share of the copy bandwidth given as the
// roofline.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "core/rng.h"
#include "kernels/cuda/backend/cuda.h"
#include "runtime/forward.h"

using namespace fidelio;

namespace {

constexpr int kD = 4096, kF = 14336, kH = 32, kHk = 8, kE = 128, kV = 128256, kL = 32;
constexpr double kCopyBandwidth = 4.25e12;  // measured on an H200 (docs/lab/gpu.md)

LinearWeight random_weight(const FormatSpec& spec, int64_t out, int64_t in) {
  LinearWeight w =
      spec.is_dense() ? make_dense(OwnedTensor::allocate(DType::bf16, {out, in})) : allocate_weight(spec, out, in);
  Rng rng(static_cast<uint64_t>(out * in));
  for (const StoredTensor& t : stored_tensors(w)) {
    if (t.tensor.dtype == DType::f16)
      for (f16& v : t.tensor.as<f16>()) v = to_f16(0.002f);
    else if (t.tensor.dtype == DType::f32)
      for (float& v : t.tensor.as<float>()) v = 0.0001f;
    else if (t.tensor.dtype == DType::bf16)
      for (bf16& v : t.tensor.as<bf16>()) v = {static_cast<uint16_t>((rng.next() & 0x807f) | 0x3c80)};  // about +-.016
    else
      for (int64_t i = 0; i < t.tensor.bytes(); ++i) t.tensor.data[i] = static_cast<std::byte>(rng.next());
  }
  return w;
}

void measure(Cuda& b, Model<Cuda>& model, const std::string& format, int64_t weight_bytes,
             const std::vector<int>& batches, int context, KvFormat kv);
void prefill(Cuda& b, Model<Cuda>& model, const std::string& format, int tokens);

// No batches: prefills of `contexts` tokens.
int run(const std::string& format, const std::vector<int>& batches, const std::vector<int>& contexts,
        const std::string& head, KvFormat kv) {
  Cuda b({});
  const FormatSpec spec = parse_format(format);
  const auto shared = [&](const LinearWeight& w) { return std::make_shared<const Cuda::Linear>(b.pack(w)); };
  Model<Cuda> model;
  model.attention = {std::vector<LayerAttention>(kL), {{std::vector<float>(kE / 2, 0.01f), 1.0f}}, kH, kHk, kE, 1e-5f};
  model.scalars.eps = 1e-5f;
  const LinearWeight square = random_weight(spec, kD, kD), narrow = random_weight(spec, kHk * kE, kD),
                     wide = random_weight(spec, kF, kD), deep = random_weight(spec, kD, kF);
  const std::vector<float> ones(kD, 1.0f);
  int64_t weight_bytes = 0;
  for (int i = 0; i < kL; ++i) {
    Layer<Cuda> l{shared(square),
                  shared(narrow),
                  shared(narrow),
                  shared(square),
                  shared(wide),
                  shared(wide),
                  shared(deep),
                  b.allocate(1, kD),
                  b.allocate(1, kD),
                  {},
                  {},
                  {},
                  {}};
    b.upload(ones, l.attn_norm);
    b.upload(ones, l.mlp_norm);
    for (const auto* w : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) weight_bytes += (*w)->bytes();
    model.layers.push_back(std::move(l));
  }
  model.embedding = model.head = shared(random_weight(parse_format(head), kV, kD));
  weight_bytes += model.head->bytes();
  model.final_norm = b.allocate(1, kD);
  b.upload(ones, model.final_norm);
  const std::string name = format + ", head " + head + ", cache " + std::string(name_of(kv));
  for (int context : contexts)
    batches.empty() ? prefill(b, model, name, context) : measure(b, model, name, weight_bytes, batches, context, kv);
  return 0;
}

// One sequence from its start; logits of its last token reach the host.
void prefill(Cuda& b, Model<Cuda>& model, const std::string& format, int tokens) {
  const int pages = (tokens + kPageTokens - 1) / kPageTokens;
  Cuda::KvCache cache = b.allocate_cache(model.attention, pages, KvFormat::f16);
  Workspace<Cuda> w{b.allocate(tokens, kD),
                    b.allocate(tokens, kH * kE),
                    b.allocate(tokens, kHk * kE),
                    b.allocate(tokens, kHk * kE),
                    b.allocate(tokens, kF),
                    b.allocate(tokens, kF),
                    {},
                    b.allocate(1, kV)};
  b.reserve(tokens, kF, tokens);
  Batch batch;
  std::vector<int32_t> ids(static_cast<size_t>(tokens)), own(static_cast<size_t>(pages));
  std::iota(ids.begin(), ids.end(), 0);
  std::iota(own.begin(), own.end(), 0);
  batch.append(ids, 0, own, 1, RowKind::prompt);
  std::vector<float> logits(static_cast<size_t>(kV));
  std::vector<double> times;
  for (int i = 0; i < 7; ++i) {
    const auto start = std::chrono::steady_clock::now();
    b.begin(batch, Activations::a16, model.attention);
    b.embed(*model.embedding, w.x, 1);
    for (int layer = 0; layer < kL; ++layer) forward_layer(b, model, layer, w, cache);
    const std::pair<const Cuda::Linear*, Cuda::Matrix*> head[] = {{model.head.get(), &w.logits}};
    b.linear(b.norm_logit_rows(w.x, model.final_norm, 1e-5f, 0, 1), head);
    b.download(w.logits, 0, 1, logits);
    if (i >= 2) times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  const double seconds = times[times.size() / 2];
  std::printf("llama-3-8b %-10s prefill of %d tokens %.1f ms, %.0f tokens/s\n", format.c_str(), tokens, seconds * 1e3,
              tokens / seconds);
}

void measure(Cuda& b, Model<Cuda>& model, const std::string& format, int64_t weight_bytes,
             const std::vector<int>& batches, int context, KvFormat kv) {
  const int most = *std::max_element(batches.begin(), batches.end()), pages = context / kPageTokens + 1;
  Cuda::KvCache cache = b.allocate_cache(model.attention, int64_t{most} * pages, kv);
  Workspace<Cuda> w{b.allocate(most, kD),
                    b.allocate(most, kH * kE),
                    b.allocate(most, kHk * kE),
                    b.allocate(most, kHk * kE),
                    b.allocate(most, kF),
                    b.allocate(most, kF),
                    {},
                    b.allocate(most, kV)};
  b.reserve(most, kF, context + kPageTokens);
  Cuda::HostFloats logits(static_cast<size_t>(kV));
  for (int n : batches) {
    Batch batch;
    std::vector<int32_t> own(static_cast<size_t>(pages));
    for (int32_t i = 0; i < n; ++i) {
      std::iota(own.begin(), own.end(), i * pages);
      batch.append({&i, 1}, context, own, 1, RowKind::output);
    }
    using Clock = std::chrono::steady_clock;
    const auto since = [](Clock::time_point start) {
      return std::chrono::duration<double>(Clock::now() - start).count();
    };
    double asking = 0;  // of a step: time in which the host only asks for kernels
    const auto step = [&] {
      const auto start = Clock::now();
      b.begin(batch, Activations::a16, model.attention);
      b.repeat(static_cast<uint64_t>(context), [&] {
        b.embed(*model.embedding, w.x, 1);
        for (int i = 0; i < kL; ++i) forward_layer(b, model, i, w, cache);
        const std::pair<const Cuda::Linear*, Cuda::Matrix*> head[] = {{model.head.get(), &w.logits}};
        b.linear(b.norm_logit_rows(w.x, model.final_norm, 1e-5f, 0, n), head);
      });
      asking = since(start);
      b.download(w.logits, 0, 1, logits);  // the step's end: a sampler on the host sees logits
    };
    for (int i = 0; i < 5; ++i) step();
    std::vector<double> times;
    for (int i = 0; i < 30; ++i) {
      const auto start = Clock::now();
      step();
      times.push_back(since(start));
    }
    std::sort(times.begin(), times.end());
    const double seconds = times[times.size() / 2];
    const double cache_bytes = static_cast<double>(cache.bytes()) * n * context / (most * pages * kPageTokens),
                 roof = (static_cast<double>(weight_bytes) + cache_bytes) / kCopyBandwidth;
    std::printf(
        "llama-3-8b %-36s batch %-3d context %-5d %7.3f ms a step (host %.3f), %8.1f tokens/s, weights %.2f GB, %.0f%% "
        "of the roofline\n",
        format.c_str(), n, context, seconds * 1e3, asking * 1e3, n / seconds, static_cast<double>(weight_bytes) * 1e-9,
        100 * roof / seconds);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto numbers = [](const char* text) {
      std::vector<int> all;
      for (const char* p = text; *p; p += *p == ',')
        all.push_back(static_cast<int>(std::strtol(p, const_cast<char**>(&p), 10)));
      return all;
    };
    const std::string batches = argc > 2 ? argv[2] : "1";
    const auto cache_named = [](std::string_view name) {
      for (KvFormat kv : {KvFormat::f32, KvFormat::f16, KvFormat::bf16, KvFormat::i8, KvFormat::i4x2})
        if (name == name_of(kv)) return kv;
      throw Error("no cache is called {}", name);
    };
    return run(argc > 1 ? argv[1] : "int4g128z", batches == "prefill" ? std::vector<int>() : numbers(batches.c_str()),
               numbers(argc > 3 ? argv[3] : "512"), argc > 4 ? argv[4] : "bf16",
               cache_named(argc > 5 ? argv[5] : "f16"));
  } catch (const Error& e) {
    std::fprintf(stderr, "decode_cuda_bench: %s\n", e.what());
    return 1;
  }
}
