"""Training steps of two layers of transformers' models, with each attention implementation that takes them: forward, loss, backward."""

import torch
from timing import median_in_turns, warmed

IMPLEMENTATIONS = ("scoremod", "flex_attention", "sdpa", "eager")
NAMES = ("gemma2_block", "t5_block")


def _gemma2(transformers, options):
    """Two layers of Gemma 2's 9B, of which one has a window of half the sequence: soft cap 50, heads in pairs."""
    heads, dim = options.heads, 2 * options.dim
    config = transformers.Gemma2Config(
        vocab_size=512, hidden_size=heads * options.dim, intermediate_size=4 * heads * options.dim, num_hidden_layers=2, num_attention_heads=heads,
        num_key_value_heads=max(heads // 2, 1), head_dim=dim, query_pre_attn_scalar=dim, sliding_window=options.seq // 2,
        attn_logit_softcapping=50.0, attention_dropout=0.0, max_position_embeddings=options.seq, use_cache=False, pad_token_id=0,
    )  # fmt: skip
    return config, transformers.Gemma2ForCausalLM


def _t5(transformers, options):
    """An encoder layer and a decoder layer of T5: a learned table of relative positions, beside a cross attention without one."""
    config = transformers.T5Config(
        vocab_size=512, d_model=options.heads * 64, d_kv=64, d_ff=4 * options.heads * 64, num_layers=1, num_heads=options.heads, dropout_rate=0.0,
        decoder_start_token_id=0, use_cache=False,
    )  # fmt: skip
    return config, transformers.T5ForConditionalGeneration


MODELS = {"gemma2_block": _gemma2, "t5_block": _t5}


def measure(name, options):
    """implementation -> step_ms, or the reason why not; the shape; the loss of each, which tells that they compute the same."""
    try:
        import transformers

        import scoremod.torch.transformers  # noqa: F401 (makes the name known)
    except ImportError as error:
        return {"refused": str(error)}
    torch._dynamo.reset()
    batch, seq = max(options.batch // 2, 1), options.seq // 2
    ids = torch.randint(1, 512, (batch, seq), device=options.device)
    record, calls = {"batch": batch, "seq": seq, "transformers": transformers.__version__}, {}
    for implementation in IMPLEMENTATIONS:
        record[implementation] = {}
        try:
            config, kind = MODELS[name](transformers, options)
            config._attn_implementation = implementation
            torch.manual_seed(0)
            model = kind(config).to(options.device, options.dtype)
        except Exception as error:  # a name that transformers' model doesn't take
            record[implementation]["refused"] = str(error).splitlines()[0][:200]
            continue

        def step(model=model):
            model.zero_grad(set_to_none=True)
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            return loss

        refusal = warmed(step)
        if refusal is not None:
            record[implementation]["refused"] = refusal
            continue
        record[implementation]["loss"] = round(step().item(), 4)
        calls[implementation] = step
    for implementation, ms in median_in_turns(calls, options.device).items():
        record[implementation]["step_ms"] = ms
    return record
