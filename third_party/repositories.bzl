"""The libraries that Reprise builds upon, each under its canonical repository name.

An embedder calls reprise_dependencies() from its WORKSPACE after declaring those that it brings
itself: a name that is already taken is left alone. From MODULE.bazel it uses the module extension of
third_party/extensions.bzl, which declares the same.
"""

load("//third_party:absl.bzl", "system_absl")
load("//third_party:bazel_rules.bzl", "bazel_rules")
load("//third_party:cuda.bzl", "system_cuda")
load("//third_party:libtorch.bzl", "system_libtorch")
load("//third_party:system_library.bzl", "system_library")

def _maybe(rule, name, **kwargs):
    if not native.existing_rule(name):
        rule(name = name, **kwargs)

def _always(rule, name, **kwargs):
    rule(name = name, **kwargs)

def _declare_glog(declare):
    declare(
        system_library,
        name = "com_github_google_glog",
        debian_package = "libgoogle-glog-dev",
        header = "glog/logging.h",
        # The static glog does not link into position independent executables (libunwind).
        targets = {"glog": "-lglog"},
    )

def _declare_libtorch(declare, from_modules):
    declare(bazel_rules, name = "reprise_rules", from_modules = from_modules)
    declare(system_cuda, name = "cuda")
    declare(system_libtorch, name = "libtorch")
    _declare_glog(declare)

def _declare_all(declare, from_modules):
    _declare_libtorch(declare, from_modules)
    declare(system_absl, name = "com_google_absl")
    declare(
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
    declare(
        system_library,
        name = "com_github_google_benchmark",
        debian_package = "libbenchmark-dev",
        header = "benchmark/benchmark.h",
        targets = {
            "benchmark": "-lbenchmark -lpthread",
            "benchmark_main": "-lbenchmark_main -lbenchmark -lpthread",
        },
    )
    declare(
        system_library,
        name = "com_github_nlohmann_json",
        debian_package = "nlohmann-json3-dev",
        header = "nlohmann/json.hpp",
        targets = {"json": ""},
    )
    declare(
        system_library,
        name = "cli11",
        debian_package = "libcli11-dev",
        header = "CLI/CLI.hpp",
        targets = {"cli11": ""},
    )
    declare(
        system_library,
        name = "libedit",
        debian_package = "libedit-dev",
        defines = ["REPRISE_WITH_LIBEDIT=1"],
        header = "histedit.h",
        optional = True,
        targets = {"libedit": "-l:libedit.a -l:libbsd.a -l:libmd.a -l:libtinfo.a"},
    )
    declare(
        system_library,
        name = "pcre2",
        debian_package = "libpcre2-dev",
        header = "pcre2.h",
        targets = {"pcre2": "-l:libpcre2-8.a"},
    )
    declare(
        system_library,
        name = "utf8proc",
        debian_package = "libutf8proc-dev",
        header = "utf8proc.h",
        targets = {"utf8proc": "-l:libutf8proc.a"},
    )

def libtorch_dependencies():
    """Declares LibTorch alone, with what its targets refer to: @libtorch, @cuda and glog."""
    _declare_libtorch(_maybe, from_modules = False)

def reprise_dependencies():
    """Declares every third-party repository that is not declared yet."""
    _declare_all(_maybe, from_modules = False)

def reprise_module_dependencies():
    """Declares all of them, from a module extension."""
    _declare_all(_always, from_modules = True)
