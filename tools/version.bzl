"""The version of the project. MODULE.bazel and CHANGELOG.md repeat it; //tools:version_test compares them."""

VERSION = "0.1.0"
