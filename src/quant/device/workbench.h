// Where second-order statistics are summed and matrices quantised with them: the host's threads or a GPU. The
// algorithms are the same (hessian.h, quantize.h), and so are the results up to the rounding of FP32 sums: where two
// levels are all but equally good, codes may differ.
//
// One input at a time: begin, add its rows, factorize, then every linear that sees it: load, quantize in each format.
#pragma once
#include <memory>
#include <span>

#include "quant/quantize.h"
#include "runtime/runner.h"

namespace fidelio {

class Workbench {
 public:
  virtual ~Workbench() = default;
  virtual void begin(int64_t in) = 0;  // H = 0
  virtual void begin(const Hessian& hessian) = 0;
  // Rows of `in` columns, in the host's memory or the runner's.
  virtual void add(std::span<const float> x) = 0;
  // The same, and the rows that the source's own layers give there: what is quantised then is the weight that makes up
  // for what earlier layers lost (feedback.h).
  virtual void add(std::span<const float> x, std::span<const float> source) = 0;
  virtual void factorize(double damping, bool act_order) = 0;
  virtual void load(const LinearWeight& original) = 0;  // which must outlive its quantising
  // Without a bias. Options as factorize() was given them.
  virtual GptqResult quantize(const FormatSpec& spec, const GptqOptions& options) = 0;
  // What both of them work on, for those who quantise in parts (atom/atom.h): H, and the loaded weight (out, in).
  virtual Hessian hessian() = 0;
  virtual std::vector<float> values() = 0;
};

// On the device of the runner whose rows it is to see.
std::unique_ptr<Workbench> make_workbench(const Runner& runner, ThreadPool& pool);
std::unique_ptr<Workbench> make_host_workbench(ThreadPool& pool);
// Throws Error in a build without CUDA. Formats that the device does not know are quantised by the host, with a logged
// line.
std::unique_ptr<Workbench> make_cuda_workbench(int gpu, ThreadPool& pool);

}  // namespace fidelio
