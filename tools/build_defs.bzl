"""The rules that the BUILD files of Reprise use in place of the native ones.

They carry the compiler options themselves, because .bazelrc does not reach the workspaces that take
Reprise as an external repository.
"""

load("@reprise_rules//:cc.bzl", "cc_binary", "cc_library", "cc_test")
load("//tools:cuda.bzl", "cuda_objects")
load("//tools:include_paths.bzl", "include_paths")
load("//tools:precompiled.bzl", "OPTIONS_ID", "precompiled_flags")

# With AT_PER_OPERATOR_HEADERS ATen/TensorOperators.h does not include every operator of LibTorch: a file that has it
# compiles in two thirds of the time.
PROJECT_COPTS = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-DAT_PER_OPERATOR_HEADERS"]

# The code of tests runs once and is compiled often: -O1 takes a quarter less time than -O2. (-Og takes less, and takes
# an absent std::optional<at::Tensor> for one without a value.)
_TEST_COPTS = PROJECT_COPTS + ["-O1"]

# For files in which GCC finds an uninitialised value that there is not. clang has no such warning.
NO_MAYBE_UNINITIALIZED = ["-Wno-unknown-warning-option", "-Wno-maybe-uninitialized"]

# In the workspace of an embedder, labels in macros would be looked up there.
_CPU = str(Label("//tools:cpu"))

def _unless_cpu(value, otherwise = []):
    return select({
        _CPU: otherwise,
        "//conditions:default": value,
    })

# --define=reprise_precompiled=no
_NOT_PRECOMPILED = str(Label("//tools/precompiled:off"))

_STATUS_MACROS = str(Label("//base:status_macros"))

# Nearly every unit uses Status and its macros, StrCat and spans.
_VOCABULARY = [
    "@com_google_absl//absl/status",
    "@com_google_absl//absl/status:statusor",
    "@com_google_absl//absl/strings",
    "@com_google_absl//absl/types:span",
    _STATUS_MACROS,
]

# Where headers are included as "reprise/ROOM/x.h", those below examples/ without that folder: "reprise/hf/weights.h".
_ROOMS = [
    "attention/",
    "base/",
    "cache/",
    "distributed/",
    "engine/",
    "examples/hf/",
    "examples/models/",
    "graphs/",
    "runner/",
]

def _include_paths(name, files, testonly):
    """Returns the deps that give the headers among `files` their include paths: none outside of Reprise's rooms."""
    headers = [file for file in files if file.endswith(".h") or file.endswith(".cuh") or file.endswith(".inc")]
    for header in headers:
        # The header's own package has a link to the header too. The compiler may find that link first, and Bazel then
        # reports an undeclared inclusion.
        if "//" in header:
            fail("%s names a header of another package, %s: name a target of that package in deps" % (name, header))
    is_ours = native.repository_name().lstrip("@") == Label("//tools:cpu").workspace_name
    in_room = [room for room in _ROOMS if (native.package_name() + "/").startswith(room)]
    if not (headers and is_ours and in_room):
        return []
    include_paths(
        name = name + "_include_paths",
        headers = depset(headers).to_list(),
        tags = ["manual"],
        testonly = testonly,
        visibility = ["//visibility:private"],
    )
    return [":%s_include_paths" % name]

def _precompiled(name, copts, deps, testonly):
    """Returns the copts and deps by which a target takes a precompiled header: both empty where it takes none.

    A target with copts other than warnings takes none: compilers refuse a header that was compiled with other options.
    Embedders' workspaces take none, because their compilers and options have not been tried.
    """
    only_warnings = type(copts) == "list" and not [copt for copt in copts if not copt.startswith("-W")]
    if not only_warnings or Label("//tools:cpu").workspace_name:
        return [], []
    flags = name + "_precompiled_flags"
    out = flags + "_" + OPTIONS_ID + ".txt"
    precompiled_flags(
        name = flags,
        out = out,
        tags = ["manual"],
        testonly = testonly,
        visibility = ["//visibility:private"],
        deps = deps,
    )
    path = "/".join([part for part in ["$(BINDIR)", native.package_name(), out] if part])
    return (
        select({_NOT_PRECOMPILED: [], "//conditions:default": ["@" + path]}),
        select({_NOT_PRECOMPILED: [], "//conditions:default": [":" + flags]}),
    )

def _without(deps, extra):
    """Returns the labels of `extra` that are not in `deps`. Drops base:status_macros for package base: it would be a cycle."""
    own = _STATUS_MACROS if native.package_name() == "base" else None
    return [dep for dep in extra if dep != own and (type(deps) != "list" or dep not in deps)]

def reprise_cc_library(name, srcs = None, hdrs = None, copts = [], deps = [], needs_cuda = False, **kwargs):
    """cc_library with the project's compiler options; always static.

    Args:
      name: of the target, and by default of its files: `<name>.h`, `<name>_args.h` and `<name>.cc`,
        as far as they exist.
      srcs: where they have other names.
      hdrs: likewise.
      copts: added to the project's.
      deps: added to Abseil's Status, StatusOr, strings and Span, and to //base:status_macros.
      needs_cuda: whether its sources include headers of CUDA, or call what does. Under --config=cpu, where
        there may be none, it is a library with headers only, for GPU tests, which are empty there.
      **kwargs: as in cc_library.
    """
    if hdrs == None:
        hdrs = native.glob([name + ".h", name + "_args.h"])
    if srcs == None:
        srcs = native.glob([name + ".cc"])
    headers = hdrs + kwargs.get("textual_hdrs", []) + srcs
    testonly = kwargs.get("testonly", False)
    deps = deps + _include_paths(name, headers, testonly)
    deps = deps + _without(deps, _VOCABULARY)
    precompiled_copts, precompiled_deps = _precompiled(name, copts, deps, kwargs.get("testonly")) if srcs else ([], [])
    if needs_cuda:
        srcs = _unless_cpu(srcs)
    cc_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        copts = PROJECT_COPTS + copts + precompiled_copts,
        linkstatic = True,
        deps = deps + precompiled_deps,
        **kwargs
    )

def reprise_headers():
    """The headers of a room, for the test that compiles all of them together (//tests/house)."""
    native.filegroup(
        name = "headers",
        srcs = native.glob(["*.h"]),
        visibility = ["//tests/house:__pkg__"],
    )
    include_paths(
        name = "headers_include_paths",
        folder = "_include_all",
        headers = [":headers"],
        visibility = ["//tests/house:__pkg__"],
    )

def reprise_unit(
        name,
        deps = [],
        cuda_deps = [],
        cuda_srcs = None,
        archs = None,
        line_info = True,
        nvcc_copts = [],
        testonly = False,
        visibility = None,
        **kwargs):
    """An operation with a host and a device form: libraries `<name>` and `<name>_cuda`.

    `<name>.h` is the contract of both, with the launcher of the device form; `<name>_args.h` holds what
    host and device share. `<name>` is made of them and of `<name>.cc`, and needs no CUDA; `<name>_cuda`
    adds `<name>.cu`, and is empty under --config=cpu.

    Args:
      name: of the unit.
      deps: as in reprise_cc_library.
      cuda_deps: of the device form, besides the host form.
      cuda_srcs: where the device form has more, or other, files than `<name>.cu`.
      archs: as in reprise_cuda_library.
      line_info: likewise.
      nvcc_copts: likewise.
      testonly: of both.
      visibility: of both.
      **kwargs: of the host form, as in reprise_cc_library.
    """
    reprise_cc_library(
        name = name,
        testonly = testonly,
        visibility = visibility,
        deps = deps,
        **kwargs
    )
    reprise_cuda_library(
        name = name + "_cuda",
        srcs = cuda_srcs or [name + ".cu"],
        archs = archs,
        line_info = line_info,
        nvcc_copts = nvcc_copts,
        testonly = testonly,
        visibility = visibility,
        deps = [":" + name] + cuda_deps,
    )

def reprise_cc_binary(name, copts = [], deps = [], **kwargs):
    """cc_binary with the project's compiler options."""
    deps = deps + _without(deps, _VOCABULARY)
    precompiled_copts, precompiled_deps = _precompiled(name, copts, deps, kwargs.get("testonly"))
    cc_binary(
        name = name,
        copts = PROJECT_COPTS + copts + precompiled_copts,
        deps = deps + precompiled_deps,
        **kwargs
    )

def _with_test_main(deps):
    """Adds the vocabulary, and gtest's main to a list of deps that names neither it nor gtest alone."""
    deps = deps + _without(deps, _VOCABULARY)
    if type(deps) == "list" and [d for d in deps if d.startswith("@com_google_googletest//")]:
        return deps
    return deps + ["@com_google_googletest//:gtest_main"]

def reprise_cc_test(name, srcs, copts = [], deps = [], size = "small", **kwargs):
    """cc_test with the project's compiler options, gtest, gmock and their main.

    Args:
      name: of the target.
      srcs: the sources. Required: a test without any passes.
      copts: added to the project's.
      deps: a test that brings its own main names "@com_google_googletest//:gtest".
      size: as in cc_test.
      **kwargs: as in cc_test.
    """
    deps = _with_test_main(deps)
    precompiled_copts, precompiled_deps = _precompiled(name, copts, deps, testonly = True)
    cc_test(
        name = name,
        srcs = srcs,
        copts = _TEST_COPTS + copts + precompiled_copts,
        deps = deps + precompiled_deps,
        # The libraries below are static, and flags may be defined once only in a process.
        linkstatic = True,
        size = size,
        **kwargs
    )

def reprise_cuda_library(
        name,
        srcs = [],
        hdrs = [],
        textual_hdrs = [],
        deps = [],
        kernel_deps = [],
        archs = None,
        line_info = True,
        nvcc_copts = [],
        copts = [],
        **kwargs):
    """A library with CUDA sources. Each .cu is compiled by nvcc in an action of its own.

    Under --config=cpu it is a library with headers only. Otherwise it defines REPRISE_WITH_CUDA=1,
    also for whatever depends on it.

    Args:
      name: of the target.
      srcs: .cu; also .cc, compiled by the host's compiler, and private headers (.h, .cuh). Dependents
        do not see a private .cuh, so none is compiled again when it changes; kernels elsewhere that
        include it name `<name>_device_headers` in their kernel_deps.
      hdrs: headers (.h, .cuh) that other targets may include.
      textual_hdrs: headers that are no translation unit of their own.
      deps: added to the CUDA headers and //base:status_macros.
      kernel_deps: what only the .cu files include.
      archs: what to compile for, by default DEFAULT_ARCHS of cuda.bzl, or what
        --define=reprise_cuda_archs names. "90a" is machine code for
        that architecture only; "80+ptx" is machine code, and PTX for all newer ones.
      line_info: whether profilers find the source lines; without it objects are half as large.
      nvcc_copts: options for nvcc, added to the project's.
      copts: options for the host's compiler, for the .cc.
      **kwargs: as in cc_library.
    """
    device_headers = [src for src in srcs if src.endswith(".cuh")]
    headers = device_headers + [src for src in srcs if src.endswith(".h")]
    cuda_srcs = [src for src in srcs if src.endswith(".cu")]
    host_srcs = [src for src in srcs if not src.endswith(".cu") and not src.endswith(".cuh")]
    testonly = kwargs.get("testonly", False)
    objects = name + "_cuda_objects"
    deps = deps + _without(deps, ["@cuda//:headers", "@cuda//:cudart", _STATUS_MACROS])
    deps = deps + _include_paths(name, hdrs + textual_hdrs + host_srcs, testonly)
    kernel_deps = kernel_deps + _include_paths(name + "_device_headers", device_headers, testonly)
    cuda_objects(
        name = objects,
        srcs = cuda_srcs,
        hdrs = headers + hdrs + textual_hdrs,
        archs = archs,
        line_info = line_info,
        nvcc_copts = nvcc_copts,
        tags = ["manual"],
        testonly = testonly,
        visibility = ["//visibility:private"],
        deps = deps + kernel_deps,
    )
    cc_library(
        name = name + "_device_headers",
        textual_hdrs = device_headers,
        tags = ["manual"],
        testonly = testonly,
        deps = deps + kernel_deps,
    )
    cc_library(
        name = name,
        srcs = host_srcs + _unless_cpu([":" + objects]),
        hdrs = hdrs,
        copts = PROJECT_COPTS + copts,
        defines = _unless_cpu(["REPRISE_WITH_CUDA=1"]),
        linkstatic = True,
        textual_hdrs = textual_hdrs,
        deps = deps,
        **kwargs
    )

def reprise_gpu_test(name, srcs, deps = [], copts = [], tags = [], size = "medium", **kwargs):
    """A test that needs a GPU: a library `<name>_lib` and the test `<name>` made of it.

    The libraries of all GPU tests together make //tests:gpu_all, the one file that is carried to a
    machine with a GPU. Under --config=cpu there is nothing in them. A test looks for a GPU itself and
    skips, with the reason, where there is none.

    Args:
      name: of the test.
      srcs: .cc only; kernels of a test go into a reprise_cuda_library.
      deps: as in cc_library.
      copts: added to the project's.
      tags: added to "requires-gpu".
      size: as in cc_test.
      **kwargs: as in cc_test, for example data.
    """
    library = name + "_lib"
    tags = ["requires-gpu"] + tags
    deps = deps + _without(deps, _VOCABULARY + ["@com_google_googletest//:gtest"])
    precompiled_copts, precompiled_deps = _precompiled(library, copts, deps, testonly = True)
    cc_library(
        name = library,
        testonly = True,
        srcs = _unless_cpu(srcs),
        copts = _TEST_COPTS + copts + precompiled_copts,
        linkstatic = True,
        tags = tags,
        visibility = ["//visibility:public"],
        deps = deps + precompiled_deps,
        data = kwargs.pop("data", []),
        alwayslink = True,
    )
    cc_test(
        name = name,
        deps = [":" + library, "@com_google_googletest//:gtest_main"],
        linkstatic = True,
        size = size,
        tags = tags,
        **kwargs
    )

def reprise_gpu_test_binary(name, tests, **kwargs):
    """One binary with the cases of many GPU tests, to be carried to a machine with a GPU.

    Args:
      name: of the target.
      tests: labels of reprise_gpu_test targets.
      **kwargs: as in cc_test.
    """
    libraries = []
    for test in tests:
        # "//folder" means "//folder:folder".
        full = test if ":" in test else "%s:%s" % (test, test.split("/")[-1])
        libraries.append(full + "_lib")
    cc_binary(
        name = name,
        testonly = True,
        deps = libraries + ["@com_google_googletest//:gtest_main"],
        **kwargs
    )

def reprise_fuzz_test(name, srcs, seeds = [], deps = [], copts = [], tags = [], size = "medium", **kwargs):
    """A fuzz test: srcs define LLVMFuzzerTestOneInput.

    In an ordinary run it goes through its seeds, whole, cut short and with bytes changed, each seed a test
    case. With `--config=fuzz` (clang) libFuzzer runs it for a minute, from the same seeds.

    Args:
      name: of the target.
      srcs: the sources.
      seeds: files, as labels (a glob does).
      deps: as in cc_test.
      copts: added to the project's.
      tags: added to "fuzz".
      size: as in cc_test.
      **kwargs: as in cc_test.
    """
    libfuzzer = str(Label("//tools/fuzzing:libfuzzer"))
    cc_test(
        name = name,
        srcs = srcs,
        args = ["$(rootpath %s)" % seed for seed in seeds],
        copts = _TEST_COPTS + copts,
        data = seeds,
        linkopts = select({
            libfuzzer: ["-fsanitize=fuzzer"],
            "//conditions:default": [],
        }),
        linkstatic = True,
        size = size,
        tags = ["fuzz"] + tags,
        deps = deps + select({
            libfuzzer: [str(Label("//tools/fuzzing:libfuzzer_options"))],
            "//conditions:default": [str(Label("//tools/fuzzing:replay_seeds"))],
        }),
        **kwargs
    )
