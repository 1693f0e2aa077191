#include "quant/quantize_model.h"

#include <algorithm>
#include <array>

#include "core/progress.h"

namespace fidelio {
namespace {

void quantize_rtn_linear(const Checkpoint& source, LinearId id, const ModelQuantizer& how, ThreadPool& pool,
                         const std::function<void(QuantizedLinear)>& done, Runner* runner) {
  const auto found = how.formats.find(id);
  if (found == how.formats.end()) return;
  const LinearWeight original = source.linear(id);
  const std::vector<float> values = decode(original);
  for (const FormatSpec& format : found->second) {
    LinearWeight weight = quantize_rtn(format, values, original.out, original.in, {.range_search = how.options.range_search, .importance = {}}, pool);
    weight.bias = original.bias;
    if (runner && how.sequential) runner->set_linear(id, runner->pack(weight));
    done({id, std::move(weight), std::nullopt});
  }
}

// The calibration texts on their way through the layers: per batch the residual stream before the next stop, and the
// input of the linear that is about to be quantised where running it again would cost a forward (o, down).
class Passage {
 public:
  Passage(Runner& runner, const Dataset& data) : runner_(runner), batches_(pack_batches(data.sequences, runner.options().max_rows, runner.cache_pages())) {
    for (const PackedBatch& packed : batches_) {
      runner_.begin(packed.batch, Activations::f32);
      runner_.embed();
      streams_.emplace_back(static_cast<size_t>(packed.batch.rows() * runner_.config().d));
      runner_.read_stream(streams_.back());
    }
  }

  // Collects the Hessian of this input over all batches; keeps the inputs if the next step needs them.
  Hessian observe(int layer, InputId which, ThreadPool& pool) {
    const bool keep = which == InputId::o_in || which == InputId::down_in;
    const int64_t columns = shape_of(runner_.config(), {layer, first_role(which)})[1];
    Hessian hessian(columns);
    inputs_.clear();
    for (size_t i = 0; i < batches_.size(); ++i) {
      runner_.begin(batches_[i].batch, Activations::f32);
      runner_.write_stream(streams_[i]);
      const std::span<const float> input = runner_.linear_input(layer, which);
      hessian.add(input, pool);
      if (keep) inputs_.emplace_back(input.begin(), input.end());
    }
    return hessian;
  }

  // stream += W input, with the weight as it is now.
  void advance(int layer, Role role) {
    for (size_t i = 0; i < batches_.size(); ++i) {
      runner_.begin(batches_[i].batch, Activations::f32);
      runner_.write_stream(streams_[i]);
      runner_.add_output(layer, role, inputs_[i]);
      runner_.read_stream(streams_[i]);
    }
  }

  static Role first_role(InputId which) {
    switch (which) {
      case InputId::attn_in: return Role::q;
      case InputId::o_in: return Role::o;
      case InputId::mlp_in: return Role::gate;
      default: return Role::down;
    }
  }

 private:
  Runner& runner_;
  std::vector<PackedBatch> batches_;
  std::vector<std::vector<float>> streams_, inputs_;
};

}  // namespace

std::map<LinearId, std::vector<FormatSpec>> one_format_each(const std::map<LinearId, FormatSpec>& formats) {
  std::map<LinearId, std::vector<FormatSpec>> each;
  for (const auto& [id, format] : formats) each[id] = {format};
  return each;
}

void quantize_model_rtn(const Checkpoint& source, const ModelQuantizer& how, ThreadPool& pool, const std::function<void(QuantizedLinear)>& done) {
  Progress progress("quantise (rtn)", static_cast<int64_t>(how.formats.size()));
  for (LinearId id : linears_of(source.config())) {
    quantize_rtn_linear(source, id, how, pool, done, nullptr);
    if (how.formats.contains(id)) progress.advance(1, to_string(id));
  }
}

void quantize_model_gptq(Runner& runner, const Checkpoint& source, const Dataset& calibration, const ModelQuantizer& how, ThreadPool& pool,
                         const std::function<void(QuantizedLinear)>& done) {
  const ModelConfig& config = source.config();
  static constexpr std::array<std::pair<InputId, std::array<Role, 3>>, 4> kStops = {{{InputId::attn_in, {Role::q, Role::k, Role::v}},
                                                                                    {InputId::o_in, {Role::o, Role::o, Role::o}},
                                                                                    {InputId::mlp_in, {Role::gate, Role::up, Role::up}},
                                                                                    {InputId::down_in, {Role::down, Role::down, Role::down}}}};
  Progress progress("quantise (gptq)", int64_t{config.L} * 4);
  for (Role role : {Role::embedding, Role::head}) quantize_rtn_linear(source, {-1, role}, how, pool, done, &runner);
  Passage passage(runner, calibration);
  for (int layer = 0; layer < config.L; ++layer) {
    for (const auto& [input, roles] : kStops) {
      const Hessian hessian = passage.observe(layer, input, pool);
      const HessianFactor factor = factorize(hessian, how.options.damping, how.options.act_order, pool);
      for (size_t i = 0; i < roles.size(); ++i) {
        const LinearId id{layer, roles[i]};
        const auto format = how.formats.find(id);
        if ((i > 0 && roles[i] == roles[i - 1]) || format == how.formats.end()) continue;
        const LinearWeight original = source.linear(id);
        const std::vector<float> values = decode(original);
        for (const FormatSpec& spec : format->second) {
          auto result = quantize_gptq(spec, values, original.out, original.in, hessian, factor, how.options, pool);
          result.weight.bias = original.bias;
          if (how.sequential) runner.set_linear(id, runner.pack(result.weight));
          done({id, std::move(result.weight), result.report});
        }
        source.drop(id);
      }
      if (input == InputId::o_in) passage.advance(layer, Role::o);
      if (input == InputId::down_in) passage.advance(layer, Role::down);
      progress.advance(1, fmt::format("layer {}", layer));
    }
  }
}

}  // namespace fidelio
