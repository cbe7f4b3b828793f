"""Does a change leave machine code as it was? Digests of every kernel that the tests compile.

    python -m pytest tests -m "" -k "compile or registers" -p machine_code_digests --digests=a.json
    ... change the code ...
    python -m pytest tests -m "" -k "compile or registers" -p machine_code_digests --digests=b.json
    python tests/machine_code_digests.py a.json b.json [old_name=new_name ...]

A digest is that of the machine code alone, the .text and .nv.constant sections of a cubin: names,
paths and line numbers may change, and so may .nv.constant4, a table of addresses with one for each
device function. Kernels are told apart by name, compute capability and constants;
a kernel compiled for several problems has several digests. Where they differ, registers and
instructions are printed, with those that pad the end: so two Pythons are compared, too.
"""

import hashlib
import importlib
import json
import re
import struct
import sys
from collections import defaultdict
from pathlib import Path

HOPPER = (9, 0, "a")
INSTRUCTION = 16  # bytes
SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")  # of an ELF file of 64 bits


def said_of(code):
    """Registers, instructions, and the digest of instructions and constants of a kernel."""
    cubin = code.cubin
    start = struct.unpack_from("<Q", cubin, 40)[0]
    size, number, names_at = struct.unpack_from("<HHH", cubin, 58)
    headers = [SECTION_HEADER.unpack_from(cubin, start + i * size) for i in range(number)]
    names = headers[names_at][4]
    digests, instructions = [], 0
    for name, _, _, _, offset, length, *_ in headers:
        end = cubin.index(b"\0", names + name)
        kind = re.match(rb"\.text|\.nv\.constant[0-3]|\.nv\.shared", cubin[names + name : end])
        if kind:
            content = b"" if kind[0] == b".nv.shared" else cubin[offset : offset + length]
            digests.append(hashlib.sha256(kind[0] + b"%d" % length + content).hexdigest())
            instructions += length // INSTRUCTION if kind[0] == b".text" else 0
    digest = hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()[:24]
    return f"{code.registers} registers, {instructions} instructions, {digest}"


def pytest_addoption(parser):
    parser.addoption("--digests", help="write digests of all compiled kernels to this JSON file")


def pytest_configure(config):
    path = config.getoption("--digests")
    if not path:
        return
    machine_code = importlib.import_module("fa_numba.analysis.machine_code")

    found = defaultdict(set)
    assemble, compile_for = machine_code.assemble, machine_code.compile_for

    def recorded(kernel, ptx, cc):
        code = assemble(kernel, ptx, cc)
        found[f"{code.name} sm_{''.join(map(str, cc))}"].add(said_of(code))
        return code

    def for_hopper_too(kernel, args, targets=machine_code.TARGETS):
        more = [HOPPER] if (8, 0) in targets and HOPPER not in targets else []
        return compile_for(kernel, args, (*targets, *more))[: len(targets)]

    machine_code.assemble, machine_code.compile_for = recorded, for_hopper_too
    config._digests = Path(path), found


def pytest_unconfigure(config):
    if hasattr(config, "_digests"):
        path, found = config._digests
        if worker := getattr(config, "workerinput", None):
            path = path.with_suffix(f".{worker['workerid']}.json")
        path.write_text(json.dumps({name: sorted(digests) for name, digests in found.items()}))


def read(path):
    """Digests by kernel and target; those of pytest-xdist's workers are put together."""
    path, found = Path(path), defaultdict(set)
    for part in (path, *path.parent.glob(f"{path.stem}.gw*.json")):
        if part.exists():
            for name, digests in json.loads(part.read_text()).items():
                found[name] |= set(digests)
    return found


def main(before, after, *renamed):
    before, after = read(before), read(after)
    for pair in renamed:
        old, new = pair.split("=")
        before = {name.replace(old, new): digests for name, digests in before.items()}
    same = sum(before[name] == after[name] for name in before.keys() & after.keys())
    print(f"{same} of {len(before)} kernels and targets have the same machine code")
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, set()), after.get(name, set())
        if old != new:
            gone, came = ([x.rpartition(",")[0] for x in sorted(s)] for s in (old - new, new - old))
            print(f"{name}: {len(old & new)} the same; {'; '.join(gone)} → {'; '.join(came)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
