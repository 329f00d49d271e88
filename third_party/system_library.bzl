"""Repository rule for a library that the system's package manager installed."""

_INCLUDE_DIRS = ["/usr/include", "/usr/local/include"]

def find_header(repository_ctx, header):
    """Finds a header in the compiler's own include folders.

    Args:
      repository_ctx: of the calling repository rule.
      header: path as in an #include, for example "glog/logging.h".

    Returns:
      The header's absolute path, or None.
    """
    for folder in _INCLUDE_DIRS + _multiarch_dirs(repository_ctx, "/usr/include"):
        path = repository_ctx.path(folder + "/" + header)
        if path.exists:
            return path
    return None

def library_dirs(repository_ctx):
    """Returns the existing folders in which the linker looks for libraries."""
    dirs = _multiarch_dirs(repository_ctx, "/usr/lib") + ["/usr/local/lib", "/usr/lib64", "/usr/lib"]
    return [d for d in dirs if repository_ctx.path(d).exists]

def _multiarch_dirs(repository_ctx, root):
    return [
        folder
        for folder in [root + "/x86_64-linux-gnu", root + "/aarch64-linux-gnu"]
        if repository_ctx.path(folder).exists
    ]

def write_stamp(repository_ctx, paths):
    """Writes the file "stamp", which changes when one of the given files does."""
    result = repository_ctx.execute(["stat", "--dereference", "--format=%n %s %Y"] + paths)
    if result.return_code != 0:
        fail("stat failed: " + result.stderr)
    repository_ctx.file("stamp", result.stdout, executable = False)

def missing_message(what, packages):
    return ("%s was not found on this machine: install the Debian package(s) %s, or start the " +
            "build through ./bazelw, which does so.") % (what, packages)

def _system_library_impl(repository_ctx):
    header = find_header(repository_ctx, repository_ctx.attr.header)
    repository_ctx.symlink(repository_ctx.attr._rule, "system_cc_library.bzl")
    build = [
        'load(":system_cc_library.bzl", "missing_library", "system_cc_library")',
        'package(default_visibility = ["//visibility:public"])',
    ]
    if header:
        write_stamp(repository_ctx, [str(header)])
    for name, linkopts in repository_ctx.attr.targets.items():
        if header:
            build.append("system_cc_library(name = %r, defines = %r, linkopts = %r, stamp = \"stamp\")" %
                         (name, repository_ctx.attr.defines, linkopts.split(" ") if linkopts else []))
        elif repository_ctx.attr.optional:
            build.append("system_cc_library(name = %r)" % name)
        else:
            build.append("missing_library(name = %r, message = %r)" % (
                name,
                missing_message(repository_ctx.attr.header, repository_ctx.attr.debian_package),
            ))
    repository_ctx.file("BUILD", "\n".join(build) + "\n", executable = False)

system_library = repository_rule(
    implementation = _system_library_impl,
    attrs = {
        "debian_package": attr.string(mandatory = True),
        "defines": attr.string_list(doc = "Of all that depends on the targets, where the library is there."),
        "header": attr.string(mandatory = True, doc = "A header that shows the library is there."),
        "optional": attr.bool(doc = "Where the library is missing, the targets are empty."),
        "targets": attr.string_dict(mandatory = True, doc = "Target name to linker options."),
        "_rule": attr.label(default = "//third_party:system_cc_library.bzl"),
    },
    configure = True,
    local = True,
)
