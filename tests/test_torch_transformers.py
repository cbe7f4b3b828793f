"""Models of the package transformers with our attention, beside theirs."""

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")
transformers = pytest.importorskip("transformers", reason="needs transformers")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

from fa_numba.torch import register_transformers  # noqa: E402

register_transformers()
SIZES = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
OF_MODEL = {
    "Llama": {"num_key_value_heads": 2, "intermediate_size": 48},
    "Mistral": {"num_key_value_heads": 2, "intermediate_size": 48, "sliding_window": 4},
    "Gemma2": {
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "head_dim": 8,
        "sliding_window": 4,
        "attn_logit_softcapping": 5.0,
    },
    "GPT2": {},
}
BATCH, SEQLEN = 3, 11


def models(name, kind="ForCausalLM", **options):
    """Two models with the same weights: with our attention, and with the one by definition."""
    made = []
    for attention in ("fa_numba", "eager"):
        torch.manual_seed(0)
        model_kind = f"{name}LMHeadModel" if name == "GPT2" else f"{name}{kind}"
        config = getattr(transformers, f"{name}Config")
        sizes = SIZES | OF_MODEL.get(name, {}) | options
        if name == "GPT2":
            sizes |= {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
        config = config(**sizes, pad_token_id=0, attn_implementation=attention)
        made.append(getattr(transformers, model_kind)(config).eval())
    return made


def batch(side, lengths=(SEQLEN, 4, 7)):
    """Tokens, and a mask with padding on a side."""
    tokens = torch.randint(1, 61, (BATCH, SEQLEN), generator=torch.Generator().manual_seed(1))
    n, lengths = torch.arange(SEQLEN), torch.tensor(lengths)[:, None]
    return tokens, ((n >= SEQLEN - lengths) if side == "left" else (n < lengths)).long()


@pytest.mark.parametrize("side", ["left", "right", "none"])
@pytest.mark.parametrize("name", OF_MODEL)
def test_training(name, side):
    """Logits of all tokens, and gradients of all weights."""
    tokens, mask = batch(side, (SEQLEN,) * BATCH if side == "none" else (SEQLEN, 4, 7))
    seen = []
    for model in models(name):
        labels = tokens.masked_fill(mask == 0, -100)
        result = model(tokens, attention_mask=mask, labels=labels)
        result.loss.backward()
        seen.append([result.logits[mask == 1], *[x.grad for x in model.parameters()]])
    for ours, theirs in zip(*seen, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", OF_MODEL)
@pytest.mark.parametrize("cache", [None, "static", "dynamic"])
def test_generate(name, cache):
    """A batch with padding on the left, with a cache, gives the tokens of each row by itself."""
    tokens, mask = batch("left")
    ours, theirs = models(name)
    options = {"max_new_tokens": 9, "do_sample": False, "cache_implementation": cache}
    got = ours.generate(tokens, attention_mask=mask, **options)
    assert got.tolist() == theirs.generate(tokens, attention_mask=mask, **options).tolist()
    for row, kept, alone in zip(tokens, mask.bool(), got, strict=True):
        new = ours.generate(row[kept][None], max_new_tokens=9, do_sample=False)[0, -9:]
        assert alone[-9:].tolist() == new.tolist()
