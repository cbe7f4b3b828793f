"""A language model of nanoGPT's shape, to train with one attention function or another.

Its data are a few batches of random tokens, seen again and again until it has learnt them.
"""

import torch
from torch import nn

VOCABULARY = 65


class Attention(nn.Module):
    """Causal attention; ``attend(q, k, v, is_causal=True)`` has PyTorch's layout."""

    def __init__(self, width, num_heads, attend):
        super().__init__()
        self.num_heads, self.attend = num_heads, attend
        self.to_qkv = nn.Linear(width, 3 * width, bias=False)
        self.to_out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        batch, seqlen, width = x.shape
        heads = batch, seqlen, self.num_heads, width // self.num_heads
        q, k, v = (y.view(heads).transpose(1, 2) for y in self.to_qkv(x).split(width, 2))
        out = self.attend(q, k, v, is_causal=True)
        return self.to_out(out.transpose(1, 2).reshape(batch, seqlen, width))


class Block(nn.Module):
    def __init__(self, width, num_heads, attend):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = Attention(width, num_heads, attend)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class SmallGPT(nn.Module):
    """Token and position embeddings, blocks, and the loss of the next token."""

    def __init__(
        self, attend, num_layers=6, num_heads=6, width=384, max_seqlen=1024, vocabulary=VOCABULARY
    ):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(max_seqlen, width)
        self.blocks = nn.ModuleList(Block(width, num_heads, attend) for _ in range(num_layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        given, wanted = tokens[:, :-1], tokens[:, 1:]
        positions = torch.arange(given.shape[1], device=tokens.device)
        x = self.tokens(given) + self.positions(positions)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).float()
        return nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())


class Training:
    """A model and its data: the same weights and tokens for the same sizes and seed.

    Parameters
    ----------
    attend : callable
        ``attend(q, k, v, is_causal=True)``, of tensors (batch, num_heads, seqlen, head_dim).
    seqlen, batch : int
    device : str
    dtype : torch.dtype, default=None
        Run under autocast to this dtype.
    compiled : bool, default=False
        Run the model through `torch.compile`, in one graph.
    seed : int, default=0
    fused : bool, default=False
        Of the optimizer: one kernel for all weights.
    **sizes
        Those of `SmallGPT`.
    """

    def __init__(
        self,
        attend,
        seqlen,
        batch,
        device,
        dtype=None,
        compiled=False,
        seed=0,
        fused=False,
        **sizes,
    ):
        torch.manual_seed(seed)
        self.model = SmallGPT(attend, max_seqlen=seqlen, **sizes).to(device)
        self.run = torch.compile(self.model, fullgraph=True) if compiled else self.model
        vocabulary = sizes.get("vocabulary", VOCABULARY)
        self.tokens = torch.randint(vocabulary, (2, batch, seqlen + 1)).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=fused)
        self.device, self.dtype, self.num_steps = device, dtype, 0

    def step(self):
        """Train on one batch; return its loss, a tensor."""
        tokens = self.tokens[self.num_steps % 2]
        self.num_steps += 1
        with torch.autocast(self.device, self.dtype, enabled=self.dtype is not None):
            loss = self.run(tokens)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def losses(self, num_steps):
        """Train for some steps; return their losses, on the CPU."""
        return torch.stack([self.step() for _ in range(num_steps)]).cpu()
