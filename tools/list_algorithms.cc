// Prints every algorithm there is: name, a tab, summary.
#include <iostream>

#include "algorithms/algorithm.h"

int main() {
  for (const auto& entry : pelton::AlgorithmRegistry::Get().List()) {
    std::cout << entry.name << "\t" << entry.summary << "\n";
  }
  return 0;
}
