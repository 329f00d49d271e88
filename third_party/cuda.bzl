"""Repository rule for the CUDA toolkit: nvcc, headers, runtime and cuBLASLt.

Looked for in this order: REPRISE_CUDA (a folder with bin/nvcc and include/), the toolkit beside the
LibTorch that is used (as pip installs it), the toolkit whose nvcc is on PATH, /usr/local/cuda.
"""

load("//third_party:environment.bzl", "CPU_CONFIG_SETTING", "ENVIRONMENT_VARIABLES", "find_libtorch")
load("//third_party:system_library.bzl", "write_stamp")

_LIBRARIES = ["cublas", "cublasLt", "cudart", "cupti"]

def _find(repository_ctx):
    """Returns (folder or None, how it was looked for)."""
    environ = repository_ctx.os.environ
    if environ.get("REPRISE_CUDA", ""):
        return repository_ctx.path(environ["REPRISE_CUDA"]), "REPRISE_CUDA"
    libtorch, _ = find_libtorch(repository_ctx)
    if libtorch:
        installed = repository_ctx.path("%s/nvidia/cu13" % libtorch.dirname)
        if installed.get_child("bin").get_child("nvcc").exists:
            return installed, "beside LibTorch"
    nvcc = repository_ctx.which("nvcc")
    if nvcc:
        return nvcc.realpath.dirname.dirname, "nvcc on PATH"
    if repository_ctx.path("/usr/local/cuda/bin/nvcc").exists:
        return repository_ctx.path("/usr/local/cuda"), "/usr/local/cuda"
    return None, "REPRISE_CUDA, beside LibTorch, nvcc on PATH, /usr/local/cuda"

def _existing(repository_ctx, root, children):
    paths = [repository_ctx.path("%s/%s" % (root, child)) for child in children]
    return [path for path in paths if path.exists]

def _shared_library(dirs, name):
    """Returns (folder, file name) of lib<name>.so, or of lib<name>.so.<major>; or None."""
    for folder in dirs:
        versioned = sorted([
            entry.basename
            for entry in folder.readdir()
            if entry.basename.startswith("lib%s.so." % name) and
               entry.basename[len("lib%s.so." % name):].isdigit()
        ])
        if versioned:
            return folder, versioned[-1]
        if folder.get_child("lib%s.so" % name).exists:
            return folder, "lib%s.so" % name
    return None

def _toolkit_major(repository_ctx, root):
    """Returns the major version of a CUDA toolkit, or None."""
    for line in repository_ctx.read("%s/include/cuda_runtime_api.h" % root).split("\n"):
        if line.startswith("#define CUDART_VERSION "):
            return int(line.split(" ")[-1]) // 1000
    return None

def _libtorch_major(repository_ctx):
    """Returns the major version of CUDA that LibTorch was built with, or None if it does not say."""
    libtorch, _ = find_libtorch(repository_ctx)
    if not libtorch:
        return None
    # "2.11.0+cu130": an unpacked LibTorch has it in build-version, a Python's torch in version.py.
    for name in ["build-version", "../build-version", "version.py"]:
        path = repository_ctx.path("%s/%s" % (libtorch, name))
        if path.exists:
            digits = repository_ctx.read(path).partition("+cu")[2][:2]
            return int(digits) if digits.isdigit() else None
    return None

def _problem(repository_ctx, root, found_by):
    """Returns the sentence that says why this toolkit cannot be used, or None if it can."""
    advice = (" Start the build through ./bazelw with REPRISE_DEVICE=cuda, which installs it, set " +
              "REPRISE_CUDA to a CUDA toolkit, or build with --config=cpu.")
    if not root:
        return "The CUDA toolkit was not found (tried %s)." % found_by + advice
    if len(_existing(repository_ctx, root, ["bin/nvcc", "include/cuda_runtime_api.h"])) != 2:
        return "%s (from %s) is not a CUDA toolkit with bin/nvcc and include/." % (root, found_by) + advice
    major = _toolkit_major(repository_ctx, root)
    wanted = _libtorch_major(repository_ctx)
    if wanted and major != wanted:
        return "The CUDA toolkit must be of version %s, as LibTorch's: %s (from %s) is of version %s." % (
            wanted,
            root,
            found_by,
            major,
        ) + advice
    return None

def _public_target(name):
    """Returns the BUILD text of a target that is an empty library in the CPU build."""
    return """
alias(
    name = "{name}",
    actual = select({{
        ":cpu": ":none",
        "//conditions:default": ":{name}_on_gpu",
    }}),
)
""".format(name = name)

def _cuda_impl(repository_ctx):
    root, found_by = _find(repository_ctx)
    problem = _problem(repository_ctx, root, found_by)
    repository_ctx.symlink(repository_ctx.attr._rule, "system_cc_library.bzl")
    build = """
load(":system_cc_library.bzl", "missing_library", "system_cc_library")
load("@reprise_rules//:cc.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])
""" + CPU_CONFIG_SETTING + "\nsystem_cc_library(name = \"none\")\n"
    for name in ["headers"] + _LIBRARIES:
        build += _public_target(name)
        if problem:
            build += "missing_library(name = \"%s_on_gpu\", message = %r)\n" % (name, problem)
    if problem:
        build += "missing_library(name = \"nvcc\", message = %r)\n" % problem
        repository_ctx.file("BUILD", build, executable = False)
        return

    write_stamp(repository_ctx, ["%s/bin/nvcc" % root, "%s/include/cuda_runtime_api.h" % root])
    repository_ctx.file("nvcc", "#!/bin/sh\nexec %s/bin/nvcc \"$@\"\n" % root)
    build += "exports_files([\"nvcc\", \"stamp\"])\n"
    includes = []
    for number, path in enumerate(_existing(repository_ctx, root, ["include", "extras/CUPTI/include"])):
        includes.append("include%d" % number)
        repository_ctx.symlink(path, includes[-1])
    build += """
cc_library(
    name = "headers_on_gpu",
    # Without CCCL's: nvcc finds those by itself, and the host's compiler has no use for them.
    hdrs = glob(
        [folder + "/**" for folder in {includes}],
        exclude = [folder + "/cccl/**" for folder in {includes}],
    ),
    defines = ["REPRISE_WITH_CUDA=1"],
    includes = {includes},
)
""".format(includes = includes)
    dirs = _existing(repository_ctx, root, ["lib", "lib64", "extras/CUPTI/lib64"])
    for name in _LIBRARIES:
        found = _shared_library(dirs, name)
        if found:
            build += """
system_cc_library(
    name = "%s_on_gpu",
    linkopts = %r,
    stamp = "stamp",
    deps = [":headers_on_gpu"],
)
""" % (name, ["-L%s" % found[0], "-Wl,-rpath,%s" % found[0], "-l:" + found[1]])
        else:
            build += "missing_library(name = \"%s_on_gpu\", message = %r)\n" % (
                name,
                "lib%s.so was not found in the CUDA toolkit %s (from %s)." % (name, root, found_by),
            )
    repository_ctx.file("BUILD", build, executable = False)

system_cuda = repository_rule(
    implementation = _cuda_impl,
    attrs = {
        "_requirements": attr.label(default = "//third_party:requirements.txt"),
        "_rule": attr.label(default = "//third_party:system_cc_library.bzl"),
    },
    configure = True,
    environ = ENVIRONMENT_VARIABLES,
    local = True,
)
