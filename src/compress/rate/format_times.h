// This file measures how long a token takes with every format on this machine. --tokens-per-second is kept by these
// times.
//
// The time of a product alone says too little about its cost in a model: neighbours share the rounding of their inputs,
// kernels of a GPU begin before those in front of them have ended, and caches hold what was read last. Whole steps are
// timed instead. All linears of a kind (those of one name in every layer) get a format while the others have one in the
// middle. The additional time over the middle format everywhere is the cost of the kind. The time of a plan is that of
// the step plus the costs of its kinds. The codes are those of the first layer that has such linears, packed anew for
// other layers, so that a step reads more than caches hold.
#pragma once
#include "compress/desk/desk.h"
#include "compress/desk/runners.h"
#include "sensitivity/journal.h"

namespace fidelio {

struct FormatTimes {
  DecodeTimes decode;
  std::map<std::string, std::map<std::string, double>> extra;  // kind -> format -> seconds a token above its fastest
};

// Returns the kind of a group: its name without the layer, for example "qkv" for "layers.3.qkv".
std::string kind_of(const std::string& group);

// Returns everything but the plan that decides how long a token takes. Times of another setting say nothing here.
std::string machine_of(const Desk& desk, const Runner& reference);
int64_t decode_context(const Desk& desk);  // the number of tokens before the one that is timed

// Times these formats and the source's own in the served runner, and leaves the source's weights there. Times that the
// journal already has of this machine are taken from it.
FormatTimes time_formats(Desk& desk, Runners& runners, const std::vector<FormatSpec>& formats, Journal& journal);
// Returns the formats that a table offers beside the source's own.
std::vector<FormatSpec> formats_of(const Desk& desk, const SensitivityTable& table);
// Returns the times of a table, if it has some of this machine.
std::optional<FormatTimes> times_of(const Desk& desk, const Runner& reference, const SensitivityTable& table);

// Writes the times into the options of a table. Throws Error naming a format that was not timed.
void put_times(const FormatTimes& times, SensitivityTable& table);

}  // namespace fidelio
