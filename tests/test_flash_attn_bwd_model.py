"""The backward kernels' source on a model of a Hopper GPU: indices, barriers, layouts.

Each case has a process of its own, because the model replaces names of Numba.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("greenlet", reason="needs greenlet")
pytest.importorskip("numba.cuda.extending", reason="needs numba-cuda")

TESTS = Path(__file__).parent
SIZES = ("batch", "seqlen_q", "seqlen_k", "heads", "head_dim", "causal", "blocks")
SLOPES = (0.5, 0.25, 0.125, 1)
ALL_MASKS = {"window_size": (30, 20), "softcap": 15.0, "alibi_slopes": SLOPES[:2]}
CASES = [
    # flash_attn_bwd_persistent
    ((1, 200, 330, (1, 1), 128, True, 1), {}),
    ((1, 200, 150, (4, 2), 128, True, 2), {"alibi_slopes": SLOPES}),  # in step; rows without keys
    ((1, 140, 390, (2, 1), 72, True, 2), {"softcap": 15.0}),  # in step
    ((1, 260, 390, (2, 1), 64, True, 2), {}),  # in step; masks as bits
    ((1, 260, 140, (2, 2), 64, True, 1), {"alibi_slopes": SLOPES[:2]}),
    ((1, 140, 260, (1, 1), 40, True, 2), {"softcap": 15.0}),
    ((1, 140, 260, (2, 1), 128, False, 2), {}),
    ((1, 90, 130, (2, 1), 64, False, 1), ALL_MASKS),
    ((1, 260, 300, (2, 1), 64, True, 1), {"order": "by arrival"}),
    ((1, 140, 260, (2, 2), 128, True, 1), {"order": "ordered"}),
    # flash_attn_bwd_wide
    ((1, 330, 130, (1, 1), 136, False, 1), {}),
    ((1, 130, 100, (1, 1), 256, False, 2), {}),
    ((1, 70, 130, (2, 1), 136, True, 1), {"order": "ordered"}),
    ((1, 100, 70, (2, 2), 192, True, 1), {}),  # rows that see no key
    ((1, 140, 180, (4, 2), 136, True, 2), {"alibi_slopes": SLOPES}),  # in step
    ((1, 90, 130, (2, 1), 200, False, 1), ALL_MASKS),
]


@pytest.mark.parametrize("sizes, options", CASES, ids=lambda x: "-".join(map(str, x)))
def test_gradients_on_a_model(sizes, options):
    case = json.dumps(dict(zip(SIZES, sizes, strict=True)) | options)
    program = [sys.executable, TESTS / "flash_attn_bwd_on_model.py", case]
    path = os.pathsep.join((str(TESTS.parent), str(TESTS)))
    environment = {**os.environ, "PYTHONPATH": path}
    run = subprocess.run(program, capture_output=True, text=True, timeout=600, env=environment)
    assert run.returncode == 0, run.stdout + run.stderr[-2000:]
