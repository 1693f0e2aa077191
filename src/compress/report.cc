#include "compress/report.h"

#include <nlohmann/json.hpp>

namespace fidelio {
namespace {

nlohmann::json seconds_json(Seconds s) { return {{"wall", s.wall}, {"cpu", s.cpu}}; }

nlohmann::json made_json(const SensitivityTable& table, const MadeCheckpoint& made) {
  nlohmann::json json = {{"output", made.output},
                         {"file_bytes", made.file_bytes},
                         {"source_file_bytes", made.source_file_bytes},
                         {"parameters", made.parameters},
                         {"bits_per_parameter", made.bits_per_parameter()},
                         {"certificate", to_json(made.certificate)},
                         {"beside", made.beside}};
  if (made.plan) json["plan"] = to_json(table, *made.plan);
  if (made.rate) json["rate"] = to_json(*made.rate);
  for (const auto& [name, spent] : made.seconds) json["seconds"][name] = seconds_json(spent);
  if (made.gpu_bytes_highest) json["gpu_bytes_highest"] = *made.gpu_bytes_highest;
  return json;
}

}  // namespace

nlohmann::json to_json(const CompressReport& report) {
  if (report.made.size() == 1) return made_json(report.table, report.made.front());
  nlohmann::json targets = nlohmann::json::array();
  for (const MadeCheckpoint& made : report.made) targets.push_back(made_json(report.table, made));
  return {{"targets", targets}};
}

nlohmann::json to_json(const ForeseenMemory& memory) {
  nlohmann::json rows = nlohmann::json::array();
  for (const MemoryNeed& need : memory.parts) rows.push_back({{"what", need.what}, {"bytes", need.bytes}});
  nlohmann::json json = {{"parts", rows}, {"bytes", total(memory.parts)}};
  if (memory.available) json["available_bytes"] = *memory.available;
  return json;
}

nlohmann::json to_json(const Foreseen& foreseen) {
  const TimeNeed& time = foreseen.time;
  nlohmann::json json = {{"memory", to_json(foreseen.memory)},
                         {"disk_bytes", foreseen.disk_bytes},
                         {"seconds",
                          {{"candidates", seconds_json(time.candidates)},
                           {"sensitivities", seconds_json(time.sensitivities)},
                           {"search", seconds_json(time.search)},
                           {"search_at_most", seconds_json(time.search_at_most)},
                           {"total", seconds_json(time.total())}}}};
  if (foreseen.gpu_memory) json["gpu_memory"] = to_json(*foreseen.gpu_memory);
  return json;
}

}  // namespace fidelio
