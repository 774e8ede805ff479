#!/usr/bin/env python3
"""Puts empty stand-ins for the CUDA libraries beside torch's own, so that a CUDA build of torch can be imported on a
machine without them. Nothing in them works: every function reports an error, or that there is no device.

Usage: make_cuda_stubs.py TORCH_LIB_FOLDER      needs gcc and binutils
"""

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

CUDA_LIBRARY = re.compile(r"lib(cu|nv|nccl|cap)")
CUDA_FUNCTION = re.compile(r"(__)?(cu|nv|nccl|cap)", re.IGNORECASE)
CUDA_CXX_FUNCTION = re.compile(r"_Z.*(cuda|cudnn|nccl|nvshmem|cu[A-Z])")

# Functions whose result is used while torch is imported. All others return an error code.
BODIES = {
    "cudaGetErrorString": 'const char *cudaGetErrorString(int e) { return "this is a stand-in for CUDA"; }',
    "cudaGetErrorName": 'const char *cudaGetErrorName(int e) { return "cudaErrorStandIn"; }',
    "cudaGetLastError": "int cudaGetLastError(void) { return 0; }",
    "cudaPeekAtLastError": "int cudaPeekAtLastError(void) { return 0; }",
    "cudaGetDeviceCount": "int cudaGetDeviceCount(int *count) { *count = 0; return 100; }",
    "cudaDriverGetVersion": "int cudaDriverGetVersion(int *version) { *version = 0; return 0; }",
    "cudaRuntimeGetVersion": "int cudaRuntimeGetVersion(int *version) { *version = 13000; return 0; }",
    "__cudaRegisterFatBinary": "static void *slot[64]; void **__cudaRegisterFatBinary(void *x) { return slot; }",
}


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def read(library):
    """Libraries that it needs, symbols it misses (with version), symbols it has, versions by library."""
    needed = set(re.findall(r"\(NEEDED\).*\[(.+?)\]", output("readelf", "-dW", library)))
    missing, present, versions = {}, set(), {}
    for line in output("nm", "-D", library).splitlines():
        *_, kind, symbol = line.split()
        name, _, version = symbol.partition("@")
        if kind == "U":
            missing[name] = version.lstrip("@")
        elif kind in "TtWwVvBbDdRriuG":
            present.add(name)
    owner = None
    for line in output("readelf", "-VW", library).splitlines():
        if found := re.search(r"File: (\S+)", line):
            owner = found.group(1)
        if found := re.search(r"Name: (\S+)\s+Flags", line):
            versions[found.group(1)] = owner
    return needed, missing, present, versions


def body(symbol):
    if symbol in BODIES:
        return BODIES[symbol]
    return f"long {symbol}(void) {{ return {0 if symbol.startswith('__') else 100}; }}"


def build(path, symbols, versions):
    """A library with these symbols, each under its version."""
    with tempfile.TemporaryDirectory() as folder:
        source, script = Path(folder, "stub.c"), Path(folder, "versions")
        source.write_text("\n".join(body(symbol) for symbol, _ in symbols))
        groups = []
        for version in sorted(versions):
            names = [symbol for symbol, its in symbols if its == version] or ["__none"]
            groups.append(f'{version} {{ global: {" ".join(f"{name};" for name in names)} }};')
        script.write_text("\n".join(groups))
        command = ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", "-o", path, f"-Wl,-soname,{path.name}", source]
        if groups:
            command.append(f"-Wl,--version-script={script}")
        subprocess.run(command, check=True)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    own = [path for path in folder.glob("*.so*") if path.is_file() and not CUDA_LIBRARY.match(path.name)]
    needed, missing, present, owners = set(), {}, set(), {}
    for library in own:
        its_needed, its_missing, its_present, its_versions = read(library)
        needed |= its_needed
        present |= its_present
        missing = {**its_missing, **missing}
        owners |= {version: owner for version, owner in its_versions.items() if owner}
    here = {path.name for path in own}
    stubs = sorted(name for name in needed - here if CUDA_LIBRARY.match(name))
    if not stubs:
        sys.exit(f"{folder}: no CUDA library is needed")
    owners = {version: owner for version, owner in owners.items() if owner in stubs}

    places = defaultdict(list)
    for symbol, version in sorted(missing.items()):
        wanted = CUDA_CXX_FUNCTION if symbol.startswith("_Z") else CUDA_FUNCTION
        if symbol not in present and wanted.match(symbol):
            place = owners.get(version, stubs[0])
            places[place].append((symbol, version if version in owners else None))
    for name in stubs:
        build(folder / name, places[name], {version for version, owner in owners.items() if owner == name})
    print(f"made {len(stubs)} stand-ins with {sum(map(len, places.values()))} functions in {folder}")


if __name__ == "__main__":
    main()
