"""PyTorch is optional: nothing imports it but fa_numba.torch, which says what to install."""

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

NO_ML_DTYPES = """
import sys
sys.modules["ml_dtypes"] = None
import torch
from fa_numba.torch import flash_attn_func, scaled_dot_product_attention
x = torch.ones(1, 2, 3, 4, requires_grad=True)
for attend in (flash_attn_func, scaled_dot_product_attention):
    attend(x, x, x).sum().backward()
    with torch.autocast("cpu", torch.float16):
        attend(x, x, x).sum().backward()
    try:
        with torch.autocast("cpu"):  # to bfloat16
            attend(x, x, x)
    except ImportError as error:
        assert "is bfloat16, " in str(error) and "pip install ml_dtypes" in str(error), error
    else:
        raise AssertionError
"""


def run(code):
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_pytorch_is_imported_by_those_who_ask():
    modules = "fa_numba.workbook.cli, fa_numba.distributed, fa_numba.checks, fa_numba.cpu"
    run(f"import sys, {modules}; assert 'torch' not in sys.modules")


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")
def test_an_import_leaves_the_compiler_of_pytorch_alone():
    """torch._dynamo takes seconds to import."""
    run("import sys, fa_numba.torch; assert 'torch._dynamo' not in sys.modules")


def test_without_pytorch_the_error_says_what_to_install():
    run(
        "import sys; sys.modules['torch'] = None\n"
        "try:\n    import fa_numba.torch\n"
        "except ImportError as error:\n    assert 'pip install torch' in str(error)\n"
        "else:\n    raise AssertionError"
    )


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")
def test_without_ml_dtypes_bfloat16_says_what_to_install():
    """torch.autocast casts to bfloat16 on a CPU. The other dtypes need nothing."""
    run(NO_ML_DTYPES)


def test_pip_installs_ml_dtypes_with_pytorch():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert any(x.startswith("ml_dtypes") for x in project["optional-dependencies"]["torch"])
