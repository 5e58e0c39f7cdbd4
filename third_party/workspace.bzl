"""Everything outside this repository that Pelton's packages name.

The system's packages stand in for the upstream repositories under the upstream labels, so that BUILD files
need no change on a machine that fetches them from the network.
"""

load("//third_party:absl.bzl", "ABSL_TARGETS")
load("//third_party:optional_library.bzl", "optional_library_repository")
load("//third_party:repositories.bzl", "cuda_repository", "pkg_config_repository", "python_torch_repository", "static_archives_repository")

def pelton_dependencies(root = ""):
    """Declares the external repositories.

    Args:
      root: path of the Pelton checkout, ending in "/"; empty in Pelton's own WORKSPACE.
    """
    native.local_repository(name = "rules_cc", path = root + "third_party/rules_cc")
    native.local_repository(name = "remote_coverage_tools", path = root + "third_party/coverage_tools")
    native.local_repository(name = "platforms", path = "/usr/share/bazel/platforms")
    native.local_repository(name = "rules_java", path = "/usr/share/bazel/rules/java")
    native.local_repository(name = "rules_proto", path = "/usr/share/bazel/rules/proto")
    pkg_config_repository(name = "com_google_absl", targets = ABSL_TARGETS)
    pkg_config_repository(
        name = "com_google_protobuf",
        targets = {"//:protobuf": "protobuf"},
        tools = ["protoc"],
    )
    pkg_config_repository(
        name = "com_github_grpc_grpc",
        targets = {"//:grpc++": "grpc++ protobuf"},
        tools = ["grpc_cpp_plugin"],
    )
    pkg_config_repository(
        name = "com_google_googletest",
        targets = {"//:gtest": "gtest gmock", "//:gtest_main": "gtest_main gmock"},
    )
    pkg_config_repository(
        name = "com_github_google_benchmark",
        targets = {"//:benchmark": "benchmark", "//:benchmark_main": "benchmark_main benchmark"},
    )
    pkg_config_repository(name = "com_google_highway", targets = {"//:hwy": "libhwy"})
    pkg_config_repository(name = "openssl", targets = {"//:crypto": "libcrypto"})
    python_torch_repository(name = "local_python")
    cuda_repository(name = "local_cuda")
    static_archives_repository(name = "static_archives", modules = ["absl_base"], prefixes = ["libabsl_"])
    optional_library_repository(
        name = "local_caf",
        define = "PELTON_HAS_CAF=1",
        header = "caf/all.hpp",
        library = "caf_core",
    )
