"""The libraries that Reprise builds upon, each under its canonical repository name.

An embedder calls reprise_dependencies() from its WORKSPACE after declaring those that it brings
itself: a name that is already taken is left alone.
"""

load("//third_party:absl.bzl", "system_absl")
load("//third_party:cuda.bzl", "system_cuda")
load("//third_party:libtorch.bzl", "system_libtorch")
load("//third_party:system_library.bzl", "system_library")

def _maybe(rule, name, **kwargs):
    if not native.existing_rule(name):
        rule(name = name, **kwargs)

def reprise_dependencies():
    """Declares every third-party repository that is not declared yet."""
    _maybe(system_absl, name = "com_google_absl")
    _maybe(system_cuda, name = "cuda")
    _maybe(system_libtorch, name = "libtorch")
    _maybe(
        system_library,
        name = "com_github_google_glog",
        debian_package = "libgoogle-glog-dev",
        header = "glog/logging.h",
        # The static glog does not link into position independent executables (libunwind).
        targets = {"glog": "-lglog"},
    )
    _maybe(
        system_library,
        name = "com_google_googletest",
        debian_package = "libgtest-dev libgmock-dev",
        header = "gmock/gmock.h",
        # Static: LibTorch exports symbols of a gtest of its own.
        targets = {
            "gtest": "-l:libgmock.a -l:libgtest.a -lpthread",
            "gtest_main": "-l:libgmock_main.a -l:libgmock.a -l:libgtest.a -lpthread",
        },
    )
    _maybe(
        system_library,
        name = "com_github_google_benchmark",
        debian_package = "libbenchmark-dev",
        header = "benchmark/benchmark.h",
        targets = {
            "benchmark": "-lbenchmark -lpthread",
            "benchmark_main": "-lbenchmark_main -lbenchmark -lpthread",
        },
    )
    _maybe(
        system_library,
        name = "com_github_nlohmann_json",
        debian_package = "nlohmann-json3-dev",
        header = "nlohmann/json.hpp",
        targets = {"json": ""},
    )
    _maybe(
        system_library,
        name = "cli11",
        debian_package = "libcli11-dev",
        header = "CLI/CLI.hpp",
        targets = {"cli11": ""},
    )
    _maybe(
        system_library,
        name = "pcre2",
        debian_package = "libpcre2-dev",
        header = "pcre2.h",
        targets = {"pcre2": "-l:libpcre2-8.a"},
    )
    _maybe(
        system_library,
        name = "utf8proc",
        debian_package = "libutf8proc-dev",
        header = "utf8proc.h",
        targets = {"utf8proc": "-l:libutf8proc.a"},
    )
