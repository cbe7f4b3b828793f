"""The served model in PyTorch: a plain loop with SDPA and a static cache.

All sequences of the batch have the same length, none joins or leaves, and the cache is one array
of the greatest length for each sequence.
"""

import time

import numpy as np
import torch
from torch.nn import functional

from fa_numba.checks import MAX_TOP_K
from fa_numba.language_model import model as ours

WARM_UPS = 3


class Loop:
    """Decoding with a cache of `length` tokens, the first `prompt` of them already there."""

    def __init__(self, model, batch, prompt, length):
        weights, self.config = model
        self.weights = {name: torch.from_dlpack(x) for name, x in weights.items()}
        self.length, self.prompt = length, prompt
        like = self.weights["embedding"]
        shape = self.config.layers, batch, self.config.kv_heads, length, self.config.head_dim
        self.k, self.v = (torch.randn(shape, dtype=like.dtype, device="cuda") for _ in range(2))
        table = ours.rotary_table_for(self.config, weights["embedding"])
        self.cos, self.sin = (torch.from_dlpack(x) for x in table)
        self.tokens = torch.zeros(batch, dtype=torch.int64, device="cuda")
        self.position = torch.zeros(1, dtype=torch.int64, device="cuda")
        self.at = torch.arange(length, device="cuda")

    def rotate(self, x):
        cos, sin = self.cos[self.position], self.sin[self.position]
        left, right = x.float().chunk(2, -1)
        turned = torch.cat([left * cos - right * sin, right * cos + left * sin], -1)
        return turned.to(x.dtype)

    def step(self, known_length=None):
        """The next token of each sequence; without a length on the host, the mask has it."""
        w, c = self.weights, self.config
        x = w["embedding"][self.tokens]
        norm = lambda x: functional.rms_norm(x, x.shape[-1:], eps=1e-5)  # noqa: E731
        for layer in range(c.layers):
            heads = (norm(x) @ w[f"{layer}.qkv"]).view(len(x), -1, 1, c.head_dim)
            q, k, v = heads.split([c.heads, c.kv_heads, c.kv_heads], 1)
            q, k = self.rotate(q), self.rotate(k)
            keys, values = self.k[layer], self.v[layer]
            keys.index_copy_(2, self.position, k)
            values.index_copy_(2, self.position, v)
            mask = None
            if known_length is None:
                mask = (self.at <= self.position)[None, None, None]
            else:
                keys, values = keys[:, :, :known_length], values[:, :, :known_length]
            gqa = c.heads != c.kv_heads
            out = functional.scaled_dot_product_attention(
                q, keys, values, attn_mask=mask, enable_gqa=gqa
            )
            x = x + out.reshape(x.shape) @ w[f"{layer}.out"]
            x = x + functional.relu(norm(x) @ w[f"{layer}.up"]).square() @ w[f"{layer}.down"]
        best = (norm(x) @ w["embedding"].T).float().div(0.8).softmax(-1).topk(MAX_TOP_K)
        drawn = torch.multinomial(best.values, 1)
        self.tokens.copy_(best.indices.gather(1, drawn)[:, 0])
        self.position += 1


def step_ms(model, batch, prompt, answer) -> dict:
    """Median milliseconds of a step, with its tokens copied to the host, by name of the loop."""
    found = {}
    with torch.no_grad():
        for name, in_graph in (("PyTorch SDPA", False), ("PyTorch SDPA, CUDA graph", True)):
            loop, times = Loop(model, batch, prompt, prompt + answer), []
            run = loop.step
            if in_graph:
                loop.position.fill_(prompt)
                side = torch.cuda.Stream()
                with torch.cuda.stream(side):
                    for _ in range(WARM_UPS):
                        loop.step()
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    loop.step()
                run = graph.replay
            for _ in range(2):  # the first one warms up
                loop.position.fill_(prompt)
                times.clear()
                for n in range(prompt, prompt + answer):
                    start = time.perf_counter()
                    run() if in_graph else run(n + 1)
                    loop.tokens.tolist()
                    times.append(time.perf_counter() - start)
            found[name] = 1e3 * float(np.median(times))
    return found
