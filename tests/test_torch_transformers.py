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
    "GptOss": {
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "head_dim": 8,
        "sliding_window": 4,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
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
        config = config(**sizes, pad_token_id=0, eos_token_id=None, attn_implementation=attention)
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
    before = torch.nn.functional.pad(mask, (1, 0))[:, :-1]
    labels = tokens.masked_fill(mask * before == 0, -100)  # padding predicts no token
    for model in models(name):
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


def test_packed_sequences():
    """Positions that begin again: each sequence of a row by itself."""
    tokens, _ = batch("none", (SEQLEN,) * BATCH)
    positions = torch.tensor([[*range(4), *range(7)], [*range(SEQLEN)], [*range(7), *range(4)]])
    ours, theirs = (
        model(tokens, position_ids=positions, use_cache=False).logits for model in models("Llama")
    )
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_an_encoder():
    """Bert attends in both directions, with padding on the right."""
    tokens, mask = batch("right")
    ours, theirs = (
        model(tokens, attention_mask=mask).last_hidden_state[mask == 1]
        for model in models("Bert", "Model", intermediate_size=48)
    )
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch.compile looks at it
@pytest.mark.parametrize("given", ["nothing", "mask"])
def test_compiled(given):
    """A mask breaks the graph where transformers makes one of it, once in a pass."""
    tokens, mask = batch("left")
    given = {"attention_mask": mask} if given == "mask" else {}
    model, _ = models("Llama")
    compiled = torch.compile(model, fullgraph=not given, backend="aot_eager")
    seen = []
    for run in (compiled, model):
        logits = run(tokens, **given).logits[mask == 1]
        gradients = torch.autograd.grad(logits.sum(), [*model.parameters()])
        seen.append([logits, *gradients])
    for got, want in zip(*seen, strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)


def test_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(transformers.masking_utils, "flash_attention_mask", lambda q_length: None)
    with pytest.raises(ImportError, match="needs the package transformers, as of version 5.24"):
        register_transformers()


def test_what_is_refused():
    tokens, mask = batch("left")
    model, _ = models("Llama")
    with pytest.raises(ValueError, match="one run of ones in each row.*sdpa"):
        model(tokens, attention_mask=mask.index_fill(1, torch.tensor([9]), 0))
    with pytest.raises(ValueError, match=r"attention_mask must have shape \(batch, .*sdpa"):
        model(tokens, attention_mask=torch.ones(BATCH, 1, SEQLEN, SEQLEN, dtype=torch.bool))
    model.train()
    model.config.attention_dropout = 0.1
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.1
    with pytest.raises(ValueError, match="dropout_p must be 0, got 0.1: packed"):
        model(tokens, attention_mask=mask)
    from transformers.masking_utils import create_causal_mask

    embeddings = torch.zeros(BATCH, SEQLEN, 8)
    with pytest.raises(ValueError, match="must be causal or bidirectional.*sdpa"):
        create_causal_mask(model.config, embeddings, mask, None, or_mask_function=lambda *x: x)
    attention = transformers.AttentionInterface()["fa_numba"]
    module, (x, *_) = model.model.layers[0].self_attn, torch.ones(1, 2, 4, 3, 8)
    for name in ("position_bias", "output_attentions"):
        with pytest.raises(ValueError, match=f"{name} must be None, got a "):
            attention(module, x, x, x, None, **{name: True})
