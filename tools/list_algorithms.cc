// Prints every algorithm there is: name, a tab, summary; below it each option with its default, the
// values that it takes and what it means.
#include <iostream>

#include "algorithms/algorithm.h"

int main() {
  for (const auto& entry : pelton::AlgorithmRegistry::Get().List()) {
    std::cout << entry.name << "\t" << entry.summary << "\n";
    const auto description = pelton::DescriptionOf(entry.name);
    if (!description.ok()) {
      std::cerr << entry.name << ": " << description.status() << "\n";
      return 1;
    }
    for (const pelton::OptionDescription& option : description->options) {
      std::cout << "\t" << option.name << " = " << option.default_value << " (" << option.values
                << "): " << option.meaning << "\n";
    }
  }
  return 0;
}
