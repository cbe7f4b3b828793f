"""`fa-numba train` and `fa-numba generate`, as a user types them."""

import contextlib
import errno
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from fa_numba.language_model import checkpoint, command, kernel_choice
from fa_numba.workbook import cli

SOLUTIONS = Path(__file__).parents[1] / "solutions"
TINY = "--layers 1 --heads 2 --kv-heads 1 --head-dim 8 --context 16 --batch 4".split()
SENTENCE = "the cat sat on the mat, and the rat sat on the cat.\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(SENTENCE * 30, encoding="utf-8")
    return tmp_path


def run(*words):
    return cli.main([*words])


def train(*more):
    return run("train", "--text", "a.txt", *more)


def losses(path="model.npz"):
    return checkpoint.load(path).losses


def test_train_generate_resume(here, capsys):
    assert train(*TINY, "--steps", "8", "--every", "4") == 0
    said = capsys.readouterr().out
    assert "1404 characters to learn, 15 different ones" in said and "NumPy" in said
    assert re.search(r"step 8: validation loss \d\.\d{3}", said)
    assert sorted(path.name for path in here.iterdir()) == ["a.txt", "model.npz", "model.png"]
    assert (here / "model.png").read_bytes().startswith(b"\x89PNG")

    assert run("generate", "the cat", "--length", "30", "--seed", "1") == 0
    once = capsys.readouterr().out
    assert once.startswith("the cat") and len(once) == len("the cat") + 30 + 1
    run("generate", "the cat", "--length", "30", "--seed", "1")
    assert capsys.readouterr().out == once

    assert train("--resume", "--steps", "12") == 0
    whole = losses()
    assert len(whole) == 12
    assert train(*TINY, "--steps", "12", "--out", "other.npz") == 0
    assert losses("other.npz") == whole, "the warm-up does not depend on the number of steps"
    capsys.readouterr()
    assert train("--resume") == 0 and losses() == whole
    assert "All 12 steps are done: a larger --steps continues." in capsys.readouterr().out


def test_a_stopped_run_continues_as_if_it_had_not_stopped(here, monkeypatch, capsys):
    from fa_numba.language_model.train import Trainer

    train(*TINY, "--steps", "9", "--out", "whole.npz")
    step = Trainer.step

    def stop_at_5(self):
        if self.steps_done == 4:
            signal.raise_signal(signal.SIGINT)  # in the midst of the fifth step
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", stop_at_5)
        assert train(*TINY, "--steps", "9") == 130
    assert "Stopped after 5 steps: --resume continues" in capsys.readouterr().out
    assert len(losses()) == 5
    assert train("--resume") == 0
    assert losses() == losses("whole.npz")


@pytest.mark.parametrize(
    "words, said",
    [
        (("--heads", "3"), "--kv-heads must divide the 3 heads, got 2"),
        (("--steps", "0"), "--steps must be at least 1, got 0"),
        (("--every", "0"), "--every must be at least 1, got 0"),
        (("--learning-rate", "-1"), "--learning-rate must be above 0, got -1.0"),
        (("--context", "200"), "--text must be longer for a context of 200: its last tenth, which"),
        (("--context", "200"), "must have at least 201 characters, got 156"),
        (("--text", "empty.txt"), "--text must have characters, got none in empty.txt"),
        (("--out", "."), "--out must be a file, got the folder ."),
        (("--text", "one.txt"), "at least two different characters, or there is nothing to learn"),
        (("--text", "a.txt", "latin.txt"), "latin.txt is not UTF-8, at byte 1: if it is Latin-1"),
        (("--text", "none.txt"), "--text must name files of UTF-8 text"),
        (("--out", "none/model.npz"), "--out must be in a folder that exists"),
        (("--kernels", "none"), '--kernels must be "fastest", "lesson" or a folder'),
        (("--float16",), "training in float16 needs --gpu"),
        (("--resume",), "there is no file model.npz: fa-numba train writes one"),
        (("--resume", "--out", "."), ". cannot be read: Is a directory"),
    ],
)
def test_bad_options_of_train(here, capsys, words, said):
    (here / "empty.txt").touch()
    (here / "one.txt").write_text("a" * 999, encoding="utf-8")
    (here / "latin.txt").write_bytes("dürfen".encode("latin-1"))
    assert train(*words) == 2
    message = capsys.readouterr().err
    assert said in message and message.startswith("fa-numba: ")
    assert not (here / "model.npz").exists()


def test_a_model_is_not_overwritten(here, capsys):
    train(*TINY, "--steps", "1")
    before = (here / "model.npz").read_bytes()
    assert train(*TINY, "--steps", "1") == 2
    assert "model.npz exists" in capsys.readouterr().err
    assert train("--resume", "--head-dim", "8") == 2
    assert "--head-dim is that of the model" in capsys.readouterr().err
    (here / "a.txt").write_text(SENTENCE * 31, encoding="utf-8")
    assert train("--resume") == 2
    assert "--text must be the text that model.npz has learned" in capsys.readouterr().err
    assert (here / "model.npz").read_bytes() == before


def test_unwritten_exercises_are_named(here, capsys):
    stubs = here / "stubs"
    stubs.mkdir()
    for name in kernel_choice.FILES.values():
        solution = Path(__file__).parents[1] / "solutions" / name
        (stubs / name).write_text(solution.read_text(encoding="utf-8"), encoding="utf-8")
    forward = stubs / kernel_choice.FILES["attn"]
    head = forward.read_text(encoding="utf-8").rpartition("### BEGIN SOLUTION")[0]
    body = 'raise NotImplementedError("ex07d: kernel")\n\n    return kernel\n'
    forward.write_text(head + body, encoding="utf-8")
    assert train(*TINY, "--steps", "1", "--kernels", "stubs") == 2
    assert "--kernels: ex07d: kernel is not written yet" in capsys.readouterr().err


@pytest.mark.parametrize(
    "kernel, right, wrong, said",
    [
        ("attn", "acc[i] / l_i", "acc[i] / l_i * 1.01", "ex07d is wrong: out"),
        ("delta", "* out[m, d]", "* -out[m, d]", "ex08a is wrong: delta"),
        ("dkdv", "dk_acc[i] * softmax", "dk_acc[i] + softmax", "ex08b is wrong: dk"),
        ("dq", "dq[m, d] = ", "dq[m, d] = -", "ex08c is wrong: dq of a batch differs from that"),
    ],
)
def test_wrong_kernels_are_named_before_step_1(here, capsys, kernel, right, wrong, said):
    (here / "own").mkdir()
    for name, file in kernel_choice.FILES.items():
        solution = (SOLUTIONS / file).read_text(encoding="utf-8")
        if name == kernel:
            assert right in solution
            solution = solution.replace(right, wrong)
        (here / "own" / file).write_text(solution, encoding="utf-8")
    assert train(*TINY, "--steps", "1", "--kernels", "own") == 2
    message = capsys.readouterr().err
    assert said in message and "by up to" in message
    assert not (here / "model.npz").exists()


def test_right_kernels_are_not_refused(here):
    assert train(*TINY, "--steps", "1", "--kernels", str(SOLUTIONS)) == 0


class FullDisk:
    """Files of these names cannot be written."""

    def __init__(self, monkeypatch, *names):
        self.names, self.replacing = names, checkpoint.replacing
        for user in (checkpoint, command):
            monkeypatch.setattr(user, "replacing", self)

    @contextlib.contextmanager
    def __call__(self, path):
        with self.replacing(path) as file:
            if any(name in str(path) for name in self.names):
                file.write(b"half")
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            yield file


def test_a_full_disk_is_known_before_step_1(here, monkeypatch, capsys):
    FullDisk(monkeypatch, "model.npz")
    assert train(*TINY) == 2
    said = capsys.readouterr().err
    assert "--out must have room for the model, but model.npz cannot be written: No space" in said
    assert [*here.iterdir()] == [here / "a.txt"]


def test_a_disk_that_fills_up_loses_no_step(here, monkeypatch, capsys, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    monkeypatch.setattr(command.tempfile, "gettempdir", lambda: str(other))
    train(*TINY, "--steps", "3")
    train(*TINY, "--steps", "9", "--out", "whole.npz")
    before, disk = (here / "model.npz").read_bytes(), FullDisk(monkeypatch, "model.png")
    disk.names = ("model.png", "model.npz.full")
    save = checkpoint.save

    def fills_up(path, *more):
        save("model.npz.full" if str(path) == "model.npz" else path, *more)

    monkeypatch.setattr(checkpoint, "save", fills_up)
    assert train("--resume", "--steps", "9", "--every", "4") == 2
    said = capsys.readouterr()
    assert "model.npz cannot be written: No space left on device. It is as it was" in said.out
    (found,) = other.iterdir()
    assert f"The model, with all 9 steps, is in {found}: move it to model.npz" in said.err
    assert losses(found) == losses("whole.npz")
    assert (here / "model.npz").read_bytes() == before
    assert not [*here.glob("*.part"), *here.glob("*.trial")]


def test_nowhere_to_write_is_said(here, monkeypatch, capsys):
    train(*TINY, "--steps", "2")
    save = checkpoint.save

    def only_the_trial(path, *more):
        if not str(path).endswith(".trial"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(path, *more)

    monkeypatch.setattr(command.tempfile, "gettempdir", lambda: str(here))
    monkeypatch.setattr(command.Path, "home", lambda: here)
    monkeypatch.setattr(checkpoint, "save", only_the_trial)
    assert train("--resume", "--steps", "3") == 2
    assert "the steps since it was last written are lost" in capsys.readouterr().err
    assert len([*here.glob("*.npz")]) == 1


def test_a_loss_that_is_no_number_ends_the_run(here, monkeypatch, capsys):
    from fa_numba.language_model.train import Trainer

    train(*TINY, "--steps", "3")
    before, step = (here / "model.npz").read_bytes(), Trainer.step

    def spoilt(self):
        step(self)
        self.losses[-1] = float("nan")

    monkeypatch.setattr(Trainer, "step", spoilt)
    assert train("--resume", "--steps", "9") == 2
    assert "the loss of step 4 is nan: a smaller --learning-rate" in capsys.readouterr().err
    assert (here / "model.npz").read_bytes() == before


def test_bad_options_of_generate(here, capsys):
    assert run("generate", "the") == 2
    assert "there is no file model.npz: fa-numba train writes one" in capsys.readouterr().err
    train(*TINY, "--steps", "1")
    capsys.readouterr()
    for words, said in (
        (
            ("Zürich",),
            "prompt must have only the 15 characters that the model knows, got 'Z', 'i', 'ü'",
        ),
        (("",), "prompt must have at least one token"),
        (("the", "--top-k", "33"), "--top-k must be at most 32"),
        (("the", "--temperature", "-1"), "--temperature must be at least 0"),
        (
            ("the", "--model", "a.txt"),
            "a.txt is no model that fa-numba train has written: it is not a whole .npz file\n",
        ),
        (("the", "--model", "."), ". cannot be read: Is a directory"),
    ):
        assert run("generate", *words) == 2
        got = capsys.readouterr()
        assert said in got.err and got.out == ""


def test_gpu_without_cupy(here, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert train("--gpu") == 2
    assert "--gpu needs CuPy" in capsys.readouterr().err


def test_lines_have_the_time_of_a_step_without_the_first(monkeypatch, capsys):
    now = iter([0.0, 20.0, 21.0, 33.0, 34.0, 46.0])
    monkeypatch.setattr(command.time, "monotonic", lambda: next(now))
    with command._progress(total=9, done=0) as show:
        for step in (1, 2, 4):
            show(step, 1.0)
        show(5, 1.0, "validated")
        show(7, 1.0)
    assert capsys.readouterr().out.splitlines() == [
        "step 1 of 9: loss 1.000, after 20 s",
        "step 4 of 9: loss 1.000, 4333 ms each",
        "validated",
        "step 7 of 9: loss 1.000, 6000 ms each",
    ]


def test_a_model_that_cannot_be_written_is_said_at_once(here, monkeypatch, capsys):
    monkeypatch.setattr(command.os, "access", lambda path, mode: False)
    assert train(*TINY) == 2
    assert "--out must be in a folder that can be written" in capsys.readouterr().err


def test_a_terminal_sees_a_bar(here, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert train(*TINY, "--steps", "3") == 0
    assert "3/3" in capsys.readouterr().out
