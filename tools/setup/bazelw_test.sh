#!/bin/bash
# bazelw as a whole, with a Bazel that prints what it is given, and a cache in which LibTorch is installed.
set -uo pipefail
for part in testing report environment; do
  source "tools/setup/$part.sh"
done

# A checkout on a machine without a driver.
checkout=$work/checkout
mkdir -p "$checkout/tools" "$checkout/folder" "$work/embedder/folder"
cp -rL tools/setup "$checkout/tools/"
cp -rL bazelw third_party "$checkout/"
touch "$checkout/WORKSPACE" "$work/embedder/WORKSPACE"
echo 'have_nvidia_driver() { [[ -n ${FAKE_DRIVER:-} ]]; }' >>"$checkout/tools/setup/device.sh"
# And without clang, unless it is said to have one.
echo 'find_clang() { echo "${FAKE_CLANG:-}"; }' >>"$checkout/tools/setup/compiler.sh"

stand_in bazel <<'END'
#!/bin/bash
[[ $* != --version ]] || { echo "bazel 7.4.1" && exit; }
echo "in $PWD: $* with $REPRISE_ENVIRONMENT"
END
export REPRISE_BAZEL=bazel REPRISE_CACHE=$work/cache REPRISE_APT=never
unset CC REPRISE_DEVICE REPRISE_CUDA REPRISE_LIBTORCH REPRISE_PYTHON XDG_CACHE_HOME

# install_in_cache REQUIREMENTS: what an installation of these leaves.
install_in_cache() {
  local dir
  dir=$(environment_dir "$REPRISE_CACHE" "$1")
  mkdir -p "$dir/site-packages/torch/include/ATen" "$dir/site-packages/torch/lib" "$dir/site-packages/nvidia/cu13/bin"
  touch "$dir/site-packages/torch/lib/libtorch_cpu.so" "$dir/site-packages/nvidia/cu13/bin/nvcc"
  chmod +x "$dir/site-packages/nvidia/cu13/bin/nvcc"
  requirements "$1" >"$dir/complete"
}

# bazelw_in FOLDER ARGUMENTS...
bazelw_in() {
  cd "$1" && shift && "$checkout/bazelw" "$@"
}

cpu_dir=$(environment_dir "$REPRISE_CACHE" third_party/requirements-cpu.txt)
cuda_dir=$(environment_dir "$REPRISE_CACHE" third_party/requirements.txt)
cpu=--define=reprise_device=cpu
said="bazelw: no NVIDIA driver found: CPU build (REPRISE_DEVICE=cuda for the CUDA build)"
common="--noenable_bzlmod --disk_cache=$REPRISE_CACHE/bazel"

install_in_cache third_party/requirements-cpu.txt
run bazelw_in "$checkout/folder" test //...
expect_equal "$output" "$said
in $checkout/folder: test $common $cpu //... with $cpu_dir" "no driver: the CPU build, and one line that says so"
run bazelw_in "$checkout" query //...
expect_output "query --noenable_bzlmod //... with $cpu_dir" "query knows no device"
run bazelw_in "$checkout" info bazel-bin
expect_equal "$output" "in $checkout: info $common $cpu bazel-bin with $cpu_dir" "info says nothing besides"
run bazelw_in "$checkout" build --config=cpu //...
expect_equal "$output" "in $checkout: build $common --config=cpu //... with $cpu_dir" "--config=cpu says nothing"
FAKE_CLANG=clang-18 run bazelw_in "$checkout" build --config=cpu //...
expect_equal "$output" \
  "in $checkout: build --repo_env=CC=clang-18 --noenable_bzlmod --disk_cache=$REPRISE_CACHE/bazel --copt=-Wno-unused-command-line-argument --config=cpu //... with $cpu_dir" \
  "the CPU build by clang"
FAKE_CLANG=clang-18 run bazelw_in "$checkout" query //...
expect_output "query --repo_env=CC=clang-18 --noenable_bzlmod //..." "query, by the same toolchain"
FAKE_CLANG=clang-18 CC=gcc run bazelw_in "$checkout" build --config=cpu //...
expect_equal "$output" "in $checkout: build $common --config=cpu //... with $cpu_dir" "the user's compiler"

install_in_cache third_party/requirements.txt
run bazelw_in "$checkout" build //...
expect_output "build $common $cpu //... with $cuda_dir" "a complete environment with CUDA serves the CPU build"
FAKE_DRIVER=1 run bazelw_in "$checkout" build //...
expect_equal "$output" "in $checkout: build $common //... with $cuda_dir" "a driver: as Bazel itself would build"
REPRISE_DEVICE=cuda run bazelw_in "$checkout" build //...
expect_equal "$output" "in $checkout: build $common --define=reprise_device=cuda //... with $cuda_dir" "REPRISE_DEVICE=cuda"
FAKE_DRIVER=1 REPRISE_DEVICE=cpu run bazelw_in "$checkout" build //...
expect_equal "$output" "in $checkout: build $common $cpu //... with $cuda_dir" "REPRISE_DEVICE=cpu"
REPRISE_DEVICE=tpu run bazelw_in "$checkout" build //...
expect_status 36 "a device that there is not"
FAKE_CLANG=clang-18 REPRISE_DEVICE=cuda run bazelw_in "$checkout" build //...
expect_output ": build $common --define=reprise_device=cuda //..." "the CUDA build, by g++"

# Another workspace, which takes the project as a repository: its own rc files define no configuration.
FAKE_CLANG=clang-18 run bazelw_in "$work/embedder/folder" --host_jvm_args=-Xmx1g build --config=asan //...
expect_equal "$output" \
  "in $work/embedder/folder: --bazelrc=$checkout/tools/bazel/configurations.bazelrc --host_jvm_args=-Xmx1g build $common --config=asan //... with $cuda_dir" \
  "another workspace is given the configurations"

named=$work/named
mkdir -p "$named/lib" "$named/include/torch/headeronly"
touch "$named/lib/libtorch_cpu.so"
printf '#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 11\n' >"$named/include/torch/headeronly/version.h"
REPRISE_LIBTORCH=$named run bazelw_in "$checkout" build //...
expect_output "build $common $cpu //... with " "a LibTorch that is named"
[[ $output == *"with " ]] || fail "an environment of bazelw's is not named where the user names a LibTorch"

# Packages and LibTorch that are missing are installed side by side: neither ends before the other has begun.
cat >>"$checkout/tools/setup/environment.sh" <<'END'
missing_environment_packages() { [[ -z ${FAKE_FIRST:-} ]] || echo "$FAKE_FIRST"; }
ensure_environment() {
  [[ ! -e $work/installed ]] || return 0
  touch "$work/environment_begins"
  while [[ ! -e $work/apt_begins ]]; do sleep 0.05; done
  [[ -z ${FAKE_PROBLEM:-} ]] || die "$FAKE_PROBLEM"
  [[ -z ${FAKE_SLEEP:-} ]] || run_logged "$work/sleep.log" sleep 300
  touch "$work/installed"
}
END
cat >>"$checkout/tools/setup/system_packages.sh" <<'END'
is_root() { [[ -z ${FAKE_USER:-} ]]; }
have_free_sudo() { false; }
END
stand_in apt-get <<'END'
#!/bin/bash
[[ $1 == update ]] && echo "update" >>"$work/apt_calls" && exit
[[ $* != *python3-venv* ]] || { echo "$*" >>"$work/apt_calls" && exit; }
while [[ ! -e $work/environment_begins ]]; do sleep 0.05; done
touch "$work/apt_begins"
[[ -z ${FAKE_APT_PROBLEM:-} ]] || { echo "E: $FAKE_APT_PROBLEM" && exit 100; }
echo "$*" >>"$work/apt_calls"
END
export work
# bare_bazelw ARGUMENTS...: with one package missing, and LibTorch.
bare_bazelw() {
  rm -f "$work"/{installed,environment_begins,apt_begins,apt_calls}
  FAKE_CLANG=clang-77 REPRISE_APT='' bazelw_in "$checkout" "$@"
}
run bare_bazelw build //...
expect_status 0 "a bare machine"
expect_output "--repo_env=CC=clang-77 " "a bare machine: Bazel runs afterwards"
[[ $(tail -n 1 "$work/apt_calls") == *" install "*" clang-77" ]] || fail "the missing package is installed"
expect_equal "$(grep -c update "$work/apt_calls")" 1 "one update of the lists"
FAKE_FIRST=python3-venv run bare_bazelw build //...
expect_status 0 "a bare machine without Python"
expect_equal "$(sed 's/.* //' "$work/apt_calls" | xargs)" "update python3-venv clang-77" "Python comes first"
FAKE_FIRST=python3-venv FAKE_USER=yes run bare_bazelw build //...
expect_status 36 "a user who may not install"
expect_output "install -y --no-install-recommends python3-venv clang-77'" "one line installs all"
FAKE_PROBLEM="no LibTorch today" run bare_bazelw build //...
expect_status 36 "LibTorch cannot be installed"
expect_output "no LibTorch today" "LibTorch cannot be installed"
[[ $output != *"in $checkout: build"* ]] || fail "Bazel runs without LibTorch"
FAKE_APT_PROBLEM="no packages today" FAKE_SLEEP=1 run bare_bazelw build //...
expect_status 36 "packages cannot be installed: the installation of LibTorch ends, too"
expect_output "no packages today" "packages cannot be installed"

finish
