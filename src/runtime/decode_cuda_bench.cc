// This program measures the decoding of a model shaped like llama-3-8b with random weights on a GPU, by the program
// and the operations that serve:
//
//   decode_cuda_bench FORMAT [batch,batch,...] [context,context,...] [head's format, else bf16] [cache, else f16]
//   decode_cuda_bench FORMAT prefill [tokens,tokens,...]
//   decode_cuda_bench FORMAT speculate [batch,...] [context,...] [head's format, else FORMAT] [draft,draft,...]
//
// The first form prints the milliseconds of a step, the bytes of weights, and the share of the roofline, which is the
// time to read weights and cache at kCopyBandwidth. It then prints what a step takes whose tokens are chosen on the
// device, greedily and by sampling.
//
// In the last form a draft is a number of high bits, or the format of a copy of all weights that shares the cache,
// followed by /FORMAT if its head is to have another and by :N for a head of N tokens. Cycles of 1 to 8 drafts, the
// same number for each sequence, are timed whole, in turns with plain steps: once with a wait after each step, and
// once with a single wait at the end. The gain follows for several probabilities a that a draft is accepted: a cycle
// gives (1 - a^(g + 1)) / (1 - a) tokens to a sequence.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>

#include "core/rng.h"
#include "formats/grid_curve.h"
#include "kernels/cuda/backend/cuda.h"
#include "runtime/execution/executor.h"

using namespace fidelio;

namespace {

constexpr int kD = 4096, kF = 14336, kH = 32, kHk = 8, kE = 128, kV = 128256, kL = 32, kMostBatch = 64;
constexpr double kCopyBandwidth = 4.25e12;  // bytes per second on an H200, measured by lowbit_bench copy

LinearWeight random_weight(const FormatSpec& spec, int64_t out, int64_t in) {
  LinearWeight w =
      spec.is_dense() ? make_dense(OwnedTensor::allocate(DType::bf16, {out, in})) : allocate_weight(spec, out, in);
  Rng rng(static_cast<uint64_t>(out * in));
  for (const StoredTensor& t : whole_tensors(w)) {
    if (t.tensor.dtype == DType::f16)
      for (f16& v : t.tensor.as<f16>()) v = to_f16(0.002f);
    else if (t.tensor.dtype == DType::f32)
      for (float& v : t.tensor.as<float>()) v = 0.0001f;
    else if (t.tensor.dtype == DType::bf16)
      for (bf16& v : t.tensor.as<bf16>()) v = {static_cast<uint16_t>((rng.next() & 0x807f) | 0x3c80)};  // about +-.016
    else
      for (int64_t i = 0; i < t.tensor.bytes(); i += 8) {
        const uint64_t bytes = rng.next();
        std::memcpy(t.tensor.data + i, &bytes, static_cast<size_t>(std::min<int64_t>(8, t.tensor.bytes() - i)));
      }
  }
  if (spec.kind == Kind::grid && is_curve_width(spec.bits)) {
    const std::vector<int8_t> grid = typical_grid(spec.bits);
    std::copy(grid.begin(), grid.end(), std::get<VectorCode>(w.main).codebook.as<int8_t>().begin());
  }
  return w;
}

ModelConfig shape() {
  ModelConfig c;
  c.L = kL, c.d = kD, c.f = kF, c.h = kH, c.hk = kHk, c.e = kE, c.v = kV;
  c.rms_eps = 1e-5f;
  c.max_positions = 131072;
  c.tie_embeddings = true;  // one matrix is enough here, because an embedding is read a row at a time
  return c;
}
const Program& program() {
  static const Program built = build_program(shape(), shape().max_positions);
  return built;
}

struct Model {
  Weights<Cuda> weights{program()};
  int64_t bytes = 0;
};

// Makes a model of random weights. With tokens > 0 it also has a draft's head of this many tokens, evenly spread.
std::unique_ptr<Model> make_model(Cuda& b, const std::string& format, const std::string& head, int tokens = 0) {
  auto made = std::make_unique<Model>();
  std::map<std::pair<int64_t, int64_t>, LinearWeight> of_shape;
  const auto shared = [&](const LinearWeight& w) { return std::make_shared<const Cuda::Linear>(b.pack(w)); };
  for (const LinearId id : program().linears) {
    const Shape s = shape_of(shape(), id);
    const auto at = of_shape.try_emplace({s[0], s[1]}).first;
    if (at->second.out == 0) at->second = random_weight(parse_format(id.layer < 0 ? head : format), s[0], s[1]);
    made->weights[id] = shared(at->second);
    made->bytes += made->weights[id]->bytes();
  }
  const std::vector<float> ones(kD, 1.0f);
  for (size_t i = 0; i < program().norms.size(); ++i) {
    made->weights.norms.push_back(b.allocate(1, kD));
    b.upload(ones, made->weights.norms.back());
  }
  if (tokens > 0) {
    std::vector<int32_t> ids(static_cast<size_t>(tokens));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * (kV / ids.size()));
    made->weights.draft_head = {shared(take_rows(of_shape.at({kV, kD}), ids)), b.make_token_set(ids, kV),
                                b.allocate(kMostBatch, tokens)};
  }
  return made;
}

// Memory holds the values and the cache of steps of up to `rows` rows.
struct Memory {
  Cuda& b;
  ValueMemory<Cuda> values;
  Cuda::KvCache cache;
  Cuda::States states;

  Memory(Cuda& b, int64_t rows, int64_t logit_rows, int64_t pages, int64_t context, KvFormat kv) : b(b) {
    allocate_values(b, program(), rows, logit_rows, values);
    cache = b.allocate_cache(program().attention, pages, kv);
    b.reserve(rows, kF, context);
  }
  std::unique_ptr<Executor<Cuda>> executor(Model& model) {
    auto made = std::make_unique<Executor<Cuda>>(b, program(), model.weights, values, cache, states);
    made->find_values();
    return made;
  }
};

void run_step(Cuda& b, Executor<Cuda>& executor, const Batch& batch, Reading reading, uint64_t recorded_as,
              std::span<const int32_t> from = {}) {
  executor.begin(batch.rows(), reading.short_head);
  b.begin(batch, reading, program().attention);
  b.feed(from);
  b.repeat(recorded_as, [&] {
    executor.run(OpRange{0, program().layers.back().last});
    executor.run_head(0, static_cast<int64_t>(batch.logit_rows.size()));
  });
}

void measure(Cuda& b, Model& model, const std::string& format, const std::vector<int>& batches, int context,
             KvFormat kv);
void prefill(Cuda& b, Model& model, const std::string& format, int tokens);

// Measures decoding for every batch and context. Without batches it measures prefills of `contexts` tokens.
int run(const std::string& format, const std::vector<int>& batches, const std::vector<int>& contexts,
        const std::string& head, KvFormat kv) {
  Cuda b({});
  const std::unique_ptr<Model> model = make_model(b, format, head);
  const std::string name = format + ", head " + head + ", cache " + std::string(name_of(kv));
  for (int context : contexts)
    batches.empty() ? prefill(b, *model, name, context) : measure(b, *model, name, batches, context, kv);
  return 0;
}

// Measures the prefill of one sequence from its start until the logits of its last token reach the host.
void prefill(Cuda& b, Model& model, const std::string& format, int tokens) {
  const int pages = (tokens + kPageTokens - 1) / kPageTokens;
  Memory memory(b, tokens, 1, pages, tokens, KvFormat::f16);
  const auto executor = memory.executor(model);
  Batch batch;
  std::vector<int32_t> ids(static_cast<size_t>(tokens)), own(static_cast<size_t>(pages));
  std::iota(ids.begin(), ids.end(), 0);
  std::iota(own.begin(), own.end(), 0);
  batch.append(ids, 0, own, 1, RowKind::prompt);
  std::vector<float> logits(static_cast<size_t>(kV));
  std::vector<double> times;
  for (int i = 0; i < 7; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run_step(b, *executor, batch, {}, 0);
    b.download(executor->matrix(program().logits), 0, 1, logits);
    if (i >= 2) times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  const double seconds = times[times.size() / 2];
  std::printf("llama-3-8b %-10s prefill of %d tokens %.1f ms, %.0f tokens/s\n", format.c_str(), tokens, seconds * 1e3,
              tokens / seconds);
}

double median(std::vector<double>& values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Times steps that end with n tokens chosen on the device, in turns in three ways: greedily; at temperature .7 with
// top-p .9 from rows that deviate by 2.5, as a model's do; and the same from rows that deviate by 1, as those of
// random weights do, where most of the vocabulary has a share.
void compare_choices(Cuda& b, const Cuda::Matrix& logits, int n, const std::function<void()>& run_model) {
  constexpr int kKinds = 3;
  constexpr double kDeviations[kKinds] = {0, 2.5, 1};
  std::vector<Choice> choices(static_cast<size_t>(n));
  std::vector<double> times[kKinds];
  Rng rng(7);
  for (int i = 0; i < 60 * kKinds; ++i) {
    ChoiceRule rule;
    rule.greedy = i % kKinds == 0;
    rule.scale = static_cast<float>(1.4426950408889634 / 0.7 * kDeviations[i % kKinds]);
    rule.top_p = 0.9;
    std::vector<ChoiceRule> rules(static_cast<size_t>(n), rule);
    for (ChoiceRule& each : rules) each.random = rng.next();
    const auto start = std::chrono::steady_clock::now();
    run_model();
    b.choose(logits, rules, choices);
    if (i >= 10 * kKinds)
      times[i % kKinds].push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  const double greedy = median(times[0]), sampled = median(times[1]), flat = median(times[2]);
  std::printf(
      "  tokens chosen on the device: greedily %.3f ms a step, sampled %.3f (%+.2f%%), of flat rows %.3f (%+.2f%%)\n",
      greedy * 1e3, sampled * 1e3, 100 * (sampled / greedy - 1), flat * 1e3, 100 * (flat / greedy - 1));
}

void measure(Cuda& b, Model& model, const std::string& format, const std::vector<int>& batches, int context,
             KvFormat kv) {
  const int most = *std::max_element(batches.begin(), batches.end()), pages = context / kPageTokens + 1;
  Memory memory(b, most, most, int64_t{most} * pages, context + kPageTokens, kv);
  const auto executor = memory.executor(model);
  const Cuda::Matrix& device_logits = executor->matrix(program().logits);
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
    double asking = 0;  // the time of a step in which the host only asks for kernels
    const auto run_model = [&] {
      const auto start = Clock::now();
      run_step(b, *executor, batch, {}, static_cast<uint64_t>(context));
      asking = since(start);
    };
    const auto step = [&] {
      run_model();
      b.download(device_logits, 0, 1, logits);  // the step ends when a sampler on the host has the logits
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
    const double cache_bytes = static_cast<double>(memory.cache.bytes()) * n * context / (most * pages * kPageTokens),
                 roof = (static_cast<double>(model.bytes) + cache_bytes) / kCopyBandwidth;
    std::printf(
        "llama-3-8b %-36s batch %-3d context %-5d %7.3f ms a step (host %.3f), %8.1f tokens/s, weights %.2f GB, %.0f%% "
        "of the roofline\n",
        format.c_str(), n, context, seconds * 1e3, asking * 1e3, n / seconds, static_cast<double>(model.bytes) * 1e-9,
        100 * roof / seconds);
    compare_choices(b, device_logits, n, run_model);
  }
}

// The rest measures speculation.
constexpr int kMostDrafts = 8;

// Speculating runs drafts and their verification as the engine does: tokens are chosen greedily on the device, with
// their probability.
struct Speculating {
  Cuda& b;
  int batch, context, pages;
  Memory memory;
  std::vector<std::unique_ptr<Executor<Cuda>>> executors;  // the model's executor, then that of the draft
  std::vector<bool> drafts_head;                           // tells which of them have a head of a draft's own
  uint64_t recorded_as;  // no other instance has matrices in the graphs of this number
  Batch rows;
  std::vector<ChoiceRule> rules;
  std::vector<Choice> choices;

  Speculating(Cuda& b, const std::vector<Model*>& models, int batch, int context)
      : b(b),
        batch(batch),
        context(context),
        pages((context + kMostDrafts) / kPageTokens + 1),
        memory(b, batch * (kMostDrafts + 1), batch * (kMostDrafts + 1), int64_t{batch} * pages, context + kPageTokens,
               KvFormat::f16),
        recorded_as(next_number += 2) {
    for (Model* model : models) {
      executors.push_back(memory.executor(*model));
      drafts_head.push_back(model->weights.draft_head.rows != nullptr);
    }
    ChoiceRule rule;
    rule.wants_probability = true;
    rules.assign(static_cast<size_t>(batch * (kMostDrafts + 1)), rule);
    choices.resize(2 * rules.size());
  }
  // Runs `count` rows of each sequence from `position` on, with these weights.
  void launch(size_t which, Reading reading, int position, int count, std::span<const int32_t> from) {
    rows.clear();
    std::vector<int32_t> own(static_cast<size_t>(pages)), ids(static_cast<size_t>(count));
    for (int i = 0; i < batch; ++i) {
      std::iota(own.begin(), own.end(), i * pages);
      std::iota(ids.begin(), ids.end(), i + position);
      rows.append(ids, position, own, count, RowKind::output);
    }
    reading.short_head = drafts_head[which];
    run_step(b, *executors[which], rows, reading, recorded_as + which, from);
  }
  const Cuda::Matrix& logits() const { return executors[0]->matrix(program().logits); }
  std::span<const ChoiceRule> own_rules() const { return std::span(rules).first(static_cast<size_t>(rows.rows())); }
  void step(size_t which, Reading reading, int position, int count) {
    launch(which, reading, position, count, {});
    b.choose(logits(), own_rules(), choices);
  }
  // Runs a cycle in which every token is fed on the device, where it was chosen.
  void cycle_without_waits(size_t which, Reading reading, int drafts) {
    int64_t place = 0;
    std::vector<int32_t> from(static_cast<size_t>(batch), -1);
    for (int draft = 0; draft < drafts; ++draft) {
      launch(which, reading, context + draft, 1, from);
      b.choose_later(logits(), own_rules(), place);
      std::iota(from.begin(), from.end(), static_cast<int32_t>(place));
      place += batch;
    }
    from.clear();
    for (int i = 0; i < batch; ++i)
      for (int row = 0; row <= drafts; ++row) from.push_back(row == 0 ? -1 : (row - 1) * batch + i);
    launch(0, {}, context, drafts + 1, from);
    b.choose_later(logits(), own_rules(), place);
    b.collect(0, std::span(choices).first(static_cast<size_t>(place + rows.rows())));
  }
  static inline uint64_t next_number = 0;
  // These are median seconds, measured in turns, of a plain step, of a step of the draft, and of verifications and
  // cycles of 1 to 8 drafts.
  struct Seconds {
    double plain, draft, verify[kMostDrafts + 1], cycle[kMostDrafts + 1], queued[kMostDrafts + 1];
  };
  Seconds measure(size_t which, Reading reading, int rounds) {
    using Clock = std::chrono::steady_clock;
    std::vector<double> plain, draft, verify[kMostDrafts + 1], cycle[kMostDrafts + 1], queued[kMostDrafts + 1];
    const auto timed = [&](std::vector<double>& to, bool counts, const auto& work) {
      const auto start = Clock::now();
      work();
      if (counts) to.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    };
    for (int round = -3; round < rounds; ++round) {  // a shape is recorded the second time that it is seen
      const bool counts = round >= 0;
      for (int g = 1; g <= kMostDrafts; ++g) {
        timed(plain, counts, [&] { step(0, {}, context, 1); });
        timed(draft, counts, [&] { step(which, reading, context, 1); });
        timed(verify[g], counts, [&] { step(0, {}, context, g + 1); });
        timed(cycle[g], counts, [&] {
          for (int i = 0; i < g; ++i) step(which, reading, context + i, 1);
          step(0, {}, context, g + 1);
        });
        timed(queued[g], counts, [&] { cycle_without_waits(which, reading, g); });
      }
    }
    Seconds s{median(plain), median(draft), {}, {}, {}};
    for (int g = 1; g <= kMostDrafts; ++g)
      s.verify[g] = median(verify[g]), s.cycle[g] = median(cycle[g]), s.queued[g] = median(queued[g]);
    return s;
  }
};

void print_gains(double plain, const double (&cycle)[kMostDrafts + 1]) {
  for (double acceptance : {.8, .92, .98}) {
    int best = 0;
    double gain = 1, tokens = 1, power = 1;
    for (int g = 1; g <= kMostDrafts; ++g) {
      tokens += power *= acceptance;
      if (const double one = tokens * plain / cycle[g]; one > gain) gain = one, best = g;
    }
    std::printf(" %.2f: %.3f (%d)", acceptance, gain, best);
  }
}

int speculate(const std::string& format, const std::vector<int>& batches, const std::vector<int>& contexts,
              const std::string& head, const std::vector<std::string>& drafts) {
  Cuda b({});
  const std::unique_ptr<Model> model = make_model(b, format, head);
  for (const std::string& draft : drafts) {
    const bool view = draft.size() == 1;
    const size_t colon = draft.find(':'), slash = draft.find('/');
    const int tokens = colon == draft.npos ? 0 : std::stoi(draft.substr(colon + 1));
    const std::string body = draft.substr(0, std::min(slash, colon)),
                      own_head = slash == draft.npos ? body : draft.substr(slash + 1, colon - slash - 1);
    const std::unique_ptr<Model> copy = view ? nullptr : make_model(b, body, own_head, tokens);
    const Reading reading(Activations::a16, view ? draft[0] - '0' : 0);
    const size_t which = view ? 0 : 1;
    for (int context : contexts)
      for (int batch : batches) {
        Speculating speculating(b, view ? std::vector{model.get()} : std::vector{model.get(), copy.get()}, batch,
                                context);
        const auto s = speculating.measure(which, reading, batch == 1 ? 20 : 10);
        std::printf(
            "%s, head %s, draft %s, batch %d, context %d: plain %.3f ms, draft %.3f, verify 2 %.3f 4 %.3f 6 %.3f 9 "
            "%.3f, cycle of 3 %.3f, without waits %.3f\n  gain (drafts)",
            format.c_str(), head.c_str(), draft.c_str(), batch, context, s.plain * 1e3, s.draft * 1e3,
            s.verify[1] * 1e3, s.verify[3] * 1e3, s.verify[5] * 1e3, s.verify[8] * 1e3, s.cycle[3] * 1e3,
            s.queued[3] * 1e3);
        print_gains(s.plain, s.cycle);
        std::printf(", without waits");
        print_gains(s.plain, s.queued);
        std::printf("\n");
        std::fflush(stdout);
      }
  }
  return 0;
}

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> all;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    all.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return all;
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
    const std::string batches = argc > 2 ? argv[2] : "1", format = argc > 1 ? argv[1] : "int4g128z";
    if (batches == "speculate")
      return speculate(format, numbers(argc > 3 ? argv[3] : "1"), numbers(argc > 4 ? argv[4] : "512"),
                       argc > 5 ? argv[5] : format, words(argc > 6 ? argv[6] : "4"));
    const auto cache_named = [](std::string_view name) {
      for (KvFormat kv : {KvFormat::f32, KvFormat::f16, KvFormat::bf16, KvFormat::i8, KvFormat::i4x2})
        if (name == name_of(kv)) return kv;
      throw Error("no cache is called {}", name);
    };
    return run(format, batches == "prefill" ? std::vector<int>() : numbers(batches.c_str()),
               numbers(argc > 3 ? argv[3] : "512"), argc > 4 ? argv[4] : "bf16",
               cache_named(argc > 5 ? argv[5] : "f16"));
  } catch (const Error& e) {
    std::fprintf(stderr, "decode_cuda_bench: %s\n", e.what());
    return 1;
  }
}
