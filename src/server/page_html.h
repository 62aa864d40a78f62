// The text of the page at /.
#pragma once

#include <string_view>

namespace carpool {

std::string_view PageHtml();

}  // namespace carpool
