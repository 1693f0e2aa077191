// serve: files of this folder that are part of the program.
#pragma once
#include <string_view>

namespace fidelio::serve {

extern const std::string_view page_html;     // the chat page
extern const std::string_view openapi_json;  // what the server takes and gives

}  // namespace fidelio::serve
