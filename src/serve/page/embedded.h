// This file declares the files of this folder that are embedded in the program.
#pragma once
#include <string_view>

namespace fidelio::serve {

extern const std::string_view page_html;     // This is the chat page.
extern const std::string_view openapi_json;  // It describes the requests and answers of the server.

}  // namespace fidelio::serve
