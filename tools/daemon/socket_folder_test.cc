#include "tools/daemon/socket_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace pelton {
namespace {

std::string FreshFolder(const std::string& name) {
  std::string pattern = testing::TempDir() + "/" + name + "-XXXXXX";
  EXPECT_NE(mkdtemp(pattern.data()), nullptr);
  return pattern;
}

TEST(SocketFolderTest, MakesAFolderOfItsUserAlone) {
  const std::string folder = FreshFolder("made") + "/inner";
  ASSERT_TRUE(PrepareSocketFolder(folder + "/socket").ok());
  struct stat found;
  ASSERT_EQ(stat(folder.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700u);
  EXPECT_TRUE(PrepareSocketFolder(folder + "/socket").ok());
}

TEST(SocketFolderTest, RefusesAFolderThatOthersMayEnterAndSaysWhatToDo) {
  const std::string folder = FreshFolder("open");
  ASSERT_EQ(chmod(folder.c_str(), 0755), 0);
  const absl::Status refused = PrepareSocketFolder(folder + "/socket");
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_NE(refused.message().find("chmod 700"), absl::string_view::npos) << refused;
}

TEST(SocketFolderTest, IsRemovedWithWhatTrainersLeftAndWithNothingElse) {
  const std::string folder = FreshFolder("left");
  for (const char* name : {"/stack-4711", "/0.lock", "/letter"})
    std::ofstream(folder + name) << "x";
  struct stat found;
  RemoveSocketFolder(folder + "/0");
  EXPECT_EQ(stat((folder + "/stack-4711").c_str(), &found), 0);
  unlink((folder + "/letter").c_str());
  RemoveSocketFolder(folder + "/0");
  EXPECT_NE(stat(folder.c_str(), &found), 0);
}

TEST(SocketFolderTest, NamesWhatIsMissing) {
  EXPECT_TRUE(absl::IsNotFound(PrepareSocketFolder("/nowhere/at/all/socket")));
}

}  // namespace
}  // namespace pelton
