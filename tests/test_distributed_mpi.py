"""fa_numba.distributed on processes: the bits of ranks in one process, and an end to every wait."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import mpi_program
import numpy as np
import pytest
from cases import thorough
from serving_models import wait_until

from fa_numba.distributed import ring_attn, run_ranks

MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
ROOT = Path(__file__).parents[1]

missing = importlib.util.find_spec("mpi4py") is None or MPIEXEC is None
why_not = "mpi4py or mpiexec is missing: pip install fa-numba[mpi]"


def needs_mpi(test):
    return pytest.mark.mpi(pytest.mark.skipif(missing, reason=why_not)(test))


def mpiexec(world_size, *args):
    """Run the program under mpiexec: exit status and what it wrote."""
    program = [sys.executable, str(ROOT / "tests" / "mpi_program.py"), *map(str, args)]
    common = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/engine", "OMP_NUM_THREADS": "1"}
    # Open MPI refuses root, and more ranks than cores, unless told.
    common |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    common |= {"OMPI_MCA_rmaps_base_oversubscribe": "1"}
    command = [MPIEXEC, "-n", str(world_size), *program]
    how = {"capture_output": True, "text": True, "timeout": 120, "env": os.environ | common}
    run = subprocess.run(command, **how)
    return run.returncode, run.stdout + run.stderr


@needs_mpi
@pytest.mark.parametrize("world_size", [thorough(2), 4])
def test_processes_give_the_bits_of_threads(tmp_path, world_size):
    path = tmp_path / "results.npz"
    status, output = mpiexec(world_size, path)
    assert status == 0, output
    got, wanted = np.load(path), set()
    for name, function, shards, options in mpi_program.calls(*mpi_program.inputs(), world_size):
        function = mpi_program.ring_and_gradients if function is ring_attn else function
        run = run_ranks(function, world_size, *shards, **options)
        counts = np.stack([run.bytes_sent, run.messages, run.pairs], axis=-1)
        for rank, result in enumerate(run.results):
            for i, x in enumerate((*result, counts[rank])):
                key = f"{name}_{i}_{rank}"
                np.testing.assert_array_equal(got[key], x, key, strict=True)
                wanted.add(key)
    assert set(got) == wanted


@needs_mpi
@pytest.mark.parametrize(
    "fault, why", [("raise", "ValueError: out of luck"), ("stall", "no answer within 1 s")]
)
def test_a_lost_rank_is_an_error_on_the_others(tmp_path, fault, why):
    status, output = mpiexec(3, tmp_path / "results.npz", fault)
    assert status != 0
    assert output.count(f"RankLostError: rank 1 is lost: {why}") == 2, output
    assert not (tmp_path / "results.npz").exists()


def shared_files():
    return set(Path("/dev/shm").glob("mpich_shm_*"))


@needs_mpi
def test_a_killed_process_ends_the_program(tmp_path):
    before = shared_files()
    status, output = mpiexec(3, tmp_path / "results.npz", "kill")
    assert status != 0, output
    assert not (tmp_path / "results.npz").exists()
    left = shared_files() - before
    wait_until(lambda: not any(path.exists() for path in left))  # of other tests, not of this one


@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is not None, reason="mpi4py is installed")
def test_without_mpi4py():
    from fa_numba.distributed import mpi

    with pytest.raises(ImportError, match=r"needs mpi4py .*pip install fa-numba\[mpi\]"):
        with mpi.communicator():
            raise AssertionError("no communicator without mpi4py")
