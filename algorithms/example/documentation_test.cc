#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.is_open()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(AddingAnAlgorithmTest, TheDocumentShowsTheFileThatIsCompiled) {
  const std::string example = TextOf("algorithms/example/elementwise_max.cc");
  EXPECT_FALSE(example.empty());
  EXPECT_TRUE(
      absl::StrContains(TextOf("docs/adding_an_algorithm.md"), "```cpp\n" + example + "```\n"))
      << "docs/adding_an_algorithm.md and algorithms/example/elementwise_max.cc differ";
}

}  // namespace
}  // namespace pelton
