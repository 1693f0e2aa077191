// A workbench sums second-order statistics and quantises matrices with them, on the host's threads or on a GPU. The
// algorithms are the same (hessian.h, quantize.h), and so are the results up to the rounding of FP32 sums: codes may
// differ where two levels are almost equally good.
//
// It handles one input at a time: call begin, add the input's rows, factorize, and then for every linear that reads
// the input load it and quantize it in each format.
#pragma once
#include <memory>
#include <span>

#include "quant/quantize.h"
#include "runtime/runner.h"

namespace fidelio {

class Workbench {
 public:
  virtual ~Workbench() = default;
  virtual void begin(int64_t in) = 0;  // sets H = 0
  virtual void begin(const Hessian& hessian) = 0;
  // Adds rows of `in` columns, in the host's memory or the runner's.
  virtual void add(std::span<const float> x) = 0;
  // Adds rows together with the rows that the source's own layers give at the same place. The weight that is
  // quantised then is the one that makes up for what earlier layers lost (feedback.h).
  virtual void add(std::span<const float> x, std::span<const float> source) = 0;
  virtual void factorize(double damping, bool act_order) = 0;
  virtual void load(const LinearWeight& original) = 0;  // `original` must outlive its quantising
  // Quantises the loaded weight without a bias. The options must be those given to factorize().
  virtual GptqResult quantize(const FormatSpec& spec, const GptqOptions& options) = 0;
  // These return what quantising works on, for callers that quantise in parts (atom/atom.h): H, and the loaded weight
  // (out, in).
  virtual Hessian hessian() = 0;
  virtual std::vector<float> values() = 0;
};

// Makes a workbench on the device of the runner whose rows it is to see.
std::unique_ptr<Workbench> make_workbench(const Runner& runner, ThreadPool& pool);
std::unique_ptr<Workbench> make_host_workbench(ThreadPool& pool);
// Makes one on a GPU. Throws Error in a build without CUDA. The host quantises formats that the device does not know,
// and logs that.
std::unique_ptr<Workbench> make_cuda_workbench(int gpu, ThreadPool& pool);

}  // namespace fidelio
