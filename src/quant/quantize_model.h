// A whole model, layer by layer: each linear is quantised against the inputs it will really see, i.e. those that the
// already quantised linears before it produce. Four stops a layer (q k v · o · gate up · down), every linear runs once.
#pragma once
#include <functional>
#include <map>
#include <optional>

#include "core/thread_pool.h"
#include "io/checkpoint_write.h"
#include "quant/quantize.h"
#include "runtime/dataset.h"
#include "runtime/runner.h"

namespace fidelio {

enum class Method : uint8_t { rtn, gptq };

struct QuantizedLinear {
  LinearId id;
  LinearWeight weight;
  std::optional<GptqReport> report;      // none after rounding to nearest
  std::optional<double> relative_error;  // ||W - Q||^2 / ||W||^2, where somebody wanted it (sensitivity/candidates.h)
};

// Where finished stops are kept between runs of a long job (sensitivity/journal.h). A stop's name is "embedding",
// "head", "layers.3.qkv", ".o", ".gate_up" or ".down"; what is loaded is what was saved, bit for bit.
class StopStore {
 public:
  virtual ~StopStore() = default;
  virtual bool contains(const std::string& stop) const = 0;
  virtual std::vector<QuantizedLinear> load(const std::string& stop) const = 0;
  virtual void save(const std::string& stop, std::vector<QuantizedLinear> linears) = 0;
};

struct ModelQuantizer {
  Method method = Method::gptq;
  GptqOptions options;
  std::map<LinearId, std::vector<FormatSpec>> formats;  // linears not named stay as they are
  // True: every linear is quantised against what the quantised linears before it produce; one format each. False:
  // against the source's own activations, in any number of formats (candidates of a search), and the runner keeps the
  // source's weights.
  bool sequential = true;
  // With `sequential`: a second runner of the source's weights, whose activations say what the linears' outputs should
  // be (quant/feedback.h). None: what the linears would make of the quantised layers' activations.
  Runner* original = nullptr;
  // Stops found here are not quantised again; the others go there. With `sequential` a stop depends on the formats of
  // those before it: such a store is for these formats alone.
  StopStore* store = nullptr;
  // Vector codes as in the paper: the mean absolute gradient of each linear's weights (train/salience.h).
  const std::map<LinearId, std::vector<float>>* gradients = nullptr;
  // GptqOptions::output_moment by linear (train/salience.h).
  const std::map<LinearId, std::vector<float>>* output_moments = nullptr;
  // Atom (atom/atom.h): the layers' weights keep so many columns in 8 bits, and their orders are put here. One format
  // for all of them; GPTQ alone.
  KeptColumns* kept = nullptr;
  // With a store: of the stops, numbered in the order of the model, only those of number part mod parts are made. What
  // the others made is found in the store.
  int part = 0, parts = 1;
};
// Checks that FP16 scales of formats that somebody named hold the weights (formats/half_scales.h). Throws Error that
// names the linear and a format that holds it, and warns where only a few rows would be lost.
void check_half_scales(const Checkpoint& source, const std::map<LinearId, FormatSpec>& formats, ThreadPool& pool);
// The same of formats that a search offers: a line for each that does not hold some of the linears.
std::vector<std::string> beyond_half_scales(const Checkpoint& source, const std::vector<LinearId>& linears,
                                            std::span<const FormatSpec> formats, ThreadPool& pool);
std::map<LinearId, std::vector<FormatSpec>> one_format_each(const std::map<LinearId, FormatSpec>& formats);

// RTN: no calibration data, any order. `done` receives every quantised linear.
void quantize_model_rtn(const Checkpoint& source, const ModelQuantizer& how, ThreadPool& pool,
                        const std::function<void(QuantizedLinear)>& done);

// GPTQ: `runner` holds the source's weights and, if sequential, is left holding the quantised ones. A head is quantised
// against the source's final hidden states, a tied embedding for both its roles (quant/vocabulary.h); an embedding that
// is only looked up is rounded to nearest, each of its rows being an input by itself.
void quantize_model_gptq(Runner& runner, const Checkpoint& source, const Dataset& calibration,
                         const ModelQuantizer& how, ThreadPool& pool, const std::function<void(QuantizedLinear)>& done);

}  // namespace fidelio
