"""The CPU engine against Numba's own simulator, where that can run.

The simulator needs no GPU either, but a thread of the operating system per CUDA thread, so the
launches are small. It must be chosen before Numba is imported: hence another process. It has no
warp intrinsics and adds narrow integers as NumPy does, so kernels with those are left out.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
from collection import EVERY

import numba_cuda_simulator as simt

NAMES = """
vector_add threads_3d block_votes every_atomic nested_device_functions dynamic_memory_of_two_types
local_arrays_by_parts stencil_classic prefix_sum_classic euclid_and_powers
""".split()

SIMULATE = """
import sys
import numpy as np
import numba_cuda_simulator as simt

simt.enable()  # the simulator lacks names that some kernels import
from collection import EVERY
simt.disable()

names, path = sys.argv[1].split(), sys.argv[2]
results = {}
for launch in (launch for launch in EVERY if launch.name in names):
    args = launch.arguments()
    launch.kernel[launch.grid, launch.block, 0, launch.shared_bytes](*args)
    results |= {f"{launch.name} {n}": np.asarray(value) for n, value in enumerate(args)}
np.savez(path, **results)
"""


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    path = tmp_path_factory.mktemp("simulator") / "results.npz"
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1", "PYTHONWARNINGS": "ignore"}
    here = os.path.dirname(__file__)
    environment["PYTHONPATH"] = os.pathsep.join([here, os.path.dirname(here)])
    command = [sys.executable, "-c", SIMULATE, " ".join(NAMES), str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    with np.load(path) as results:
        return dict(results)


@pytest.mark.parametrize("name", NAMES)
def test_simulator_agrees(name, simulated):
    (launch,) = (launch for launch in EVERY if launch.name == name)
    args = launch.arguments()
    simt.run(launch.kernel, launch.grid, launch.block, *args, shared_bytes=launch.shared_bytes)
    for n, value in enumerate(args):
        rtol = 1e-6 if np.asarray(value).dtype.kind == "f" else 0
        np.testing.assert_allclose(value, simulated[f"{name} {n}"], rtol=rtol, atol=rtol)
