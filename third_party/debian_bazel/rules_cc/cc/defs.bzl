"""The native C++ rules under the names that rules_cc gives them.

Debian's Bazel 4.2.3 asks for rules_cc, which Debian's own package of it does not provide in a form
that loads. bazelw puts this folder in its place. No newer Bazel uses it.
"""

cc_binary = native.cc_binary
cc_import = native.cc_import
cc_library = native.cc_library
cc_proto_library = native.cc_proto_library
cc_test = native.cc_test
cc_toolchain = native.cc_toolchain
cc_toolchain_suite = native.cc_toolchain_suite
fdo_prefetch_hints = native.fdo_prefetch_hints
fdo_profile = native.fdo_profile
objc_import = native.objc_import
objc_library = native.objc_library

cc_flags_supplier = None
