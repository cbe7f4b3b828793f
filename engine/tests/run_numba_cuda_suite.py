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
    "cudadrv, core, nocuda, nrt": "whole folders: the driver, the compiler, its memory manager",
    "test_analysis": "passes of the compiler",
    "test_array_alignment": "alignment in LLVM code",
    "test_bfloat16_bindings": "generated bindings",
    "test_byteflow": "the compiler's reading of byte code",
    "test_cache_hints": "PTX of loads and stores with cache hints",
    "test_caching": "the compiler's cache on disk",
    "test_cffi": "linking of C code",
    "test_compiler": "the compiler's own interface",
    "test_copy_propagate": "passes of the compiler",
    "test_cupy_bfloat16_interop": "arrays of CuPy",
    "test_debuginfo": "debug information in LLVM code",
    "test_debuginfo_types": "debug information in LLVM code",
    "test_extending_types": "extensions of the compiler",
    "test_fp8_bindings": "generated bindings",
    "test_inspect": "LLVM code, PTX and SASS",
    "test_ipc": "memory shared between processes",
    "test_ir": "the compiler's intermediate form",
    "test_ir_utils": "the compiler's intermediate form",
    "test_libdevice": "functions of libdevice",
    "test_lineinfo": "line numbers in PTX",
    "test_multigpu": "several GPUs",
    "test_multiprocessing": "a driver in several processes",
    "test_ffi": "linking of C++ code",
    "test_cpointer": "C pointers",
    "test_numba_interop": "the compiler of Numba for CPUs",
    "test_serialize": "pickled kernels",
    "test_ssa": "passes of the compiler",
    "test_tracing": "tracing of the compiler",
}

STOPPED = signal.SIGXCPU, signal.SIGKILL, signal.SIGALRM

PASSED, SKIPPED, REFUSED, IRRELEVANT = "passed", "skipped", "refused", "irrelevant"
STRICTER, DIFFERENT, CRASH, SLOW = "stricter", "different", "crash", "time limit"
MEANING = {
    PASSED: "the same result",
    SKIPPED: "by its own decorator",
    IRRELEVANT: "asks for compiled code, a driver or another package",
    REFUSED: "the engine says that it does not run this, and why",
    STRICTER: "the engine finds an error in the test's kernel",
    DIFFERENT: "another result, or no error where one is expected",
    CRASH: "an error of the engine itself",
    SLOW: "stopped",
}

# Why a test does not pass: the first text that is found in its name or its failure.
REASONS = [
    ("cuda_array_interface|cupy", IRRELEVANT, "arrays on a GPU, by the CUDA array interface"),
    ("gpu_data|memalloc|memory_manager|DriverLibNotFound", IRRELEVANT, "the driver's memory"),
    ("LaunchConfigSensitive|launch_config|compile_config", IRRELEVANT, "the compiler's hooks"),
    (
        "DebugOutput|NumbaDebug|LaunchBounds|is not compiled for a GPU|compile_ptx|inspect_|"
        "_type_annotation|device_noopt",
        IRRELEVANT,
        "asks for compiled code: PTX, SASS, LLVM code, registers",
    ),
    (
        "external_stream|inefficient_launch|warn_on_host",
        IRRELEVANT,
        "the driver: streams, occupancy",
    ),
    ("in_from_config", IRRELEVANT, "extensions of the compiler: handlers of arguments"),
    ("invalid_flags|number_of_pos_args|cuda_nopython", DIFFERENT, "an error in other words"),
    ("take numbers, not a str", REFUSED, "dates, strings and bytes"),
    ("out of bounds for a tuple", STRICTER, "a thread indexes a tuple out of bounds"),
    (
        "calling the plain Python function|Interval|vobj|v1'|A.foo|A.litfoo|identity|void_func",
        REFUSED,
        "extensions of the compiler: overloads, intrinsics, new types",
    ),
    ("gufunc_copy|np.sin.. does not", REFUSED, "NumPy's ufuncs of whole arrays"),
    ("whole elements|names.: ..a|TestAlignment", REFUSED, "packed records as constants"),
    ("cta_barrier", REFUSED, "foreign functions in C++ or PTX"),
    ("cpointer", REFUSED, "C pointers"),
    ("no_transfer_for_device_data", IRRELEVANT, "the driver's memory"),
    ("'ffi'|'times.'|'add2'|'const42'|'consume'", REFUSED, "foreign functions in C++ or PTX"),
    ("defined inside a kernel|MakeFunction", REFUSED, "functions defined inside a kernel"),
    ("bit_count", REFUSED, "methods of integers"),
    (
        "copy is not available|.view of an array|values.real|values.imag",
        REFUSED,
        "methods and parts of whole arrays",
    ),
    (
        "shared and local arrays of|struct_model_type|recarray|NestedArray",
        REFUSED,
        "records in shared or local memory, or with nested arrays",
    ),
    ("datetime|np.datetime|bytes constant|<U|string", REFUSED, "dates, strings and bytes"),
    ("float32x2|float64x2|VectorType", REFUSED, "vector types"),
    ("the module 'mymod'|cpu_dispatcher", REFUSED, "functions of @njit in another module"),
    (
        "EnumTest.test_compare",
        DIFFERENT,
        "`is` of equal members of two IntEnums: both are integers",
    ),
    (
        "SignatureError|explicit_signatures|forall_negative|as_kernel_disallowed",
        REFUSED,
        "refused by Numba too, in other words",
    ),
    ("UninitialisedReadError", STRICTER, "reads shared memory that nobody wrote"),
    ("sessionize", STRICTER, "grid.sync() in a branch that most threads do not take"),
    ("warp_diverge", STRICTER, "a race between the threads of a warp"),
    (
        "not raised|Exception not raised",
        DIFFERENT,
        "runs what Numba refuses at compile time, or refuses it at the call",
    ),
    ("passes, where numba-cuda", DIFFERENT, "works, where numba-cuda knows of a bug of its own"),
    ("typing_error|user_exception", DIFFERENT, "an error in other words"),
    ("constant_capture", DIFFERENT, "globals are read at each launch, not frozen at the first"),
    ("TestCMath", DIFFERENT, "infinite complex numbers: the sign of a zero, or NaN for 0"),
    ("issue_9229|3d_grid|laplace", SLOW, "billions of threads, or thousands of steps: too slow"),
]

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
    for pattern, kind, why in REASONS:
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
        f"numba-cuda {version('numba-cuda')}, "
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
    lines += [f"| {name} | {why} |" for name, why in LEFT_OUT.items()]
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
