"""Where LibTorch and CUDA are: the environment that bazelw made, and the versions it holds."""

# What the repository rules of LibTorch and CUDA depend on besides files.
ENVIRONMENT_VARIABLES = [
    "HOME",
    "PATH",
    "REPRISE_CACHE",
    "REPRISE_CUDA",
    "REPRISE_ENVIRONMENT",
    "REPRISE_LIBTORCH",
    "REPRISE_LIBTORCH_VERSION",
    "REPRISE_PYTHON",
    "XDG_CACHE_HOME",
]

# True in the CPU build: @cuda and @libtorch then offer no CUDA, whether it is there or not.
CPU_CONFIG_SETTING = """
config_setting(
    name = "cpu",
    define_values = {"reprise_device": "cpu"},
)
"""

def pinned_version(repository_ctx, package):
    """Returns the version of a PyPI package in requirements.txt.

    Args:
      repository_ctx: of a rule with the attribute _requirements.
      package: the name, with no extras.
    """
    for line in repository_ctx.read(repository_ctx.attr._requirements).split("\n"):
        name, _, version = line.partition("==")
        if name.partition("[")[0] == package:
            return version
    fail("third_party/requirements.txt does not pin " + package)

def wanted_libtorch(repository_ctx):
    """Returns the "major.minor" that LibTorch must have: REPRISE_LIBTORCH_VERSION, else the pinned one."""
    named = repository_ctx.os.environ.get("REPRISE_LIBTORCH_VERSION", "")
    return named or ".".join(pinned_version(repository_ctx, "torch").split(".")[:2])

def _installed_torch(repository_ctx):
    """Returns the torch that bazelw installed, or None."""
    environ = repository_ctx.os.environ
    if environ.get("REPRISE_ENVIRONMENT", ""):
        environments = [environ["REPRISE_ENVIRONMENT"]]
    else:
        # Without bazelw: one with CUDA serves the CPU build, too.
        cache = environ.get("REPRISE_CACHE", "")
        if not cache:
            cache = (environ.get("XDG_CACHE_HOME", "") or environ.get("HOME", "") + "/.cache") + "/reprise"
        libtorch = "%s/libtorch-%s" % (cache, pinned_version(repository_ctx, "torch"))
        environments = [
            "%s-cuda-%s" % (libtorch, pinned_version(repository_ctx, "cuda-toolkit")),
            libtorch + "-cpu",
        ]
    for environment in environments:
        torch = repository_ctx.path(environment + "/site-packages/torch")
        if torch.exists:
            return torch
    return None

def _python_torch(repository_ctx, python):
    """Returns the folder of the torch that a Python has, or None. Does not import it (seconds)."""
    code = ("import importlib.util as u, os; s = u.find_spec('torch'); " +
            "print(os.path.dirname(s.origin) if s and s.origin else '')")
    result = repository_ctx.execute([python, "-c", code])
    folder = result.stdout.strip() if result.return_code == 0 else ""
    return repository_ctx.path(folder) if folder else None

def find_libtorch(repository_ctx):
    """Finds the LibTorch that is to be used.

    Looked for in this order:
      1. REPRISE_LIBTORCH, a folder with include/ and lib/ (an unpacked LibTorch, or a Python's
         site-packages/torch);
      2. REPRISE_PYTHON, a Python that has torch;
      3. the environment that bazelw chose (REPRISE_ENVIRONMENT), or one that it has made;
      4. the torch of python3.

    Args:
      repository_ctx: of a rule with the attribute _requirements.

    Returns:
      (the folder or None, what it was found by).
    """
    environ = repository_ctx.os.environ
    if environ.get("REPRISE_LIBTORCH", ""):
        return repository_ctx.path(environ["REPRISE_LIBTORCH"]), "REPRISE_LIBTORCH"
    if environ.get("REPRISE_PYTHON", ""):
        return _python_torch(repository_ctx, environ["REPRISE_PYTHON"]), "REPRISE_PYTHON"
    installed = _installed_torch(repository_ctx)
    if installed:
        return installed, "the environment of bazelw"
    python = repository_ctx.which("python3")
    return (_python_torch(repository_ctx, python) if python else None), "python3"
