"""One header that includes many, so that a test can compile all of them together."""

def public_headers(name, headers, **kwargs):
    """Generates `<name>.h`: includes of all headers, and their paths as kPublicHeaders.

    Headers that include CUDA's own are included in builds with CUDA only.

    Args:
      name: of the target, and of the header without its ".h".
      headers: filegroups of headers.
      **kwargs: as in genrule.
    """
    native.genrule(
        name = name,
        srcs = headers,
        outs = [name + ".h"],
        cmd = """
{
  for header in $(SRCS); do
    if grep -Eq '^#include <(cu|ATen/cuda|c10/cuda)' $$header; then
      printf '#ifdef REPRISE_WITH_CUDA\\n#include "reprise/%s"\\n#endif\\n' $$header
    else
      printf '#include "reprise/%s"\\n' $$header
    fi
  done
  echo '#include <string_view>'
  echo 'inline constexpr std::string_view kPublicHeaders[] = {'
  printf '    "%s",\\n' $(SRCS)
  echo '};'
} > $@""",
        **kwargs
    )
