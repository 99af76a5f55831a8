// Reading the options.
#include "stopwatch/row_options.hpp"

#include <cstdlib>

namespace aperture::bench {

const char kRowOptionsUsage[] =
    "      --only LIST      measures by name, name/size or glob, comma-separated\n"
    "      --seconds S      time per measure (default 0.3)\n"
    "      --count N        exactly so many operations per measure instead\n"
    "      --timeout S      a measure is given up after this (default 15), an operation after a\n"
    "                       fifth of it\n"
    "      --cpus A,B       CPUs to be pinned to (default 0,1; '-' for none)\n"
    "      --json           one JSON object per line\n"
    "      --list           the measures, and stop\n";

std::vector<option> with_row_options(std::vector<option> own) {
  const option all[] = {{"only", required_argument, nullptr, 'o'},
                        {"seconds", required_argument, nullptr, 's'},
                        {"count", required_argument, nullptr, 'n'},
                        {"timeout", required_argument, nullptr, 't'},
                        {"cpus", required_argument, nullptr, 'c'},
                        {"json", no_argument, nullptr, 'j'},
                        {"list", no_argument, nullptr, 'l'},
                        {"help", no_argument, nullptr, 'h'},
                        {nullptr, 0, nullptr, 0}};
  own.insert(own.end(), std::begin(all), std::end(all));
  return own;
}

bool take_row_option(int letter, const char* value, RowOptions& options) {
  switch (letter) {
    case 'o': options.only = value; return true;
    case 's': return (options.extent.seconds = std::atof(value)) > 0;
    case 'n': return (options.extent.count = std::strtoull(value, nullptr, 10)) > 0;
    case 't': return (options.pair.timeout_s = std::atof(value)) > 0;
    case 'c': return parse_cpus(value, options.pair.cpus);
    case 'j': options.pair.format = Format::json; return true;
    case 'l': options.list = true; return true;
    default: return false;
  }
}

}  // namespace aperture::bench
