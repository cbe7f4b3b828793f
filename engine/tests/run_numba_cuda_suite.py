"""Run the tests of numba-cuda's own suite that apply on the CPU engine, and count what they say.

    python engine/tests/run_numba_cuda_suite.py                all of it; two minutes of a core
    python engine/tests/run_numba_cuda_suite.py test_casting   modules whose names contain this
    python engine/tests/run_numba_cuda_suite.py --write        also write docs/numba_cuda_suite.md

The tests are those of the numba-cuda that is installed, whose wheel holds them. Each runs in a
process of its own with a time limit, so that none can stop or disturb the others.
"""

import argparse
import collections
import importlib
import json
import os
import pkgutil
import re
import resource
import signal
import sys
import time
import types
import unittest
from functools import partial
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "numba_cuda_suite.md"
PACKAGES = "cudapy", "doc_examples", "cudasim"
LIMIT = 20  # seconds of processor time for one test

# Modules that test the compiler, the driver or bindings, not what kernels compute.
LEFT_OUT = {
    "analysis copy_propagate ssa": "passes of the compiler",
    "array_alignment": "alignment in LLVM code",
    "bfloat16_bindings fp8_bindings": "generated bindings",
    "byteflow": "the compiler's reading of byte code",
    "cache_hints": "PTX of loads and stores with cache hints",
    "caching": "the compiler's cache on disk", "cffi": "linking of C code",
    "compiler": "the compiler's own interface", "cupy_bfloat16_interop": "arrays of CuPy",
    "debuginfo debuginfo_types": "debug information in LLVM code",
    "extending_types": "extensions of the compiler", "inspect": "LLVM code, PTX and SASS",
    "ipc": "memory shared between processes", "ir ir_utils": "the compiler's intermediate form",
    "libdevice": "functions of libdevice", "lineinfo": "line numbers in PTX",
    "multigpu": "several GPUs", "multiprocessing": "a driver in several processes",
    "ffi": "linking of C++ code", "cpointer": "C pointers",
    "numba_interop": "the compiler of Numba for CPUs", "serialize": "pickled kernels",
    "tracing": "tracing of the compiler",
}  # fmt: skip
LEFT_OUT = {f"test_{name}": why for names, why in LEFT_OUT.items() for name in names.split()}
WHOLE = "whole folders: the driver, the compiler, its memory manager"

STOPPED = signal.SIGXCPU, signal.SIGKILL, signal.SIGALRM

PASSED, SKIPPED, REFUSED, IRRELEVANT = "passed", "skipped", "refused", "irrelevant"
STRICTER, DIFFERENT, CRASH, SLOW = "stricter", "different", "crash", "time limit"
MEANING = {
    PASSED: "the same result", SKIPPED: "by its own decorator",
    IRRELEVANT: "asks for compiled code, a driver or another package",
    REFUSED: "the engine says that it does not run this, and why",
    STRICTER: "the engine finds an error in the test's kernel",
    DIFFERENT: "another result, or no error where one is expected",
    CRASH: "an error of the engine itself", SLOW: "stopped",
}  # fmt: skip

# Outcome of a test, the reason, and a text in its name or its failure: the first that is found.
REASONS = r"""
irrelevant ; arrays on a GPU, by the CUDA array interface ; cuda_array_interface|cupy
irrelevant ; the driver's memory ; gpu_data|memalloc|memory_manager|DriverLibNotFound
irrelevant ; the compiler's hooks ; LaunchConfigSensitive|launch_config|compile_config
irrelevant ; asks for compiled code: PTX, SASS, LLVM code, registers ; DebugOutput|NumbaDebug
irrelevant ; asks for compiled code: PTX, SASS, LLVM code, registers ; LaunchBounds
irrelevant ; asks for compiled code: PTX, SASS, LLVM code, registers ; is not compiled for a GPU
irrelevant ; asks for compiled code: PTX, SASS, LLVM code, registers ; compile_ptx|inspect_
irrelevant ; asks for compiled code: PTX, SASS, LLVM code, registers ; _type_annotation|device_noopt
irrelevant ; the driver: streams, occupancy ; external_stream|inefficient_launch|warn_on_host
irrelevant ; extensions of the compiler: handlers of arguments ; in_from_config
different ; an error in other words ; invalid_flags|number_of_pos_args|cuda_nopython
refused ; dates, strings and bytes ; take numbers, not a str
stricter ; a thread indexes a tuple out of bounds ; out of bounds for a tuple
refused ; extensions of the compiler: overloads, intrinsics, new types ; calling the plain Python
refused ; extensions of the compiler: overloads, intrinsics, new types ; Interval|vobj|v1'|A.foo
refused ; extensions of the compiler: overloads, intrinsics, new types ; A.litfoo|identity|void_func
refused ; NumPy's ufuncs of whole arrays ; gufunc_copy|np.sin.. does not
refused ; packed records as constants ; whole elements|names.: ..a|TestAlignment
refused ; foreign functions in C++ or PTX ; cta_barrier
refused ; C pointers ; cpointer
irrelevant ; the driver's memory ; no_transfer_for_device_data
refused ; foreign functions in C++ or PTX ; 'ffi'|'times.'|'add2'|'const42'|'consume'
refused ; functions defined inside a kernel ; defined inside a kernel|MakeFunction
refused ; methods of integers ; bit_count
refused ; methods and parts of whole arrays ; copy is not available|.view of an array|values.real
refused ; methods and parts of whole arrays ; values.imag
refused ; records in shared or local memory, or with nested arrays ; shared and local arrays of
refused ; records in shared or local memory, or with nested arrays ; struct_model_type|recarray
refused ; records in shared or local memory, or with nested arrays ; NestedArray
refused ; dates, strings and bytes ; datetime|np.datetime|bytes constant|<U|string
refused ; vector types ; float32x2|float64x2|VectorType
refused ; functions of @njit in another module ; the module 'mymod'|cpu_dispatcher
different ; `is` of equal members of two IntEnums: both are integers ; EnumTest.test_compare
refused ; refused by Numba too, in other words ; SignatureError|explicit_signatures|forall_negative
refused ; refused by Numba too, in other words ; as_kernel_disallowed
stricter ; reads shared memory that nobody wrote ; UninitialisedReadError
stricter ; grid.sync() in a branch that most threads do not take ; sessionize
stricter ; a race between the threads of a warp ; warp_diverge
different ; runs what Numba refuses at compile time, or refuses it at the call ; not raised
different ; works, where numba-cuda knows of a bug of its own ; passes, where numba-cuda
different ; an error in other words ; typing_error|user_exception
different ; globals are read at each launch, not frozen at the first ; constant_capture
different ; infinite complex numbers: the sign of a zero, or NaN for 0 ; TestCMath
time limit ; billions of threads, or thousands of steps: too slow ; issue_9229|3d_grid|laplace
"""
REASONS = [line.split(" ; ") for line in REASONS.strip().splitlines()]

# What a failed test needs that no engine for kernels has, by the text of its traceback.
NEEDS = [
    (r"CudaSupportError|CUDA_ERROR|No CUDA|Error at driver init|_init_driver", "a driver"),
    (r"inspect_|compile_ptx|\.compile\(|\.overloads|\.specialize|get_regs_per|nvvm|\.ptx", "PTX"),
    (r"No module named", "a package that is not installed"),
    (r"subprocess|run_in_subprocess|spawn", "a GPU in a subprocess"),
]


def modules(wanted):
    """Return the names of the test modules that apply."""
    import numba.cuda.tests as tests

    found = []
    for package in PACKAGES:
        folder = importlib.import_module(f"{tests.__name__}.{package}")
        for module in pkgutil.iter_modules(folder.__path__):
            if module.name.startswith("test_") and module.name not in LEFT_OUT:
                if not wanted or any(w in module.name for w in wanted):
                    found.append(f"{folder.__name__}.{module.name}")
    return found


def pretend_a_device():
    """Let modules be imported that ask for a device's compute capability while they are.

    The package filecheck, for tests that read PTX, is replaced by names that are never called.
    """
    names = {"matcher": "Matcher", "options": "Options", "finput": "FInput", "parser": "Parser"}
    for module, name in names.items():
        made = sys.modules[f"filecheck.{module}"] = types.ModuleType(f"filecheck.{module}")
        setattr(made, name, None)
    sys.modules["filecheck"] = types.ModuleType("filecheck")
    sys.modules["filecheck.parser"].pattern_for_opts = None
    from numba import cuda
    from numba.cuda import testing
    from numba.cuda.cudadrv import devices
    from numba.cuda.tests import support

    device = types.SimpleNamespace(
        compute_capability=(9, 0), name=b"none", MULTIPROCESSOR_COUNT=132, WARP_SIZE=32,
        MAX_THREADS_PER_BLOCK=1024, id=0, reset=lambda: None,
    )  # fmt: skip
    context = types.SimpleNamespace(device=device, reset=lambda: None, synchronize=lambda: None)
    cuda.get_current_device = lambda: device
    cuda.current_context = devices.get_context = lambda *_: context
    for mixin in support.MemoryLeakMixin, support.EnableNRTStatsMixin:  # of the driver's memory
        mixin.setUp, mixin.tearDown = unittest.TestCase.setUp, unittest.TestCase.tearDown
    testing.cc_X_or_above = lambda major, minor: True
    for name in [n for n in vars(testing) if n.startswith("skip_unless_cc_")]:
        setattr(testing, name, lambda function: function)


def tests_in(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_in(test)
        else:
            yield test


def run_module(name, limit):
    """Run one module's tests, each in a fork; return [test, outcome, text, seconds] of each."""
    import numba_cuda_simulator as simt

    simt.enable(as_gpu=True)
    try:
        module = importlib.import_module(name)
    except BaseException as error:
        outcome = SKIPPED if isinstance(error, unittest.SkipTest) else IRRELEVANT
        return [[name, outcome, f"the module is not imported: {error}", 0]]
    found = []
    for test in tests_in(unittest.defaultTestLoader.loadTestsFromModule(module)):
        test._dump_failed_filechecks = False
        found.append([test.id(), *in_a_fork(run_test, test, limit)])
    return found


def in_a_fork(function, argument, limit):
    """Return what a function returns, a list, called in a process of its own; and the seconds.

    limit : seconds of processor time.
    """
    read, write = os.pipe()
    start = time.monotonic()
    child = os.fork()
    if not child:
        os.close(read)
        if limit:
            resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 1))
            signal.alarm(20 * int(limit))  # of a test that waits
        with open(write, "w") as file:
            json.dump(function(argument), file)
        os._exit(0)
    os.close(write)
    with open(read) as file:
        text = file.read()
    _, status = os.waitpid(child, 0)
    seconds = round(time.monotonic() - start, 1)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in STOPPED:
        return SLOW, f"more than {limit} seconds", seconds
    return (*json.loads(text), seconds) if text else (CRASH, "the process died", seconds)


def run_test(test):
    """Run one test quietly; return its outcome and what it said."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    result = unittest.TestResult()
    test.run(result)
    return verdict(result)


def verdict(result):
    if result.skipped:
        return SKIPPED, result.skipped[0][1]
    if result.unexpectedSuccesses:
        return DIFFERENT, "passes, where numba-cuda expects a failure"
    problems = result.errors + result.failures
    if not problems:
        return PASSED, ""
    return judge(problems[0][1])


def judge(text):
    """Tell from a traceback what kind of failure it is; return it with its last lines."""
    last = [line for line in text.splitlines() if line and not line.startswith(" ")][-1]
    if "Stdout:" in text:
        text = text.partition("Stdout:")[0]
    names = "UnsupportedError|LaunchError|KernelError|KernelNameError|FieldError|SignatureError"
    found = re.search(rf"^(?:\S*\.)?({names}): (.*)", text, re.M)
    strict = "RaceError|KernelIndexError|BarrierDivergenceError|UninitialisedReadError"
    stern = re.search(rf"^(?:\S*\.)?({strict}|KernelZeroDivisionError): (.*)", text, re.M)
    for pattern, what in NEEDS:
        if re.search(pattern, text) and not found and not stern:
            return IRRELEVANT, f"needs {what}: {last[:150]}"
    if found:
        return REFUSED, found.group(0)[:300]
    if stern:
        return STRICTER, stern.group(0)[:300]
    if "AssertionError" in last or "AssertionError" in text:
        return DIFFERENT, text[-700:]
    return CRASH, text[-700:]


def run_all(wanted, limit):
    """Run all modules, each in a fork of this process, which has imported what all need."""
    from numba import cuda  # noqa: F401

    import numba_cuda_simulator as simt  # noqa: F401

    pretend_a_device()
    found = []
    for name in modules(wanted):
        *lines, _ = in_a_fork(partial(run_module, limit=limit), name, None)
        found += lines
        counts = collections.Counter(line[1] for line in lines)
        print(name.rpartition(".")[2], dict(counts), flush=True)
    return found


def reason(test, outcome, text):
    """Return the outcome, as the reasons correct it, and why the test does not pass."""
    if outcome in (PASSED, SKIPPED):
        return outcome, ""
    for kind, why, pattern in REASONS:
        if re.search(pattern, f"{test}\n{text}", re.I):
            return kind, why
    if outcome == IRRELEVANT:
        return outcome, text.partition(":")[0]
    return outcome, "not explained"


def page(found):
    """Return the text of the page: how many, and why the others do not pass."""
    rows = [(test, *reason(test, outcome, text)) for test, outcome, text, _ in found]
    counts = collections.Counter(kind for _, kind, _ in rows)
    lines = [
        "# The tests of numba-cuda on the CPU engine",
        "",
        f"numba-cuda {version('numba-cuda')}, {time.strftime('%Y-%m-%d')}, "
        "`python engine/tests/run_numba_cuda_suite.py --write`. "
        "Its own tests, those that ask what a kernel computes; each in a process of its own, with "
        f"{LIMIT} seconds of processor time.",
        "",
        "| outcome | tests | |",
        "|---|---:|---|",
        *(f"| {kind} | {counts[kind]} | {MEANING[kind]} |" for kind in MEANING),
        f"| all | {len(rows)} | |",
        "",
        "## Why the others do not pass",
        "",
        "| outcome | tests | reason | which |",
        "|---|---:|---|---|",
    ]
    groups = collections.defaultdict(list)
    for test, kind, why in rows:
        if why:
            groups[kind, why].append(test.split(".")[-1])
    order = list(MEANING)
    for kind, why in sorted(groups, key=lambda key: (-order.index(key[0]), key[1])):
        names = sorted(set(groups[kind, why]))
        listed = f"`{names[0]}`, ..." if kind in (REFUSED, IRRELEVANT) and len(names) > 4 else ""
        which = listed or ", ".join(f"`{name}`" for name in names)
        lines.append(f"| {kind} | {len(groups[kind, why])} | {why} | {which} |")
    lines += ["", "## Modules that were left out", "", "| module | subject |", "|---|---|"]
    lines += [f"| cudadrv, core, nocuda, nrt | {WHOLE} |"]
    lines += [f"| {name} | {why} |" for name, why in sorted(LEFT_OUT.items())]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wanted", nargs="*", help="parts of module names")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    parser.add_argument("--json", help="also write every outcome to this file")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for a test")
    options = parser.parse_args()
    found = run_all(options.wanted, options.limit)
    print(collections.Counter(reason(*line[:3])[0] for line in found))
    if options.write:
        PAGE.write_text(page(found))
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=0))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    os.environ["NUMBA_ENABLE_CUDASIM"] = "0"
    main()
