// This file quantises a whole model, layer by layer. Each linear is quantised against the inputs that it will really
// see, which are those that the quantised linears before it produce. The linears of a stop (arch/stops.h) share an
// input. Every linear runs once.
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
  std::optional<GptqReport> report;      // empty after rounding to nearest
  std::optional<double> relative_error;  // ||W - Q||^2 / ||W||^2 if it was asked for (sensitivity/candidates.h)
};

// A StopStore keeps finished stops between runs of a long job (sensitivity/journal.h). The name of a stop is
// "embedding", "head", or that of stop_name(), as "layers.3.qkv". What is loaded is what was saved, bit for bit.
class StopStore {
 public:
  virtual ~StopStore() = default;
  virtual bool contains(const std::string& stop) const = 0;
  virtual std::vector<QuantizedLinear> load(const std::string& stop) const = 0;
  virtual void save(const std::string& stop, std::vector<QuantizedLinear> linears) = 0;
};

// ModelQuantizer holds the options of quantising a model.
struct ModelQuantizer {
  Method method = Method::gptq;
  GptqOptions options;
  std::map<LinearId, std::vector<FormatSpec>> formats;  // linears not named stay as they are
  // If true, every linear is quantised against what the quantised linears before it produce, to one format each. If
  // false, it is quantised against the source's own activations, to any number of formats (candidates of a search),
  // and the runner keeps the source's weights.
  bool sequential = true;
  // If `sequential` is set, this is a second runner with the source's weights, whose activations say what the
  // linears' outputs should be (quant/feedback.h). Without it, the linears should give what they would make of the
  // quantised layers' activations.
  Runner* original = nullptr;
  // Stops found in this store are not quantised again; the others are saved there. With `sequential` a stop depends
  // on the formats of the stops before it, so such a store serves these formats alone.
  StopStore* store = nullptr;
  // The mean absolute gradient of each linear's weights (train/salience.h), for vector codes made by the paper's
  // algorithm.
  const std::map<LinearId, std::vector<float>>* gradients = nullptr;
  // GptqOptions::output_moment for each linear (train/salience.h).
  const std::map<LinearId, std::vector<float>>* output_moments = nullptr;
  // For Atom (atom/atom.h): the layers' weights keep so many columns in 8 bits, and the orders of columns are stored
  // here. All linears must then have one format, and the method must be GPTQ.
  KeptColumns* kept = nullptr;
  // If there is a store, only the stops whose number, in the order of the model, is `part` modulo `parts` are made.
  // The other processes' stops are found in the store.
  int part = 0, parts = 1;
};
// Checks that the FP16 scales of formats that a user named can hold the weights (formats/half_scales.h). Throws Error
// that names the linear and a format that can hold it, and warns if only a few rows would be lost.
void check_half_scales(const Checkpoint& source, const std::map<LinearId, FormatSpec>& formats, ThreadPool& pool);
// Checks the same for formats that a search offers. Returns a line for each format that cannot hold some of the
// linears.
std::vector<std::string> beyond_half_scales(const Checkpoint& source, const std::vector<LinearId>& linears,
                                            std::span<const FormatSpec> formats, ThreadPool& pool);
// Returns the formats as lists of one format each.
std::map<LinearId, std::vector<FormatSpec>> one_format_each(const std::map<LinearId, FormatSpec>& formats);

// Rounds the model to nearest. This needs no calibration data. `done` receives every quantised linear, in any order.
void quantize_model_rtn(const Checkpoint& source, const ModelQuantizer& how, ThreadPool& pool,
                        const std::function<void(QuantizedLinear)>& done);

// Quantises the model with GPTQ. `runner` holds the source's weights and, if sequential, is left holding the
// quantised ones. A head is quantised against the source's final hidden states, and a tied embedding for both its
// roles (quant/vocabulary.h). An embedding that is only looked up is rounded to nearest, because each of its rows is
// an input by itself. `done` receives every quantised linear.
void quantize_model_gptq(Runner& runner, const Checkpoint& source, const Dataset& calibration,
                         const ModelQuantizer& how, ThreadPool& pool, const std::function<void(QuantizedLinear)>& done);

// The block of a model that predicts one token more (ModelConfig::predictor) only drafts, and drafts change no answer,
// so its matrices are rounded to nearest in one format, whatever the formats of the others are. Eight bits guess nearly
// what the block's own numbers guess. The scales are bytes with an FP32 number a row, which hold any weights.
inline constexpr const char* kPredictorFormat = "int8g32s8";
// Returns the format of each matrix of the block in a model that is made from this source. A matrix that it does not
// name stays as the source has it: one that is quantised already, or narrower, and all of them in a model whose stream
// is rotated.
std::map<LinearId, FormatSpec> predictor_formats(const Checkpoint& source,
                                                 const FormatSpec& format = parse_format(kPredictorFormat));
// Rounds these matrices to nearest.
std::map<LinearId, LinearWeight> quantize_predictor(const Checkpoint& source,
                                                    const std::map<LinearId, FormatSpec>& formats, ThreadPool& pool);

}  // namespace fidelio
