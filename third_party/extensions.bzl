"""The module extension that finds the libraries of the system, LibTorch and CUDA (MODULE.bazel).

    reprise = use_extension("@reprise//third_party:extensions.bzl", "reprise")
    use_repo(reprise, "com_google_absl", "libtorch")

A repository that is not used is not looked for: who wants LibTorch alone names "libtorch" alone. A root
module that brings a library itself puts it in place of the system's (Bazel 8 and newer):

    override_repo(reprise, com_google_absl = "abseil-cpp")
"""

load("//third_party:repositories.bzl", "reprise_module_dependencies")

def _reprise_impl(module_ctx):
    reprise_module_dependencies()

reprise = module_extension(implementation = _reprise_impl)
