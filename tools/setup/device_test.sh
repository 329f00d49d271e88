#!/bin/bash
# Which device a build is for: what the options name, what the settings name, and what the machine has.
set -uo pipefail
for part in testing report device; do
  source "tools/setup/$part.sh"
done

# The machine: FAKE_LIBRARY is what its linker knows, driver_files what its driver leaves.
stand_in ldconfig <<'END'
#!/bin/bash
echo "libcudart.so.13 (libc6,x86-64) => /usr/local/cuda/lib/libcudart.so.13"
echo "${FAKE_LIBRARY:-}"
END
driver_files=("$work/proc/version" "$work/dev/nvidia0")
unset REPRISE_DEVICE REPRISE_CUDA

# chosen ARGUMENTS...: the device, the options for Bazel, the reason.
chosen() {
  choose_device "$@"
  echo "$device|${device_flags[*]}|$device_reason"
}

cpu_flag=--define=reprise_device=cpu
reason="no NVIDIA driver found: CPU build (REPRISE_DEVICE=cuda for the CUDA build)"

run have_nvidia_driver
expect_status 1 "a toolkit without a driver"
expect_equal "$(chosen //...)" "cpu|$cpu_flag|$reason" "no driver"

FAKE_LIBRARY="libcuda.so.1 (libc6,x86-64) => /usr/lib/libcuda.so.1"
export FAKE_LIBRARY
expect_equal "$(chosen //...)" "cuda||" "the driver's library"
unset FAKE_LIBRARY
for file in "${driver_files[@]}"; do
  mkdir -p "$(dirname "$file")"
  touch "$file"
  expect_equal "$(chosen //...)" "cuda||" "a driver that leaves $file"
  rm "$file"
done
stand_in ldconfig </dev/null
run have_nvidia_driver
expect_status 1 "an ldconfig that says nothing"

touch "${driver_files[@]}"
expect_equal "$(REPRISE_DEVICE=cpu chosen //...)" "cpu|$cpu_flag|" "REPRISE_DEVICE=cpu with a driver"
expect_equal "$(REPRISE_DEVICE=cuda chosen //...)" "cuda|--define=reprise_device=cuda|" "REPRISE_DEVICE=cuda with a driver"
expect_equal "$(chosen --config=cpu //...)" "cpu||" "--config=cpu with a driver"
rm "${driver_files[@]}"
expect_equal "$(REPRISE_DEVICE=cuda chosen //...)" "cuda|--define=reprise_device=cuda|" "REPRISE_DEVICE=cuda without one"
expect_equal "$(REPRISE_DEVICE=cpu chosen //...)" "cpu|$cpu_flag|" "REPRISE_DEVICE=cpu without one says nothing"
expect_equal "$(REPRISE_DEVICE='' chosen //...)" "cpu|$cpu_flag|$reason" "an empty REPRISE_DEVICE is none"
expect_equal "$(REPRISE_CUDA=/cuda chosen //...)" "cuda||" "a toolkit that is named is used"
expect_equal "$(REPRISE_CUDA=/cuda REPRISE_DEVICE=cpu chosen //...)" "cpu|$cpu_flag|" "REPRISE_DEVICE comes before it"

for name in cpu gcc asan ubsan asan_ubsan tsan fuzz; do
  expect_equal "$(REPRISE_DEVICE=cuda chosen --config=$name //...)" "cpu||" "--config=$name comes before REPRISE_DEVICE"
done
expect_equal "$(chosen --config cpu //...)" "cpu||" "--config cpu, in two words"
expect_equal "$(chosen $cpu_flag //...)" "cpu||" "the define itself"
expect_equal "$(chosen --define reprise_device=cpu //...)" "cpu||" "the define in two words"
expect_equal "$(chosen $cpu_flag --define=reprise_device=cuda //...)" "cuda||" "the last define holds"
expect_equal "$(chosen //examples:decode -- --config=cpu)" "cpu|$cpu_flag|$reason" "what follows -- is the program's"
expect_equal "$(chosen --config=opt --define=other=cpu --config //...)" "cpu|$cpu_flag|$reason" "other configurations"

for value in gpu CPU 1; do
  REPRISE_DEVICE=$value run choose_device //...
  expect_status 36 "REPRISE_DEVICE=$value"
  expect_output "REPRISE_DEVICE must be cpu or cuda: it is '$value'." "REPRISE_DEVICE=$value"
done

finish
