# LibTorch and CUDA: which ones are used, and their installation from PyPI. Sourced by bazelw.
#
# There are two sets of packages: third_party/requirements.txt with CUDA, for every build, and
# third_party/requirements-cpu.txt, which is a fifth of it, for the CPU build alone.
#
# What is installed lies in one folder of the cache, a Python environment named by its versions, which
# appears there in one step (a rename) when it is complete. An installation that was interrupted leaves
# only a folder NAME.partial, which the next one removes. A lock keeps two from running at once.

# Free space that an installation takes at its highest, packages and their unpacked files together.
needed_kb_cuda=$((9 * 1000 * 1000))
needed_kb_cpu=$((2 * 1000 * 1000))

# The pinned packages, without comments.
requirements() {
  grep -v -e '^#' -e '^$' "$1"
}

# pinned_version FILE PACKAGE
pinned_version() {
  sed -n "s/^$2\(\[[^]]*\]\)\{0,1\}==//p" "$1"
}

# Whether a set of packages is the one with CUDA.
has_cuda() {
  [[ -n $(pinned_version "$1" cuda-toolkit) ]]
}

# describe REQUIREMENTS: prints what is installed, for messages.
describe() {
  local torch
  torch="LibTorch $(pinned_version "$1" torch)"
  if has_cuda "$1"; then
    echo "$torch and CUDA $(pinned_version "$1" cuda-toolkit)"
  else
    echo "$torch without CUDA"
  fi
}

# environment_dir CACHE REQUIREMENTS: the repository rules know these names too (environment.bzl).
environment_dir() {
  local torch cuda
  torch=$(pinned_version "$2" torch)
  cuda=$(pinned_version "$2" cuda-toolkit)
  echo "$1/libtorch-$torch-${cuda:+cuda-}${cuda:-cpu}"
}

# environment_is_complete DIR REQUIREMENTS
environment_is_complete() {
  local packages=$1/site-packages
  [[ -e $1/complete && -e $packages/torch/lib/libtorch_cpu.so && -e $packages/torch/include/ATen &&
    $(<"$1/complete") == "$(requirements "$2")" ]] || return
  ! has_cuda "$2" || [[ -x $packages/nvidia/cu13/bin/nvcc ]]
}

# libtorch_version DIR: prints major.minor of a LibTorch folder, or nothing.
libtorch_version() {
  local header
  for header in include/torch/headeronly/version.h include/torch/csrc/api/include/torch/version.h; do
    [[ -e $1/$header ]] || continue
    sed -n 's/^#define TORCH_VERSION_\(MAJOR\|MINOR\) \([0-9]*\)$/\2/p' "$1/$header" | paste -sd .
    return
  done
}

# python_torch PYTHON: prints the folder of the torch that a Python has. Does not import it.
python_torch() {
  "$1" -c 'import importlib.util as u, os; s = u.find_spec("torch"); print(os.path.dirname(s.origin) if s and s.origin else "")' 2>/dev/null
}

# wanted_libtorch PINS: prints the major.minor that LibTorch must have: REPRISE_LIBTORCH_VERSION, or the one
# that requirements.txt pins. Others are pinned by requirements-cpu-<version>.txt.
wanted_libtorch() {
  local pinned versions version=${REPRISE_LIBTORCH_VERSION:-}
  pinned=$(pinned_version "$1/requirements.txt" torch)
  pinned=${pinned%.*}
  if [[ -n $version && $version != "$pinned" && ! -e $1/requirements-cpu-$version.txt ]]; then
    versions=$(find "$1" -name 'requirements-cpu-*.txt' | sed 's/.*-\(.*\)\.txt$/\1/' | sort -V | xargs)
    die "REPRISE_LIBTORCH_VERSION must be one of $versions $pinned: it is '$version'."
  fi
  echo "${version:-$pinned}"
}

# Ends with a sentence if the LibTorch that the user named is none or of another version.
check_named_libtorch() {
  local pins=$1 name=REPRISE_LIBTORCH folder=${REPRISE_LIBTORCH:-} wanted version
  if [[ -z $folder ]]; then
    name=REPRISE_PYTHON
    folder=$(python_torch "$REPRISE_PYTHON") || true
    [[ -n $folder ]] || die "REPRISE_PYTHON must be a Python with torch: $REPRISE_PYTHON has none."
  fi
  wanted=$(wanted_libtorch "$pins") || exit
  version=$(libtorch_version "$folder")
  [[ -n $version && -e $folder/lib/libtorch_cpu.so ]] ||
    die "$name must lead to a LibTorch with include/ and lib/: $folder is none."
  [[ $version == "$wanted" ]] ||
    die "LibTorch must be $wanted: $folder (from $name) is $version. REPRISE_LIBTORCH_VERSION asks for another version."
}

# find_python: prints a Python that can make environments, or nothing.
find_python() {
  local python
  for python in python3 /usr/bin/python3; do
    if "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      echo "$python"
      return
    fi
  done
}

# pip_problem LOG SPACE: the sentence for what went wrong, from pip's output. SPACE is what the
# installation takes.
pip_problem() {
  local log=$1 space=$2
  if grep -q -i -e 'No space left on device' "$log"; then
    echo "the disk is full: the installation takes $space for a while; free some or set REPRISE_CACHE to a folder on another disk."
  elif grep -q -e 'CERTIFICATE_VERIFY_FAILED' "$log"; then
    echo "the Python package index was reached, but its certificate is not trusted here: set PIP_CERT to the certificates of this network."
  elif grep -q -i -e 'name resolution' -e 'Failed to establish a new connection' -e 'Network is unreachable' \
    -e 'Connection refused' -e 'timed out' -e 'ProxyError' "$log"; then
    echo "the Python package index could not be reached, so LibTorch was not installed; with no network, set REPRISE_LIBTORCH and REPRISE_CUDA to folders that hold them."
  elif grep -q -e 'No matching distribution' "$log"; then
    echo "the package index has no such package for this Python and machine: $(grep -m 1 'No matching distribution' "$log" | sed 's/^ERROR: //'); the whole output is in $log"
  else
    echo "pip could not install LibTorch ($(grep -m 1 '^ERROR' "$log" || tail -n 1 "$log")); the whole output is in $log"
  fi
}

# Says what is wrong with a new environment, or nothing. A package that does not fit this machine, or a
# download that was cut, shows here and not in the middle of a build.
environment_problem() {
  local packages=$1/site-packages requirements=$2 wanted version load="import torch"
  has_cuda "$requirements" || load="import ctypes; ctypes.CDLL('$packages/torch/lib/libtorch_cpu.so')"
  wanted=$(pinned_version "$requirements" torch)
  version=$(libtorch_version "$packages/torch")
  if [[ $version != "${wanted%.*}" ]]; then
    echo "torch must be $wanted: pip installed ${version:-none}."
  elif has_cuda "$requirements" && ! "$packages/nvidia/cu13/bin/nvcc" --version >/dev/null 2>&1; then
    echo "the installed nvcc does not run on this machine."
  elif ! "$1/bin/python" -c "$load" >/dev/null 2>&1; then
    echo "the installed LibTorch does not load on this machine: $("$1/bin/python" -c "$load" 2>&1 | tail -n 1)"
  fi
}

# keep_cpu_half TORCH: removes what a torch holds for CUDA, and what cannot be loaded without that: half of
# its size. Python cannot import such a torch, so its modules go, too.
keep_cpu_half() {
  find "$1" -mindepth 1 -maxdepth 1 ! -name include ! -name lib ! -name version.py -exec rm -rf {} +
  rm -f "$1"/lib/lib{torch,torch_python,torch_cuda*,torch_nvshmem,c10_cuda,caffe2_nvrtc}.so
}

# install_environment DIR REQUIREMENTS LOG: REQUIRES the lock.
install_environment() {
  local dir=$1 requirements=$2 log=$3 python partial=$1.partial free_kb problem what
  local needed_kb=$needed_kb_cuda fetched="2.8 GB" options=()
  if ! has_cuda "$requirements"; then
    needed_kb=$needed_kb_cpu fetched="0.6 GB" options=(--no-deps)
  fi
  what=$(describe "$requirements")
  if [[ -e $dir || -e $partial ]]; then
    say "an earlier installation of LibTorch is not complete; starting over"
    rm -rf "$dir" "$partial"
  fi
  free_kb=$(df -Pk "$(dirname "$dir")" | awk 'NR == 2 { print $4 }')
  ((free_kb >= needed_kb)) ||
    die "$what needs $((needed_kb / 1000000)) GB free in $(dirname "$dir") for its installation: there are $((free_kb / 1000000)) GB; set REPRISE_CACHE to a folder on another disk."
  python=$(find_python)
  if [[ -z $python ]]; then
    install_packages "$log.apt" python3-venv
    python=$(find_python)
    [[ -n $python ]] || die "LibTorch is installed by pip: that needs a Python of 3.10 or newer with venv and pip."
  fi
  say "installing $what into $dir ($fetched to fetch)"
  # Settings that would lead pip elsewhere than into the environment.
  unset PIP_PREFIX PIP_TARGET PIP_USER PYTHONHOME PYTHONPATH
  run_logged "$log" "$python" -m venv "$partial" ||
    die "$python -m venv failed ($(tail -n 1 "$log")); the whole output is in $log"
  mkdir -p "$partial/tmp"
  # The downloads lie on the disk whose space was looked at, and no copy of them stays behind.
  TMPDIR=$partial/tmp progress_dir=$partial run_logged "$log" "$partial/bin/python" -m pip install --no-input \
    --no-cache-dir --no-compile --disable-pip-version-check --progress-bar off --retries 3 "${options[@]}" \
    -r "$requirements" ||
    die "$(pip_problem "$log" "$((needed_kb / 1000000)) GB")"
  rm -rf "$partial/tmp"
  (cd "$partial" && ln -s lib/python3.*/site-packages site-packages) ||
    die "$partial has no site-packages."
  has_cuda "$requirements" || keep_cpu_half "$partial/site-packages/torch"
  problem=$(environment_problem "$partial" "$requirements")
  [[ -z $problem ]] || die "$problem The whole output of pip is in $log"
  requirements "$requirements" >"$partial/complete"
  mv -T "$partial" "$dir" || die "$partial could not be renamed to $dir."
  say "installed $what"
}

# choose_environment CACHE DEVICE PINS: sets `environment` to the folder that serves DEVICE, and
# `environment_requirements` to its packages, which are among PINS (a folder). An environment with CUDA
# serves the CPU build too, if it is there. Both are empty if the user has named a LibTorch. Of other versions
# than the pinned one (REPRISE_LIBTORCH_VERSION) there are environments for the CPU build only.
choose_environment() {
  local cache=$1 device=$2 pins=$3 wanted
  environment=''
  environment_requirements=''
  [[ -z ${REPRISE_LIBTORCH:-} && -z ${REPRISE_PYTHON:-} ]] || return 0
  wanted=$(wanted_libtorch "$pins") || exit
  if [[ -e $pins/requirements-cpu-$wanted.txt ]]; then
    [[ $device == cpu ]] ||
      die "LibTorch $wanted is installed for the CPU build only: for the CUDA build set REPRISE_LIBTORCH and REPRISE_CUDA as well."
    environment_requirements=$pins/requirements-cpu-$wanted.txt
    environment=$(environment_dir "$cache" "$environment_requirements")
    return
  fi
  environment_requirements=$pins/requirements.txt
  environment=$(environment_dir "$cache" "$environment_requirements")
  if [[ $device == cpu ]] && ! environment_is_complete "$environment" "$environment_requirements"; then
    environment_requirements=$pins/requirements-cpu.txt
    environment=$(environment_dir "$cache" "$environment_requirements")
  fi
}

# Prints the Debian packages that the installation of the chosen environment needs, one a line.
missing_environment_packages() {
  [[ -z $environment ]] || environment_is_complete "$environment" "$environment_requirements" ||
    [[ -n $(find_python) ]] || echo python3-venv
}

# ensure_environment CACHE PINS: installs the chosen environment if it is not there, and checks a
# LibTorch that the user has named.
ensure_environment() {
  local cache=$1 pins=$2
  if [[ -z $environment ]]; then
    check_named_libtorch "$pins"
    return
  fi
  environment_is_complete "$environment" "$environment_requirements" && return
  (
    exec 9>"$cache/lock"
    if ! flock -n 9; then
      say "waiting for another installation of LibTorch to end"
      flock 9
    fi
    environment_is_complete "$environment" "$environment_requirements" ||
      install_environment "$environment" "$environment_requirements" "$environment.log"
  ) || exit $?
}
