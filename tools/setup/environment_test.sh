#!/bin/bash
# The installation of LibTorch and CUDA, with a Python whose pip makes a few empty files.
set -uo pipefail
for part in testing report system_packages environment; do
  source "tools/setup/$part.sh"
done

mkdir "$work/pins"
cat >"$work/pins/requirements.txt" <<'END'
# A comment.
torch==2.11.0
cuda-toolkit[nvcc,cccl]==13.0.2
END
cat >"$work/pins/requirements-cpu.txt" <<'END'
torch==2.11.0
nvidia-cuda-runtime==13.0.96
END
cat >"$work/pins/requirements-cpu-2.8.txt" <<'END'
torch==2.8.0
END
export pip_calls=$work/pip_calls

# FAKE_PIP says how pip ends; FAKE_TORCH which minor version it installs.
stand_in python3 <<'END'
#!/bin/bash
case "$*" in
  *"import sys, venv"*) exit "${FAKE_NO_VENV:-0}" ;;
  *"import torch"* | *libtorch_cpu.so*) exit "${FAKE_NO_IMPORT:-0}" ;;
  *find_spec*) echo "${FAKE_TORCH_FOLDER:-}" ;;
  "-m venv "*)
    mkdir -p "$3/bin" "$3/lib/python3.11/site-packages"
    cp "$0" "$3/bin/python"
    ;;
  *"-m pip install"*)
    echo "$*" >>"$pip_calls"
    packages=$(dirname "$0")/../lib/python3.11/site-packages
    header=$packages/torch/include/torch/headeronly/version.h
    case ${FAKE_PIP:-works} in
      disk) echo "ERROR: Could not install packages: [Errno 28] No space left on device" && exit 1 ;;
      network) echo "Retrying: Temporary failure in name resolution" && exit 1 ;;
      certificate) echo "SSLError CERTIFICATE_VERIFY_FAILED" && exit 1 ;;
      absent) echo "ERROR: No matching distribution found for torch==2.11.0" && exit 1 ;;
      slow) sleep 2 ;;
      endless) exec sleep 60 ;;
    esac
    mkdir -p "$packages/torch/lib" "$packages/torch/include/ATen" "$(dirname "$header")"
    touch "$packages"/torch/{__init__,version}.py "$packages"/torch/lib/lib{torch_cpu,torch_cuda,torch,c10}.so
    printf '#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR %s\n' "${FAKE_TORCH:-11}" >"$header"
    [[ $* != *requirements-cpu*.txt* ]] || exit 0
    mkdir -p "$packages/nvidia/cu13/bin"
    printf '#!/bin/sh\nexit 0\n' >"$packages/nvidia/cu13/bin/nvcc"
    chmod +x "$packages/nvidia/cu13/bin/nvcc"
    ;;
esac
END

needed_kb_cuda=1
needed_kb_cpu=1
cache=$work/cache
requirements=$work/pins/requirements.txt
requirements_cpu=$work/pins/requirements-cpu.txt
dir=$(environment_dir "$cache" "$requirements")
dir_cpu=$(environment_dir "$cache" "$requirements_cpu")

# ensure DEVICE: as bazelw does it; prints the folder.
ensure() {
  choose_environment "$cache" "$1" "$work/pins"
  ensure_environment "$cache" "$work/pins"
}

# chosen DEVICE: the folder that serves it.
chosen() {
  choose_environment "$cache" "$1" "$work/pins"
  echo "$environment"
}

start_over() {
  rm -rf "$cache" "$pip_calls"
  mkdir "$cache"
  touch "$pip_calls"
}

# How often pip has run.
num_installations() {
  wc -l <"$pip_calls"
}

expect_equal "$dir" "$cache/libtorch-2.11.0-cuda-13.0.2" "the folder is named by its versions"
expect_equal "$dir_cpu" "$cache/libtorch-2.11.0-cpu" "the folder without CUDA has a name of its own"

start_over
run ensure cuda
expect_status 0 "an installation"
environment_is_complete "$dir" "$requirements" || fail "an installation is complete afterwards"
[[ ! -e $dir/tmp ]] || fail "an installation leaves no downloads behind"
run ensure cuda
expect_equal "$(num_installations)$output" 1 "a second call installs and says nothing"

sed 's/13.0.2/13.0.2.1/' "$requirements" >"$work/newer.txt"
environment_is_complete "$dir" "$work/newer.txt" && fail "an environment of other pins does not serve"

rm "$dir/site-packages/torch/lib/libtorch_cpu.so"
run ensure cuda
expect_output "not complete; starting over" "a damaged installation"
environment_is_complete "$dir" "$requirements" || fail "a damaged installation is repaired"

start_over
mkdir -p "$dir.partial/lib/python3.11/site-packages/torch"
run ensure cuda
expect_status 0 "what an interrupted installation left"
environment_is_complete "$dir" "$requirements" || fail "an interrupted installation heals"
[[ ! -e $dir.partial ]] || fail "an interrupted installation is cleared away"

start_over
set -m
FAKE_PIP=endless ensure cuda >/dev/null 2>&1 &
installation=$!
set +m
until [[ -s $pip_calls ]]; do sleep 0.1; done
# As Ctrl-C does: to the whole process group.
kill -TERM -- "-$installation"
wait "$installation" && fail "an installation that is interrupted fails"
environment_is_complete "$dir" "$requirements" && fail "an interrupted installation does not pass for one"
run ensure cuda
expect_status 0 "the call after an interruption"

start_over
for i in 1 2 3; do
  (FAKE_PIP=slow ensure cuda) >/dev/null 2>&1 &
done
wait
expect_equal "$(num_installations)" 1 "three at once install once"

while read -r problem sentence; do
  start_over
  FAKE_PIP=$problem run ensure cuda
  expect_status 36 "pip: $problem"
  expect_output "$sentence" "pip: $problem"
  [[ ! -e $dir ]] || fail "pip: $problem leaves no environment"
done <<'END'
disk the disk is full
network could not be reached
certificate set PIP_CERT
absent No matching distribution found for torch==2.11.0
END

start_over
FAKE_TORCH=10 run ensure cuda
expect_status 36 "another torch than asked for"
expect_output "torch must be 2.11.0: pip installed 2.10." "another torch than asked for"

start_over
FAKE_NO_IMPORT=1 run ensure cuda
expect_output "does not load on this machine" "a torch that does not load"

start_over
needed_kb_cuda=$((1000 * 1000 * 1000 * 1000)) run ensure cuda
expect_status 36 "too little space"
expect_output "1000000 GB free" "too little space"
expect_equal "$(num_installations)" 0 "too little space: nothing is begun"

start_over
run ensure cpu
expect_status 0 "an installation without CUDA"
expect_output "installing LibTorch 2.11.0 without CUDA into $dir_cpu (0.6 GB to fetch)" "an installation without CUDA"
environment_is_complete "$dir_cpu" "$requirements_cpu" || fail "an installation without CUDA is complete afterwards"
expect_equal "$(grep -c -e '--no-deps .*-r .*/requirements-cpu.txt$' "$pip_calls")" 1 "pip fetches no library of CUDA's own accord"
expect_equal "$(cd "$dir_cpu/site-packages/torch" && find . -type f | sort | xargs)" \
  "./include/torch/headeronly/version.h ./lib/libc10.so ./lib/libtorch_cpu.so ./version.py" \
  "only the CPU half stays"
expect_equal "$(chosen cpu) $(chosen cuda)" "$dir_cpu $dir" "an environment without CUDA serves the CPU build alone"
run ensure cpu
expect_equal "$(num_installations)$output" 1 "a second call for the CPU installs and says nothing"
run ensure cuda
environment_is_complete "$dir" "$requirements" || fail "the CUDA build has its own, where the CPU build's is there"
expect_equal "$(chosen cpu) $(chosen cuda)" "$dir $dir" "an environment with CUDA serves both builds"

start_over
run ensure cuda
run ensure cpu
expect_equal "$(num_installations)$output" 1 "nothing is installed for the CPU build where CUDA is"
rm "$dir/site-packages/nvidia/cu13/bin/nvcc"
expect_equal "$(chosen cpu)" "$dir_cpu" "a damaged environment with CUDA does not serve the CPU build"

start_over
FAKE_NO_IMPORT=1 run ensure cpu
expect_output "does not load on this machine" "a CPU half that does not load"
[[ ! -e $dir_cpu ]] || fail "a CPU half that does not load leaves no environment"

start_over
export REPRISE_LIBTORCH_VERSION=2.8
FAKE_TORCH=8 run ensure cpu
expect_status 0 "LibTorch 2.8 without CUDA"
expect_output "installing LibTorch 2.8.0 without CUDA into $cache/libtorch-2.8.0-cpu" "LibTorch 2.8 without CUDA"
expect_equal "$(chosen cpu)" "$cache/libtorch-2.8.0-cpu" "LibTorch 2.8 without CUDA"
run ensure cuda
expect_status 36 "LibTorch 2.8 with CUDA"
expect_output "LibTorch 2.8 is installed for the CPU build only" "LibTorch 2.8 with CUDA"
REPRISE_LIBTORCH_VERSION=2.11 run ensure cuda
expect_output "installing LibTorch 2.11.0 and CUDA" "the pinned version by its name"
REPRISE_LIBTORCH_VERSION=2 run ensure cpu
expect_status 36 "no version"
unset REPRISE_LIBTORCH_VERSION

# The project's own pins.
pins=third_party
expect_equal "$(pinned_version $pins/requirements-cpu.txt torch)" "$(pinned_version $pins/requirements.txt torch)" \
  "one LibTorch for both"
has_cuda $pins/requirements.txt || fail "requirements.txt has CUDA"
has_cuda $pins/requirements-cpu.txt && fail "requirements-cpu.txt has no CUDA"
expect_equal "$(requirements $pins/requirements-cpu.txt | sed 's/==.*//' | xargs)" \
  "torch nvidia-cuda-cupti nvidia-cuda-runtime" "what the CPU build fetches"
for file in $pins/requirements-cpu*.txt; do
  expect_equal "$(requirements "$file" | grep -v '==[0-9.]*$')" "" "every version is pinned: $file"
  expect_equal "$(requirements "$file" | wc -l)" 3 "the packages of $file"
done
for version in 2.8 2.9 2.10; do
  [[ $(pinned_version $pins/requirements-cpu-$version.txt torch) == "$version".* ]] || fail "the pin of LibTorch $version"
done

start_over
# Without venv here, and with the system's Python left alone.
find_python() { :; }
choose_environment "$cache" cpu "$work/pins"
expect_equal "$(missing_environment_packages)" python3-venv "no Python with venv, before an installation"
REPRISE_APT=never run ensure cuda
expect_status 36 "no Python with venv"
expect_output "python3-venv" "no Python with venv"

export REPRISE_LIBTORCH=$work/named
run ensure cuda
expect_output "REPRISE_LIBTORCH must lead to a LibTorch with include/ and lib/: $work/named is none." "no LibTorch there"
mkdir -p "$REPRISE_LIBTORCH/lib" "$REPRISE_LIBTORCH/include/torch/headeronly"
touch "$REPRISE_LIBTORCH/lib/libtorch_cpu.so"
printf '#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 9\n' \
  >"$REPRISE_LIBTORCH/include/torch/headeronly/version.h"
run ensure cuda
expect_status 36 "a LibTorch of another version"
expect_output "LibTorch must be 2.11: $work/named (from REPRISE_LIBTORCH) is 2.9." "a LibTorch of another version"
sed -i 's/MINOR 9/MINOR 8/' "$REPRISE_LIBTORCH/include/torch/headeronly/version.h"
REPRISE_LIBTORCH_VERSION=2.8 run ensure cuda
expect_status 0 "a LibTorch of the version that was asked for"
REPRISE_LIBTORCH_VERSION=2.7 run ensure cuda
expect_status 36 "a version that is not known"
expect_output "REPRISE_LIBTORCH_VERSION must be one of 2.8 2.11: it is '2.7'." "a version that is not known"
sed -i 's/MINOR 8/MINOR 9/' "$REPRISE_LIBTORCH/include/torch/headeronly/version.h"
sed -i 's/MINOR 9/MINOR 11/' "$REPRISE_LIBTORCH/include/torch/headeronly/version.h"
run ensure cuda
expect_status 0 "a LibTorch that was named"

REPRISE_LIBTORCH='' REPRISE_PYTHON=python3 run ensure cuda
expect_output "REPRISE_PYTHON must be a Python with torch: python3 has none." "a Python without torch"
REPRISE_LIBTORCH='' REPRISE_PYTHON=python3 FAKE_TORCH_FOLDER=$work/named run ensure cuda
expect_status 0 "a Python with torch"
expect_equal "$(num_installations)" 0 "what is named is not installed"

finish
