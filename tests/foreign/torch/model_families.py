"""Small models of transformers' families, each of which asks for something else of attention, and inputs for them."""

import dataclasses
from collections.abc import Callable

import torch
import transformers as t

VOCABULARY, LENGTH, TARGETS = 61, 17, 9
SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
SPECIAL = dict(pad_token_id=0, bos_token_id=1, eos_token_id=60)
TEXT = dict(SIZES, **SPECIAL, vocab_size=VOCABULARY, max_position_embeddings=64)
GROUPED = dict(TEXT, num_key_value_heads=2)
GEMMA = dict(GROUPED, head_dim=8, sliding_window=5, attn_logit_softcapping=3.0, query_pre_attn_scalar=8, layer_types=["sliding_attention", "full_attention"])
IMAGE = dict(SIZES, image_size=16, patch_size=4)
NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
BOTH_SIDES = dict(
    d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48,
    vocab_size=VOCABULARY, dropout=0.0, decoder_start_token_id=2, **SPECIAL,
)  # fmt: skip


@dataclasses.dataclass
class Family:
    """config() and model make a model, and inputs(random) the arguments of a call.

    asks: what attention has to do. padded: the sides of the inputs that padding may be on. caches: those that it generates with. batched: the side of
    the padding with which a prompt in a batch has the positions that it has alone. sdpa: whether attn_implementation="sdpa" computes all of it.
    larger: than a fresh model's are the weights, so that attention matters.
    """

    asks: str
    config: Callable
    model: type
    inputs: Callable
    padded: tuple[str, ...] = ()
    caches: tuple[str, ...] = ()
    batched: str | None = None
    sdpa: bool = True
    larger: float = 3.0


def ids_of(random, length=LENGTH):
    return torch.randint(3, 60, (2, length), generator=random)


def tokens(random):
    return {"input_ids": ids_of(random)}


def tokens_and_targets(random):
    return {"input_ids": ids_of(random), "decoder_input_ids": ids_of(random, TARGETS)}


def features_and_targets(random):
    return {"input_features": torch.randn(2, 8, 24, generator=random), "decoder_input_ids": ids_of(random, TARGETS)}


def samples(random):
    return {"input_values": torch.randn(2, 320, generator=random)}


def pixels(random):
    return {"pixel_values": torch.randn(2, 3, 16, 16, generator=random)}


def decoder(asks, config, model, **others):
    return Family(asks, config, model, tokens, ("left", "right"), ("dynamic", "static"), "left", **others)


DECODERS = {
    "starcoder2": decoder(
        "sliding windows, grouped heads",
        lambda: t.Starcoder2Config(**GROUPED, sliding_window=5, residual_dropout=0.0, embedding_dropout=0.0),
        t.Starcoder2ForCausalLM,
    ),
    "gpt_bigcode": decoder(
        "one KV head",
        lambda: t.GPTBigCodeConfig(
            n_embd=32, n_head=4, n_layer=2, n_positions=64, vocab_size=VOCABULARY, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **SPECIAL
        ),
        t.GPTBigCodeForCausalLM,
    ),
    "vaultgemma": decoder(
        "soft caps, sliding windows in every other layer", lambda: t.VaultGemmaConfig(**GEMMA), t.VaultGemmaForCausalLM, sdpa=False
    ),
    "mimo_v2_flash": decoder(
        "sinks, v of another head dim",
        lambda: t.MiMoV2FlashConfig(
            **GROUPED, head_dim=12, v_head_dim=8, sliding_window=5, moe_intermediate_size=16, n_routed_experts=4, num_experts_per_tok=2
        ),
        t.MiMoV2FlashForCausalLM,
        sdpa=False,
    ),
    "llama4": decoder(
        "chunks of the sequence, layers without positions",
        lambda: t.Llama4TextConfig(
            **GROUPED, head_dim=8, attention_chunk_size=6, intermediate_size_mlp=48, num_local_experts=2, num_experts_per_tok=1, no_rope_layers=[1, 0],
            layer_types=["chunked_attention", "full_attention"],
        ),
        t.Llama4ForCausalLM,
    ),
    "cohere2": decoder(
        "sliding windows, layers without positions",
        lambda: t.Cohere2Config(**GROUPED, sliding_window=5, layer_types=["sliding_attention", "full_attention"]),
        t.Cohere2ForCausalLM,
    ),
    "gpt_neox": decoder(
        "rotary positions in a part of the head dim",
        lambda: t.GPTNeoXConfig(**TEXT, hidden_dropout=0.0, attention_dropout=0.0),
        t.GPTNeoXForCausalLM,
    ),
    "opt": decoder(
        "learned positions, which padding shifts",
        lambda: t.OPTConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48, vocab_size=VOCABULARY, max_position_embeddings=64,
            word_embed_proj_dim=32, dropout=0.0, **SPECIAL,
        ),
        t.OPTForCausalLM,
    ),
}  # fmt: skip

ENCODERS = {
    "roberta": Family(
        "keys on both sides",
        lambda: t.RobertaConfig(**TEXT, **NO_DROPOUT),
        t.RobertaForMaskedLM,
        tokens,
        ("left", "right"),
    ),
    "esm": Family(
        "rotary positions of an encoder",
        lambda: t.EsmConfig(**TEXT, **NO_DROPOUT, mask_token_id=2, position_embedding_type="rotary", token_dropout=False),
        t.EsmForMaskedLM,
        tokens,
        ("left", "right"),
    ),
    "wav2vec2": Family(
        "frames of audio",
        lambda: t.Wav2Vec2Config(
            **SIZES, vocab_size=VOCABULARY, conv_dim=(16, 16), conv_stride=(5, 3), conv_kernel=(8, 3), num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2, feat_extract_norm="layer", do_stable_layer_norm=True, hidden_dropout=0.0, attention_dropout=0.0,
            activation_dropout=0.0, feat_proj_dropout=0.0, layerdrop=0.0, apply_spec_augment=False,
        ),
        t.Wav2Vec2Model,
        samples,
        ("right",),
    ),
    "vit": Family("patches of an image", lambda: t.ViTConfig(**IMAGE, **NO_DROPOUT), t.ViTModel, pixels),
    "dinov3_vit": Family(
        "rotary positions of patches, registers",
        lambda: t.DINOv3ViTConfig(**IMAGE, num_register_tokens=2, pos_embed_rescale=None),
        t.DINOv3ViTModel,
        pixels,
    ),
    "beit": Family(
        "a bias of the patches' distances",
        lambda: t.BeitConfig(**IMAGE, **NO_DROPOUT, use_relative_position_bias=True, drop_path_rate=0.0, layer_scale_init_value=0.5),
        t.BeitModel,
        pixels,
    ),
    "swin": Family(
        "shifted windows of an image, a bias of distances",
        lambda: t.SwinConfig(image_size=16, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, drop_path_rate=0.0),
        t.SwinModel,
        pixels,
    ),
}  # fmt: skip

ENCODERS_AND_DECODERS = {
    "bart": Family(
        "cross attention",
        lambda: t.BartConfig(**BOTH_SIDES, max_position_embeddings=64, forced_eos_token_id=None),
        t.BartForConditionalGeneration,
        tokens_and_targets,
        ("left", "right"),
        ("dynamic",),
        "right",
    ),
    "t5gemma": Family(
        "cross attention, soft caps, sliding windows to both sides",
        lambda: t.T5GemmaConfig(encoder=t.T5GemmaModuleConfig(**GEMMA), decoder=t.T5GemmaModuleConfig(**GEMMA), dropout_rate=0.0, vocab_size=VOCABULARY),
        t.T5GemmaForConditionalGeneration,
        tokens_and_targets,
        ("left", "right"),
        ("dynamic",),
        "right",
        sdpa=False,
    ),
    "umt5": Family(
        "cross attention, a bias of distances in every layer",
        lambda: t.UMT5Config(
            vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0, relative_attention_num_buckets=8,
            relative_attention_max_distance=12, decoder_start_token_id=0, eos_token_id=60,
        ),
        t.UMT5ForConditionalGeneration,
        tokens_and_targets,
        ("left", "right"),
        ("dynamic",),
        "right",
        larger=1.0,
    ),
    "whisper": Family(
        "cross attention to frames of audio",
        lambda: t.WhisperConfig(
            **BOTH_SIDES, num_mel_bins=8, max_source_positions=12, max_target_positions=32, suppress_tokens=None, begin_suppress_tokens=None
        ),
        t.WhisperForConditionalGeneration,
        features_and_targets,
        (),
        ("dynamic", "static"),
    ),
}  # fmt: skip

FAMILIES = DECODERS | ENCODERS | ENCODERS_AND_DECODERS

# Families whose models compute attention by themselves: name -> (what their attention has, configuration).
SMALL = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48, vocab_size=VOCABULARY, pad_token_id=0)
OWN_ATTENTION = {
    "bloom": ("ALiBi", lambda: t.BloomConfig(hidden_size=32, n_head=4, n_layer=1, vocab_size=VOCABULARY)),
    "deberta_v2": ("disentangled positions", lambda: t.DebertaV2Config(**SMALL, relative_attention=True, pos_att_type=["c2p", "p2c"])),
    "xlnet": ("two streams", lambda: t.XLNetConfig(d_model=32, n_head=4, n_layer=1, d_inner=48, vocab_size=VOCABULARY)),
    "longformer": ("windows and global tokens", lambda: t.LongformerConfig(**SMALL, attention_window=4)),
    "big_bird": ("random blocks", lambda: t.BigBirdConfig(**SMALL)),
    "swinv2": ("cosines of q and k", lambda: t.Swinv2Config(image_size=16, patch_size=2, embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=4)),
}
