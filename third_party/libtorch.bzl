"""Repository rule for LibTorch: headers, libraries, and what it takes to link them."""

load(
    "//third_party:environment.bzl",
    "CPU_CONFIG_SETTING",
    "ENVIRONMENT_VARIABLES",
    "find_libtorch",
    "wanted_libtorch",
)
load("//third_party:system_library.bzl", "find_header", "write_stamp")

_VERSION_HEADERS = [
    "include/torch/headeronly/version.h",
    "include/torch/csrc/api/include/torch/version.h",
]

def _read_version(repository_ctx, root):
    """Returns the "major.minor" of a LibTorch folder, or None."""
    for header in _VERSION_HEADERS:
        path = repository_ctx.path("%s/%s" % (root, header))
        if not path.exists:
            continue
        parts = {}
        for line in repository_ctx.read(path).split("\n"):
            words = line.split(" ")
            if len(words) == 3 and words[0] == "#define" and words[1].startswith("TORCH_VERSION_"):
                parts[words[1]] = words[2]
        if "TORCH_VERSION_MAJOR" in parts and "TORCH_VERSION_MINOR" in parts:
            return "%s.%s" % (parts["TORCH_VERSION_MAJOR"], parts["TORCH_VERSION_MINOR"])
    return None

def _problem(repository_ctx, root, found_by):
    """Returns the sentence that says why this LibTorch cannot be used, or None if it can."""
    wanted = wanted_libtorch(repository_ctx)
    advice = " Start the build through ./bazelw, which installs it, or set REPRISE_LIBTORCH."
    if not root:
        return "LibTorch %s was not found (tried %s)." % (wanted, found_by) + advice
    version = _read_version(repository_ctx, root)
    if not version or not repository_ctx.path("%s/lib/libtorch_cpu.so" % root).exists:
        return "%s (from %s) is not a LibTorch folder with include/ and lib/." % (root, found_by) + advice
    if version != wanted:
        return "LibTorch must be %s: %s (from %s) is %s." % (wanted, root, found_by, version) + advice + (
            " REPRISE_LIBTORCH_VERSION asks for another version."
        )
    return None

_HEADERS = """
cc_library(
    name = "headers",
    hdrs = glob(
        [
            "include/ATen/**",
            "include/c10/**",
            "include/caffe2/**",
            "include/torch/**",
        ],
        # Half of all files, and only for those who write operators of LibTorch itself.
        exclude = [
            "include/ATen/ops/*_dispatch.h",
            "include/ATen/ops/*_meta.h",
            "include/ATen/ops/*_native.h",
        ],
    ),
    # Without it LibTorch's LOG and CHECK would clash with glog's.
    defines = ["C10_USE_GLOG"],
    includes = [
        "include",
        "include/torch/csrc/api/include",
    ],
    deps = ["@com_github_google_glog//:glog"],
)
"""

def _library(name, root, libraries, defines, deps):
    """Returns the BUILD text of a target that links the given libraries of LibTorch."""
    linkopts = (
        # Real paths: through Bazel's symlinks the libraries would not find those beside them.
        # RUNPATH, so that LD_LIBRARY_PATH can point the same binary to a LibTorch elsewhere.
        ["-L%s/lib" % root, "-Wl,-rpath,%s/lib" % root, "-Wl,--enable-new-dtags"] +
        # libtorch_cuda registers itself from static constructors: nothing refers to it.
        # libstdc++ comes first: LibTorch exports parts of an older one, std::filesystem among them, whose
        # remove_all() crashes when a program's call is bound to it.
        ["-Wl,--push-state,--no-as-needed", "-lstdc++"] + ["-l" + lib for lib in libraries] + ["-Wl,--pop-state"] +
        # For base/parallel/parallel_for.cc, and for sources that are compiled with g++'s -fopenmp.
        ["-Wl,--push-state,--as-needed", "-l:libgomp.so.1", "-Wl,--pop-state"] +
        ["-Wl,--allow-shlib-undefined"]
    )
    return """
system_cc_library(
    name = %r,
    defines = %r,
    linkopts = %r,
    stamp = "stamp",
    deps = %r,
)
""" % (name, defines, linkopts, [":headers"] + deps)

def _has_gloo(repository_ctx, root):
    """Whether this LibTorch has its process groups over gloo, and this machine the headers that they include."""
    found = repository_ctx.execute(["grep", "-q", "ProcessGroupGlooC1", "%s/lib/libtorch_cpu.so" % root])
    return found.return_code == 0 and find_header(repository_ctx, "gloo/context.h") != None

def _libtorch_impl(repository_ctx):
    root, found_by = find_libtorch(repository_ctx)
    problem = _problem(repository_ctx, root, found_by)
    repository_ctx.symlink(repository_ctx.attr._rule, "system_cc_library.bzl")
    build = """
load(":system_cc_library.bzl", "missing_library", "system_cc_library")
load("@reprise_rules//:cc.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])
""" + CPU_CONFIG_SETTING + """
alias(
    name = "torch",
    actual = select({
        ":cpu": ":torch_cpu",
        "//conditions:default": ":torch_cuda",
    }),
)
"""
    has_cuda = False
    build += """
# LibTorch with its process groups: REPRISE_WITH_C10D tells whether they are there.
cc_library(
    name = "c10d",
    defines = %r,
    deps = [":torch"],
)
""" % (["REPRISE_WITH_C10D=1"] if not problem and _has_gloo(repository_ctx, root) else [])
    if problem:
        build += "missing_library(name = \"torch_cpu\", message = %r)\n" % problem
    else:
        has_cuda = repository_ctx.path("%s/lib/libtorch_cuda.so" % root).exists
        write_stamp(repository_ctx, ["%s/lib/libtorch_cpu.so" % root])
        repository_ctx.symlink("%s/include" % root, "include")
        build += _HEADERS + _library("torch_cpu", root, ["torch_cpu", "c10"], [], [])
    if has_cuda:
        build += _library(
            "torch_cuda",
            root,
            ["torch", "torch_cpu", "torch_cuda", "c10", "c10_cuda"],
            ["C10_CUDA_NO_CMAKE_CONFIGURE_FILE"],
            ["@cuda//:headers"],
        )
    else:
        build += "missing_library(name = \"torch_cuda\", message = %r)\n" % (
            problem or ("The LibTorch in %s has no CUDA: build with --config=cpu, or let ./bazelw install one " +
                        "that has (REPRISE_DEVICE=cuda).") % root
        )
    repository_ctx.file("BUILD", build, executable = False)

system_libtorch = repository_rule(
    implementation = _libtorch_impl,
    attrs = {
        "_requirements": attr.label(default = "//third_party:requirements.txt"),
        "_rule": attr.label(default = "//third_party:system_cc_library.bzl"),
    },
    configure = True,
    environ = ENVIRONMENT_VARIABLES,
    local = True,
)
