"""What `bazel run //:install` lays out: headers, one archive, and descriptions of both for others."""

load("@reprise_rules//:cc.bzl", CcInfo = "cc_info", cc_common = "cc_tools")

def _is_installed(file):
    """Returns whether `file` is a header of this project. The links of include_paths.bzl are not."""
    is_ours = not file.short_path.startswith("../") and not file.path.startswith("external/")
    return file.is_source and is_ours and file.extension == "h"

def _include_path(header):
    """Returns the path of a header by which it is included, which is below include/ of an installation."""
    path = header.short_path
    return "reprise/" + (path[len("examples/"):] if path.startswith("examples/") else path)

def _repository_of(linker_input):
    """Returns the name of the repository that a linker input is of, as it is known to the project."""
    name = linker_input.owner.workspace_name

    # Repositories of a module extension are named "...~reprise~libtorch" or "...+reprise+libtorch".
    return name.split("~")[-1].split("+")[-1]

def _folder(flags):
    """Returns the folder of the first "-L<folder>", without its last component; "" if there is none."""
    for flag in flags:
        if flag.startswith("-L"):
            return flag[2:].rpartition("/")[0]
    return ""

def _package_impl(ctx):
    merged = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.libraries])
    headers = [
        file
        for file in merged.compilation_context.headers.to_list()
        if _is_installed(file)
    ]
    archives = []
    flags = {"cuda": [], "libtorch": []}
    for linker_input in merged.linking_context.linker_inputs.to_list():
        for library in linker_input.libraries:
            archive = library.pic_static_library or library.static_library
            if archive and archive not in archives:
                archives.append(archive)
        repository = _repository_of(linker_input)
        if repository in flags:
            flags[repository] += linker_input.user_link_flags
    archive = ctx.actions.declare_file(ctx.label.name + "/libreprise.a")
    arguments = ctx.actions.args()
    arguments.add(archive)
    arguments.add_all(archives)
    ctx.actions.run_shell(
        inputs = archives,
        outputs = [archive],
        arguments = [arguments],
        # A script, as ar has no other way to add the members of archives, many of which are of one name.
        command = """
{
  printf 'create %s\\n' "$1"
  shift
  printf 'addlib %s\\n' "$@"
  printf 'save\\nend\\n'
} | ar -M""",
        mnemonic = "JoinArchives",
        use_default_shell_env = True,
    )
    manifest = ctx.actions.declare_file(ctx.label.name + "/headers.txt")
    ctx.actions.write(manifest, "".join([
        "%s %s\n" % (header.short_path, _include_path(header))
        for header in headers
    ]))
    public = [
        _include_path(header)
        for dep in ctx.attr.libraries
        for header in dep[CcInfo].compilation_context.direct_public_headers
        if _is_installed(header)
    ]
    public_manifest = ctx.actions.declare_file(ctx.label.name + "/public_headers.txt")
    ctx.actions.write(public_manifest, "".join([header + "\n" for header in public]))
    outputs = [archive, manifest, public_manifest]
    cuda = _folder(flags["cuda"])
    libraries = [flag[3:] for flag in flags["cuda"] if flag.startswith("-l:")]
    substitutions = {
        "@VERSION@": ctx.attr.version,
        "@LIBTORCH@": _folder(flags["libtorch"]),
        "@LIBTORCH_LIBRARIES@": ";".join([
            flag[2:]
            for flag in flags["libtorch"]
            if flag.startswith("-l") and flag[2:] not in ["stdc++", ":libgomp.so.1"]
        ]),
        "@CUDA@": cuda,
        "@CUDA_LIBRARIES@": ";".join(libraries),
        "@DEFINES@": ";".join([define for define in merged.compilation_context.defines.to_list()]),
        "@DEFINE_FLAGS@": " ".join(["-D" + define for define in merged.compilation_context.defines.to_list()]),
        "@LINK_FLAGS@": " ".join(flags["libtorch"] + flags["cuda"]),
        "@CUDA_INCLUDE_FLAGS@": "-isystem %s/include" % cuda if cuda else "",
    }
    for template in ctx.files.templates:
        output = ctx.actions.declare_file("%s/%s" % (ctx.label.name, template.basename[:-len(".in")]))
        ctx.actions.expand_template(template = template, output = output, substitutions = substitutions)
        outputs.append(output)
    files = depset(outputs)
    return [DefaultInfo(files = files, runfiles = ctx.runfiles(files = outputs + headers))]

reprise_package = rule(
    implementation = _package_impl,
    attrs = {
        "libraries": attr.label_list(providers = [CcInfo], doc = "Their headers, and those of their deps."),
        "templates": attr.label_list(allow_files = [".in"]),
        "version": attr.string(mandatory = True),
    },
    doc = "Runfiles: the headers; headers.txt, which lists where they are and where they go; public_headers.txt, which " +
          "lists where the libraries' own headers go; libreprise.a; each template without its .in, filled in.",
)
