#include "sensitivity/gamma.h"

#include <algorithm>
#include <cmath>

#include "app/options/common.h"

namespace fidelio::app {
namespace {

struct Gamma {
  std::string model, json;
  int bits = 4, group = 128;
};

void gamma(const Gamma& o) {
  const Checkpoint checkpoint = Checkpoint::open(o.model);
  nlohmann::json linears = nlohmann::json::array();
  if (!quiet(o.json))
    fmt::print("{:<22} {:>7} {:>18} {:>17} {:>9} {:>14}\n", "linear", "gamma", "gamma^2 predicted", "variance measured",
               "ratio", "worst group");
  for (LinearId id : linears_of(checkpoint.config())) {
    const LinearWeight w = checkpoint.linear(id);
    check(w.spec.is_dense(), "{}: {} is {}; gamma is about the weights before they are quantised", o.model,
          to_string(id), to_string(w.spec));
    const std::vector<float> values = decode(w);
    check(std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); }),
          "{}: {} holds NaN or infinity: the file is damaged", o.model, to_string(id));
    const GammaLaw law = gamma_law(values, w.out, w.in, o.group, o.bits);
    checkpoint.drop(id);
    linears.push_back({{"linear", to_string(id)},
                       {"gamma", law.gamma()},
                       {"predicted", law.predicted},
                       {"measured", law.measured},
                       {"largest", law.largest}});
    if (!quiet(o.json))
      fmt::print("{:<22} {:>7.4f} {:>18.4f} {:>17.4f} {:>9.4f} {:>14.3f}\n", to_string(id), law.gamma(), law.predicted,
                 law.measured, law.measured / law.predicted, law.largest);
  }
  write_json(o.json, {{"bits", o.bits}, {"group", o.group}, {"linears", linears}});
}

}  // namespace

void add_gamma(CLI::App& app) {
  auto o = std::make_shared<Gamma>();
  CLI::App* verb = app.add_subcommand(
      "gamma", "What symmetric grids would cost each linear: predicted and measured ratio of rounding variances");
  verb->footer("Example:\n  fidelio gamma models/quill-26m --bits 4 --group 128");
  verb->add_option("MODEL", o->model, "Model folder with dense weights")->required()->check(model_folder());
  verb->add_option("--bits", o->bits, "Bits of the grids")->check(CLI::Range(2, 8));
  verb->add_option("--group", o->group, "Columns that share a range; 0 = the whole row")->check(CLI::Range(0, 1 << 20));
  add_json(*verb, o->json);
  verb->callback([o] { gamma(*o); });
}

}  // namespace fidelio::app
