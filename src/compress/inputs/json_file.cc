#include "compress/inputs/json_file.h"

#include "core/file.h"
#include "core/foreign/json.h"

namespace fidelio {

nlohmann::json read_json_file(const std::string& path) { return parse_json(read_text_file(path), path); }

}  // namespace fidelio
