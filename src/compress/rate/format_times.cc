#include "compress/rate/format_times.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "compress/rate/decode_clock.h"
#include "core/hash.h"
#include "quant/quantize.h"
#include "runtime/machine/machine.h"

namespace fidelio {
namespace {

// Layers may share copies of a weight. A step then reads at least so many bytes between two products with the same
// copy, which is more than caches hold.
constexpr int64_t kStreamed = int64_t{1} << 29;

// A LinearKind is the groups of one name in every layer, which have the same shapes and the same times.
struct LinearKind {
  std::string name;
  std::vector<const LinearGroup*> groups;
  std::vector<FormatSpec> formats;  // with the source's own
  FormatSpec middle;
};

std::vector<LinearKind> kinds_of(const Desk& desk, const std::vector<FormatSpec>& formats) {
  std::vector<LinearKind> kinds;
  for (const LinearGroup& g : desk.groups) {
    const std::string name = kind_of(g.name);
    auto found = std::find_if(kinds.begin(), kinds.end(), [&](const LinearKind& k) { return k.name == name; });
    if (found == kinds.end()) found = kinds.insert(kinds.end(), {name, {}, formats, formats[formats.size() / 2]});
    found->groups.push_back(&g);
    for (LinearId id : g.linears)
      if (std::find(found->formats.begin(), found->formats.end(), desk.source.format(id)) == found->formats.end())
        found->formats.push_back(desk.source.format(id));
  }
  return kinds;
}

// StandIns are weights that stand for those of a plan: codes of the same format and shape.
class StandIns {
 public:
  StandIns(Desk& desk, Runners& runners, const FormatSpec& middle)
      : desk_(desk), runners_(runners), in_force_(runners, Runners::Which::served) {
    int64_t layers = 0;
    for (const LinearGroup& g : desk.groups)
      for (LinearId id : g.linears)
        if (id.layer >= 0) {
          const Shape shape = shape_of(desk.source.config(), id);
          layers += stored_bytes(middle, shape[0], shape[1]);
        }
    const int64_t layer = 1 + layers / desk.source.config().L;  // on average
    copies_ = std::clamp<int64_t>((kStreamed + layer - 1) / layer, 1, desk.source.config().L);
  }

  void put(const LinearKind& kind, const FormatSpec& format) {
    for (const LinearGroup* g : kind.groups)
      for (LinearId id : g->linears)
        in_force_.runner().set_linear(
            id, format == desk_.source.format(id) ? runners_.reference().linear(id) : copy(id, format));
  }
  // Drops all copies except those in the kind's middle format.
  void forget(const LinearKind& kind) {
    std::erase_if(packed_, [&](const auto& entry) { return entry.first.second != to_string(kind.middle); });
  }

 private:
  // Returns the linear of the first layer that has one of this role and shape.
  LinearId first_like(LinearId id) const {
    const ModelConfig& config = desk_.source.config();
    const auto is_in = [&](int layer) {
      return std::ranges::any_of(stops_of(config, layer), [&](const Stop& stop) {
        return stop.routed == (id.expert >= 0) && std::ranges::find(stop.roles, id.role) != stop.roles.end();
      });
    };
    for (LinearId first{0, id.role, id.expert}; first.layer < id.layer; ++first.layer)
      if (is_in(first.layer) && shape_of(config, first) == shape_of(config, id)) return first;
    return id;
  }
  PackedLinear copy(LinearId id, const FormatSpec& format) {
    const LinearId first = first_like(id);
    std::vector<PackedLinear>& packed = packed_[{first, to_string(format)}];
    const auto count = static_cast<size_t>(id.layer < 0 ? 1 : copies_);
    if (packed.empty()) {
      const LinearWeight original = desk_.source.linear(first);
      LinearWeight weight =
          quantize_rtn(format, decode(original), original.out, original.in,
                       {.range_search = false, .importance = {}, .codebooks = &runners_.codebooks()}, desk_.pool);
      weight.bias = original.bias;
      for (size_t i = 0; i < count; ++i) packed.push_back(in_force_.runner().pack(weight));
    }
    return packed[static_cast<size_t>(std::max(id.layer, 0)) % count];
  }

  Desk& desk_;
  Runners& runners_;
  Runners::InForce in_force_;
  int64_t copies_ = 1;
  std::map<std::pair<LinearId, std::string>, std::vector<PackedLinear>> packed_;
};

FormatTimes measure(Desk& desk, Runners& runners, const std::vector<FormatSpec>& formats) {
  const std::vector<LinearKind> kinds = kinds_of(desk, formats);
  StandIns weights(desk, runners, formats[formats.size() / 2]);
  for (const LinearKind& kind : kinds) weights.put(kind, kind.middle);
  DecodeClock clock(runners.served(), decode_context(desk), desk.world.step_timer);
  FormatTimes times{{0, clock.context(), machine_of(desk, runners.reference())}, {}};
  std::vector<double> whole = {clock.seconds()};  // steps with every kind in its middle format
  for (const LinearKind& kind : kinds) {
    std::map<std::string, double>& extra = times.extra[kind.name];
    // A token reads only one row of an embedding, unless the embedding is the head too.
    const bool looked_up = kind.name == name_of(Role::per_layer_table) ||
                           (kind.name == "embedding" && !desk.source.config().tie_embeddings);
    for (const FormatSpec& format : kind.formats) {
      double& seconds = extra[to_string(format)] = 0;
      if (looked_up || format == kind.middle) continue;
      const auto [longer, step] =
          clock.difference([&] { weights.put(kind, format); }, [&] { weights.put(kind, kind.middle); });
      weights.forget(kind);
      seconds = longer;
      whole.push_back(step);
    }
    const double least = std::min_element(extra.begin(), extra.end(), [](const auto& a, const auto& b) {
                           return a.second < b.second;
                         })->second;
    for (auto& [format, seconds] : extra) seconds -= least;
    times.decode.seconds += least;
  }
  // The same step was timed many times, sometimes beside another program, so the first quartile is taken.
  std::sort(whole.begin(), whole.end());
  times.decode.seconds += whole[whole.size() / 4];
  check(times.decode.seconds > 0,
        "times of this machine vary too much for formats to be told apart: give it nothing else to do");
  return times;
}

nlohmann::json to_json(const FormatTimes& t) {
  return {
      {"seconds", t.decode.seconds}, {"context", t.decode.context}, {"machine", t.decode.machine}, {"extra", t.extra}};
}

}  // namespace

std::string kind_of(const std::string& group) {
  if (!group.starts_with("layers.")) return group;
  return group.substr(group.find('.', 7) + 1);
}

std::string machine_of(const Desk& desk, const Runner& reference) {
  const Activations mode = desk.job.served();
  const std::string name = machine_name(reference.gpu());
  const std::string kernels = desk.job.serving.isa.empty() ? "" : ", " + desk.job.serving.isa;
  return fmt::format("{}{}, activations {}, cache {}",
                     reference.gpu() ? name : fmt::format("{}, {} threads", name, desk.pool.threads()), kernels,
                     name_of(mode), name_of(desk.options(mode).kv));
}

int64_t decode_context(const Desk& desk) { return desk.job.context - 1; }

FormatTimes time_formats(Desk& desk, Runners& runners, const std::vector<FormatSpec>& formats, Journal& journal) {
  std::string asked = fmt::format("{} context {} grouping {}", machine_of(desk, runners.reference()),
                                  decode_context(desk), name_of(desk.job.grouping));
  for (const FormatSpec& f : formats) asked += " " + to_string(f);
  const std::string name = "times-" + sha256_hex(asked).substr(0, 12);
  if (const std::optional<std::string> kept = journal.kept(name)) {
    const nlohmann::json value = nlohmann::json::parse(*kept);
    return {{value.at("seconds"), value.at("context"), value.at("machine")}, value.at("extra")};
  }
  const FormatTimes times = measure(desk, runners, formats);
  journal.keep(name, to_json(times).dump());
  return times;
}

std::vector<FormatSpec> formats_of(const Desk& desk, const SensitivityTable& table) {
  std::vector<FormatSpec> formats;
  for (size_t g = 0; g < table.groups.size(); ++g)
    for (const Option& o : table.groups[g].options)
      if (std::find(formats.begin(), formats.end(), o.format) == formats.end() &&
          o.format != desk.source.format(desk.groups[g].linears.front()))
        formats.push_back(o.format);
  return formats;
}

std::optional<FormatTimes> times_of(const Desk& desk, const Runner& reference, const SensitivityTable& table) {
  if (!table.decode || table.decode->machine != machine_of(desk, reference) ||
      table.decode->context != decode_context(desk))
    return std::nullopt;
  FormatTimes times{*table.decode, {}};
  for (const Group& g : table.groups)  // The kind's time is the sum over its groups in the table.
    for (const Option& o : g.options) times.extra[kind_of(g.name)][to_string(o.format)] += o.seconds;
  return times;
}

void put_times(const FormatTimes& times, SensitivityTable& table) {
  std::map<std::string, double> groups;  // the number of groups of a kind in the table
  for (const Group& g : table.groups) ++groups[kind_of(g.name)];
  for (Group& g : table.groups)
    for (Option& o : g.options) {
      const auto kind = times.extra.find(kind_of(g.name));
      check(kind != times.extra.end() && kind->second.contains(to_string(o.format)), "{} in {} was not timed", g.name,
            to_string(o.format));
      o.seconds = kind->second.at(to_string(o.format)) / groups[kind->first];
    }
  table.decode = times.decode;
}

}  // namespace fidelio
