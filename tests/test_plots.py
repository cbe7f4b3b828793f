"""benchmarks.plots: what has been measured is drawn, the same every time; the rest is left out."""

import itertools
import json

import pytest

pytest.importorskip("matplotlib")
import numpy as np
from colours import contrast, in_the_dark
from matplotlib.colors import to_rgb

from benchmarks import plots
from fa_numba.figures.themes import SVG_STYLE


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Writes rows to where the plots look for results."""
    monkeypatch.setattr(plots, "RESULTS", tmp_path)

    def record(question, rows):
        text = json.dumps({"machine": "a GPU, a driver", "rows": rows})
        (tmp_path / f"{question}.json").write_text(text)

    return record


def rates(*kernels, **more):
    sizes = itertools.product((64, 128, 96), (1024, 8192), (False, True))
    return [
        {"kernel": kernel, "head_dim": d, "seqlen": n, "causal": causal, "TFLOP/s": 9.5, **more}
        for kernel in kernels
        for d, n, causal in sizes
    ]


def test_nothing_measured_is_nothing_drawn(results, tmp_path):
    plots.write(tmp_path / "plots")
    assert not list((tmp_path / "plots").iterdir())


def test_pictures_of_all_results(results, tmp_path, monkeypatch):
    half = {"dtype": "float16"}
    ours = "flash_attn_mma", "flash_attn_persistent", "SDPA cuDNN", "unknown"
    results("tensor_core", rates(*ours, **half) + rates("flash_attn_mma", dtype="bfloat16"))
    results("tensor_core_bwd", rates("flash_attn_bwd_persistent", **half))
    product = {"kernel": plots.PRODUCT, "dtype": "float16", "TFLOP/s": 790.0}
    refused = {"kernel": "FlexAttention", **half, "does not run": "why"}
    sizes = {"head_dim": 128, "seqlen": 8192, "causal": False}
    results("peers", [product, refused | sizes, *rates("Triton", **half)])
    steps = rates("naive_attn", "flash_attn_v2")
    results("ladder", [{"step": row.pop("kernel"), **row} for row in steps])
    results("softmax", [{"kernel": "online_softmax", "GB/s": 2000}])
    decoded = {"dtype": "float16", "page_size": None, "GB/s": 3500, "of copy": 0.9}
    decoded |= {"batch": 1, "seqlen": 65_536, "heads": "32/8"}
    results("decode_fast", [decoded | {"kernel": k} for k in ("flash_decode_mma", "SDPA FA2")])
    plots.write(tmp_path / "all")
    assert {path.stem for path in (tmp_path / "all").iterdir()} == set(plots.PICTURES)
    monkeypatch.setattr(plots, "PICTURES", {"roofline": plots.roofline})
    plots.write(tmp_path / "again")
    first, again = (
        (tmp_path / folder / "roofline.svg").read_bytes() for folder in ("all", "again")
    )
    assert first == again and SVG_STYLE.encode() in first


@pytest.mark.parametrize("theme", [np.asarray, in_the_dark])
def test_colours_stand_out_on_their_ground(theme):
    for name, colour in (plots.STEPS | plots.LIBRARIES).values():
        assert contrast(theme(to_rgb(colour)), theme(to_rgb(plots.PAPER))) >= 4.5, name
