"""attn_implementation="scoremod" for the models of Hugging Face's transformers: importing this module makes the name known.

    import scoremod.torch.transformers
    model = AutoModelForCausalLM.from_config(config, attn_implementation="scoremod")

Masks stay functions: no mask is made in memory, and no block mask. `scoremod docs torch` says what models may ask for.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import and_masks, bidirectional_mask_function, causal_mask_function, padding_mask_function, prepare_padding_mask

from scoremod.call_spec import Offsets
from scoremod.errors import InvalidArgumentError, UnsupportedError
from scoremod.signatures import Modifier, NewSizes
from scoremod.torch.api import flex_attention

NAME = "scoremod"


class Mask(BlockMask):
    """The attention_mask that models pass to their layers: mask_mod(b, h, q_idx, kv_idx) of local positions, without blocks.

    It is a BlockMask, because transformers recognises a finished mask by its type."""

    def __init__(self, mask_mod: Modifier, shape: tuple[int, int, int, int]) -> None:
        self.mask_mod = mask_mod
        self._shape = shape

    def __repr__(self) -> str:
        return f"Mask{self._shape}"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, 1, queries, keys)."""
        return self._shape

    @property
    def ndim(self) -> int:
        return len(self._shape)

    def dim(self) -> int:
        """4, as a tensor says it."""
        return len(self._shape)

    def size(self, dim: int | None = None) -> tuple[int, int, int, int] | int:
        """shape, or one of its sizes, as a tensor says them."""
        return self._shape if dim is None else self._shape[dim]

    def contiguous(self) -> Mask:
        """The mask itself: generation with a static cache asks this of every mask."""
        return self


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Modifier = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    device: torch.device | str = "cpu",
    **options: Any,
) -> Mask | None:
    """The Mask of a model's mask function and of its padding; None where every key is kept."""
    padding = None if attention_mask is None else prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is not None and not (torch.compiler.is_compiling() or padding.device.type == "meta") and bool(padding.all()):
        padding = None
    if padding is not None:
        mask_function = and_masks(mask_function, padding_mask_function(padding.to(torch.bool)))
    elif mask_function is bidirectional_mask_function:
        return None
    mask_mod = _shifted(mask_function, _offset(q_offset, device), _offset(kv_offset, device))
    return Mask(mask_mod, (batch_size, 1, q_length, kv_length))


def _offset(offset, device):
    """An offset that changes from call to call is a captured tensor, so that the program stays the same; None for no offset."""
    if isinstance(offset, torch.Tensor):
        return offset.to(torch.int32).reshape(())
    return torch.tensor(offset, dtype=torch.int32, device=device) if offset else None


def _shifted(mask_function, q_offset, kv_offset):
    def mask_mod(b, h, q_idx, kv_idx):
        q_idx = q_idx if q_offset is None else q_idx + q_offset
        kv_idx = kv_idx if kv_offset is None else kv_idx + kv_offset
        return mask_function(b, h, q_idx, kv_idx)

    return mask_mod


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: BlockMask | torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    is_causal: bool | None = None,
    new_sizes: NewSizes = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """(output [batch, sequence, head, dim], None), as layers of transformers call it with tensors [batch, head, sequence, dim]."""
    mask_mod, bias = _mask_of(module, query, key, attention_mask, is_causal)

    def score_mod(score, b, h, q_idx, kv_idx):
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if position_bias is not None:
            score = score + _element(position_bias, b, h, q_idx, kv_idx)
        if bias is not None:
            score = score + _element(bias, b, h, q_idx, kv_idx)
        return score

    changes = softcap is not None or position_bias is not None or bias is not None
    sink = None if s_aux is None else s_aux.reshape(-1)
    given: dict[str, Any] = dict(scale=scaling, enable_gqa=True, sink=sink, dropout_p=dropout or 0.0, new_sizes=new_sizes)
    if query.shape[2] == 1:  # the mask knows the query's position, which may be the first of a static cache
        given["offsets"] = Offsets()
    o = flex_attention(query, key, value, score_mod if changes else None, mask_mod=mask_mod, **given)
    return o.transpose(1, 2).contiguous(), None


def _mask_of(module, query, key, mask, is_causal) -> tuple[Any, Any]:
    """(mask_mod, bias): of a Mask, or of a tensor that broadcasts against [batch, head, query, key]."""
    if isinstance(mask, BlockMask):
        return mask.mask_mod, None
    if mask is None:
        is_causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
        if not is_causal or query.shape[2] == 1:
            return None, None
        if query.shape[2] != key.shape[2]:
            raise UnsupportedError(
                f"expected a mask where {query.shape[2]} queries look at {key.shape[2]} keys causally, found none; the model has to make it with "
                "transformers' create_causal_mask"
            )
        return causal_mask_function, None
    if not isinstance(mask, torch.Tensor) or mask.dim() != 4:
        raise InvalidArgumentError(f"attention_mask: expected a mask of transformers' masking_utils, or a tensor of 4 dimensions, found {type(mask).__name__}")
    mask = mask[..., : key.shape[2]]
    if mask.dtype == torch.bool:
        return lambda b, h, q_idx, kv_idx: _element(mask, b, h, q_idx, kv_idx), None
    return None, mask


def _element(tensor, *indices):
    """The element of a tensor that broadcasts against [batch, head, query, key]."""
    return tensor[tuple(0 if size == 1 else index for size, index in zip(tensor.shape, indices))]


def _has_own_attention(model):
    """Whether a model's file computes attention by itself, as far as its source can be read."""
    try:
        text = inspect.getsource(sys.modules[type(model).__module__])
    except (KeyError, OSError, TypeError):
        return False
    if re.search(r"_ATTENTION_CLASSES\[", text):  # a table of names
        return True
    return re.search(r"^class \w*Attention\w*\(nn\.Module\):", text, re.MULTILINE) is not None and not re.search(
        "ALL_ATTENTION_FUNCTIONS|AttentionInterface", text
    )


def _refusing_others(find):
    """transformers' check of the attention that a model is made with. Some models look the name up in a table of their own, and others ignore it."""

    @functools.wraps(find)
    def checked(self, requested_attention, *arguments, **options):
        if requested_attention == NAME and _has_own_attention(self):
            raise UnsupportedError(
                f'attn_implementation="{NAME}": expected a model that calls transformers\' AttentionInterface, found {type(self).__name__}, which computes '
                'attention by itself; make it with attn_implementation="eager", or "sdpa" where it has that'
            )
        return find(self, requested_attention, *arguments, **options)

    return checked


PreTrainedModel.get_correct_attn_implementation = _refusing_others(PreTrainedModel.get_correct_attn_implementation)
AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, attention_mask)
