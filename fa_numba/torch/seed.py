"""The seed of dropout."""

import torch


def draw_seed():
    """Draw a seed from PyTorch's generator for the CPU, as a tensor without axes.

    A tensor, so that `torch.compile` traces the draw; in host memory, so that reading it does not
    wait for the GPU.
    """
    return torch.randint(2**31, (), device="cpu")
