# Which device a build is for: "cuda", or "cpu" (no nvcc, LibTorch without its CUDA half). Sourced by
# bazelw.

# Each of these files shows an NVIDIA driver: its kernel module, the nodes of its devices (which are
# all that a container may see of it), and its library under WSL.
driver_files=(/proc/driver/nvidia/version /dev/nvidiactl /dev/nvidia0 /usr/lib/wsl/lib/libcuda.so.1)

# Whether this machine has an NVIDIA driver. A toolkit alone does not count, nor do its stubs.
have_nvidia_driver() {
  local file
  for file in "${driver_files[@]}"; do
    [[ -e $file ]] && return 0
  done
  # The driver's library elsewhere, as on Jetson. ldconfig is not on everyone's PATH.
  [[ $(PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2>/dev/null) == *libcuda.so.1* ]]
}

# options_of ARGUMENTS...: prints the arguments of a Bazel command that are not the program's, one a line; "--config cpu" as
# "--config=cpu".
options_of() {
  local argument option=''
  for argument in "$@"; do
    [[ $argument == -- ]] && break
    case $option$argument in
      --config | --define) option=$argument= && continue ;;
    esac
    printf '%s\n' "$option$argument"
    option=
  done
}

# named_device ARGUMENTS...: prints the device that the options of a Bazel command name, the last of
# them if there are several, or nothing.
named_device() {
  local option device=''
  while IFS= read -r option; do
    case $option in
      --config=cpu | --config=sanitizer | --config=asan | --config=ubsan | --config=asan_ubsan | \
        --config=tsan | --config=fuzz | --config=gcc | --define=reprise_device=cpu) device=cpu ;;
      --define=reprise_device=*) device=cuda ;;
    esac
  done < <(options_of "$@")
  echo "$device"
}

# choose_device ARGUMENTS...: sets `device`, `device_flags` (the options that make Bazel build for it) and
# `device_reason` (a sentence, if it is not what a machine with a driver would build). Looked at in this order: ARGUMENTS,
# REPRISE_DEVICE, whether a CUDA toolkit is named, whether there is a driver.
choose_device() {
  device=$(named_device "$@")
  device_flags=()
  device_reason=
  [[ -z $device ]] || return 0
  device=${REPRISE_DEVICE:-}
  case $device in
    cpu | cuda) device_flags=("--define=reprise_device=$device") ;;
    '')
      if [[ -n ${REPRISE_CUDA:-} ]] || have_nvidia_driver; then
        device=cuda
      else
        device=cpu
        device_flags=(--define=reprise_device=cpu)
        device_reason="no NVIDIA driver found: CPU build (REPRISE_DEVICE=cuda for the CUDA build)"
      fi
      ;;
    *) die "REPRISE_DEVICE must be cpu or cuda: it is '$device'." ;;
  esac
}
