# shellcheck shell=bash
# Programs for a machine with a GPU that has LibTorch and nothing else of ours. Sourced by tools/gpu_bundle.sh and
# tools/mutations/mutate.py, and over there by the scripts that run what they have packed.

# add_program BINARY FOLDER [NAME]: copies it, stripped, and the shared libraries that it needs beyond what every
# Linux has and what LibTorch and CUDA bring.
add_program() {
  local binary=$1 content=$2 name=${3:-$(basename "$1")}
  mkdir -p "$content/lib"
  strip -o "$content/$name" "$binary"
  local library path
  ldd "$binary" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' |
    { grep -vE '^(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|ld-linux[^ ]*)\.so' || true; } |
    { grep -vE '^lib(torch|c10|cudart|cublas|cublasLt|cudnn|cupti|nvrtc|nccl|cufft|curand|cusolver|cusparse|cufile|nvshmem|gomp|shm|caffe2|nvJitLink|nvToolsExt|cusparseLt|triton)[^ ]*\.so' || true; } |
    while read -r library path; do
      cp -Lf "$path" "$content/lib/$library"
      strip "$content/lib/$library" 2>/dev/null || true
    done
}

# pack_programs CONTENT FOLDER: FOLDER/bundle.tar.xz of what is in CONTENT, and this file for those who unpack it.
# Programs that hold the same kernels take little more than one of them: the dictionary spans all.
pack_programs() {
  cp tools/gpu_pack.sh "$2/"
  tar -C "$1" --sort=name -cf - . | xz --lzma2=preset=1,dict=256MiB >"$2/bundle.tar.xz"
}

# unpack_programs FOLDER: unpacks FOLDER/bundle.tar.xz into a folder that is removed at exit, as `here`; LibTorch and
# CUDA are those of LIBTORCH, or of python3. Needs neither tar nor xz.
unpack_programs() {
  here=$(mktemp -d)
  trap 'rm -rf "$here"' EXIT
  python3 -m tarfile -e "$1/bundle.tar.xz" "$here" || { echo "no bundle in $1" >&2; exit 2; }
  local torch=${LIBTORCH:-$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))')}
  [ -e "$torch/lib/libtorch_cuda.so" ] || { echo "no LibTorch with CUDA at '$torch'" >&2; exit 2; }
  local cuda
  cuda=$(ls -d "$(dirname "$torch")"/nvidia/*/lib 2>/dev/null | tr '\n' ':')
  export LD_LIBRARY_PATH="$here/lib:$torch/lib:${cuda}${LD_LIBRARY_PATH:-}"
}
