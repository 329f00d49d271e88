"""Repository rule for the system's Abseil, under the labels of Abseil's own BUILD files."""

load("//third_party:system_library.bzl", "find_header", "library_dirs", "missing_message", "write_stamp")

# Package to targets. Any target of Abseil can be added here by name; all of them stand for the same
# set of static libraries, of which the linker takes what is used.
_TARGETS = {
    "algorithm": ["algorithm", "container"],
    "base": ["base", "config", "core_headers", "dynamic_annotations", "endian", "log_severity", "no_destructor", "prefetch"],
    "cleanup": ["cleanup"],
    "container": [
        "btree",
        "fixed_array",
        "flat_hash_map",
        "flat_hash_set",
        "inlined_vector",
        "node_hash_map",
        "node_hash_set",
    ],
    "debugging": ["failure_signal_handler", "leak_check", "stacktrace", "symbolize"],
    "flags": ["commandlineflag", "config", "flag", "marshalling", "parse", "reflection", "usage"],
    "functional": ["any_invocable", "bind_front", "function_ref"],
    "hash": ["hash"],
    "memory": ["memory"],
    "meta": ["type_traits"],
    "numeric": ["bits", "int128"],
    "random": ["bit_gen_ref", "distributions", "random", "seed_gen_exception", "seed_sequences"],
    "status": ["status", "statusor"],
    "strings": ["cord", "str_format", "string_view", "strings"],
    "synchronization": ["synchronization"],
    "time": ["time"],
    "types": ["any", "compare", "optional", "span", "variant"],
    "utility": ["utility"],
}

def _static_libraries(repository_ctx):
    """Returns (folder, file names) of Abseil's static libraries."""
    for folder in library_dirs(repository_ctx):
        names = sorted([
            entry.basename
            for entry in repository_ctx.path(folder).readdir()
            if entry.basename.startswith("libabsl_") and entry.basename.endswith(".a")
        ])
        if names:
            return folder, names
    return None, []

def _system_absl_impl(repository_ctx):
    header = find_header(repository_ctx, "absl/base/config.h")
    folder, libraries = _static_libraries(repository_ctx)
    repository_ctx.symlink(repository_ctx.attr._rule, "system_cc_library.bzl")
    build = [
        'load(":system_cc_library.bzl", "missing_library", "system_cc_library")',
        'package(default_visibility = ["//visibility:public"])',
    ]
    if header and libraries:
        write_stamp(repository_ctx, [str(header), folder + "/libabsl_strings.a"])

        # The libraries refer to each other in no order that a linker could follow once.
        linkopts = (["-Wl,--start-group"] + ["-l:" + name for name in libraries] +
                    ["-Wl,--end-group", "-lpthread"])
        build.append("system_cc_library(name = \"absl\", linkopts = %r, stamp = \"stamp\")" % linkopts)
    else:
        build.append("missing_library(name = \"absl\", message = %r)" %
                     missing_message("Abseil", "libabsl-dev"))
    repository_ctx.file("BUILD", "\n".join(build) + "\n", executable = False)
    for package, targets in _TARGETS.items():
        lines = ['package(default_visibility = ["//visibility:public"])']
        lines += ["alias(name = %r, actual = \"//:absl\")" % target for target in targets]
        repository_ctx.file("absl/%s/BUILD" % package, "\n".join(lines) + "\n", executable = False)

system_absl = repository_rule(
    implementation = _system_absl_impl,
    attrs = {"_rule": attr.label(default = "//third_party:system_cc_library.bzl")},
    configure = True,
    local = True,
)
