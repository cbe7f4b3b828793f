"""PyTorch is optional: nothing imports it but fa_numba.torch, which says what to install."""

import subprocess
import sys


def run(code):
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_pytorch_is_imported_by_those_who_ask():
    modules = "fa_numba.workbook.cli, fa_numba.distributed, fa_numba.checks, fa_numba.cpu"
    run(f"import sys, {modules}; assert 'torch' not in sys.modules")


def test_without_pytorch_the_error_says_what_to_install():
    run(
        "import sys; sys.modules['torch'] = None\n"
        "try:\n    import fa_numba.torch\n"
        "except ImportError as error:\n    assert 'pip install torch' in str(error)\n"
        "else:\n    raise AssertionError"
    )
