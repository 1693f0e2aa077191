// What every format costs a token, measured on this machine: --tokens-per-second is kept by these.
//
// A product alone says too little of what it costs in a model: neighbours share the rounding of their inputs, kernels of
// a GPU begin before those in front of them have ended, caches hold what was read last. So whole steps are timed. All
// linears of a kind (those of one name in every layer) are given a format while the others have one in the middle, and
// what the step takes longer than with the middle one everywhere is the kind's cost. A plan's time is then the step's
// and what its kinds cost beside it. Codes are the first layer's, packed anew for every layer, as often as a step must
// read what no cache still holds.
#pragma once
#include "compress/desk/desk.h"
#include "compress/desk/runners.h"
#include "sensitivity/journal.h"

namespace fidelio {

struct FormatTimes {
  DecodeTimes decode;
  std::map<std::string, std::map<std::string, double>> extra;  // kind -> format -> seconds a token above its fastest
};

// The kind of a group: its name without the layer, "qkv" of "layers.3.qkv".
std::string kind_of(const std::string& group);

// What decides how long a token takes, beside the plan: times of another setting say nothing here.
std::string machine_of(const Desk& desk, const Runner& reference);
int64_t decode_context(const Desk& desk);  // tokens before the one that is timed

// Of these formats and of the source's own. The served runner must be there, with the source's weights, and
// is left so. Times that the journal has of this machine are taken from there; the first who asks measures them.
FormatTimes time_formats(Desk& desk, Runners& runners, const std::vector<FormatSpec>& formats, Journal& journal);
// What a table offers beside the source's own.
std::vector<FormatSpec> formats_of(const Desk& desk, const SensitivityTable& table);
// The times of a table, where it has them of this machine.
std::optional<FormatTimes> times_of(const Desk& desk, const Runner& reference, const SensitivityTable& table);

// Into the options of a table. Throws Error naming a format that was not timed.
void put_times(const FormatTimes& times, SensitivityTable& table);

}  // namespace fidelio
