"""C++ code for a .proto file: its messages, and the services in it for gRPC."""

load("//bazel:cc.bzl", "cc_library")

def cc_grpc_library(name, src, imports = [], deps = [], visibility = None):
    """One cc_library with the messages and services of one .proto file.

    Args:
      name: of the library. Include "<package>/<file>.pb.h" and "<package>/<file>.grpc.pb.h".
      src: the .proto file, in this package.
      imports: the .proto files of this package that it imports.
      deps: the libraries of those.
      visibility: of the library; the package's default when absent.
    """
    stem = src[:-len(".proto")]
    headers = [stem + ".pb.h", stem + ".grpc.pb.h"]
    sources = [stem + ".pb.cc", stem + ".grpc.pb.cc"]

    # As a dependency of another workspace our files lie under external/.
    repository = native.repository_name()[1:]
    root = "external/" + repository if repository else "."
    native.genrule(
        name = name + "_generated",
        srcs = [src] + imports,
        outs = headers + sources,
        cmd = " ".join([
            "$(location @com_google_protobuf//:protoc) -I{0} --cpp_out=$(GENDIR)/{0} --grpc_out=$(GENDIR)/{0}".format(root),
            "--plugin=protoc-gen-grpc=$(location @com_github_grpc_grpc//:grpc_cpp_plugin) $(location {})".format(src),
        ]),
        tools = [
            "@com_github_grpc_grpc//:grpc_cpp_plugin",
            "@com_google_protobuf//:protoc",
        ],
        visibility = ["//visibility:private"],
    )
    cc_library(
        name = name,
        srcs = sources,
        hdrs = headers,
        visibility = visibility,
        deps = deps + [
            "@com_github_grpc_grpc//:grpc++",
            "@com_google_protobuf//:protobuf",
        ],
    )
