"""torch's BlockMask as flex_attention takes it: its mask_mod, or the blocks of one without. A mask for other tensors is refused."""

import torch
from torch.nn.attention.flex_attention import noop_mask

from scoremod.errors import InvalidArgumentError

# Blocks of this size are PyTorch's own stand-in for no BlockMask, which fits any lengths.
_WHOLE_BLOCK = 1 << 30


class MisfitError(InvalidArgumentError, RuntimeError):
    """A BlockMask that was made for other tensors: also a RuntimeError, which PyTorch raises."""


def mask_of(block_mask, mask_mod, query, key, is_placed):
    """The mask_mod of flex_attention's arguments; None for none. is_placed: whether the tensors have other dimensions than [batch, heads, sequence, dim]."""
    if block_mask is None:
        return mask_mod
    if mask_mod is not None:
        raise InvalidArgumentError("expected block_mask or mask_mod, found both; a BlockMask has its mask_mod")
    if not hasattr(block_mask, "mask_mod"):
        raise InvalidArgumentError(f"block_mask: expected torch's BlockMask, found {type(block_mask).__name__}; a function goes into mask_mod=")
    if not is_placed:
        _check_sizes(block_mask, query, key)
    return _of_blocks(block_mask) if block_mask.mask_mod is noop_mask else block_mask.mask_mod


def _check_sizes(block_mask, query, key):
    """Raises MisfitError unless the mask was made for tensors of these sizes."""
    if not (isinstance(query, torch.Tensor) and isinstance(key, torch.Tensor) and query.dim() == key.dim() == 4):
        return  # refused later
    if tuple(block_mask.BLOCK_SIZE) == (_WHOLE_BLOCK, _WHOLE_BLOCK):
        return
    *outer, made_q, made_kv = block_mask.shape
    seq_q, seq_kv = query.shape[2], key.shape[2]
    if made_q != seq_q or made_kv != seq_kv:
        length, also = "larger", ", or, where the same functions of the first positions are meant, block_mask._adjust(q_len, kv_len)"
        if made_q < seq_q or made_kv < seq_kv:
            length, also = "smaller", ""
        raise MisfitError(
            f"block_mask was created for a {length} length than it is used for: expected one for {seq_q} queries and {seq_kv} keys, found one for {made_q} and "
            f"{made_kv}; make a new one with create_block_mask{also}, or give mask_mod= alone, which needs no lengths"
        )
    # A mask that heads of a group share may be made for key's heads.
    for what, made, *of_tensors in (("batches", *outer[:1], query.shape[0]), ("heads", *outer[1:], query.shape[1], key.shape[1])):
        if made != 1 and made not in of_tensors:
            raise MisfitError(
                f"block_mask: expected one for 1 or {of_tensors[0]} {what}, as many as query has, found one for {made}; make a new one with create_block_mask"
            )


def _of_blocks(block_mask):
    """The mask_mod of a mask that has blocks alone; None where it has them all, as far as its numbers may be looked at."""
    if not torch.compiler.is_compiling() and block_mask.sparsity() <= 0:
        return None
    blocks = block_mask.to_dense() != 0
    batch, heads, rows, columns = blocks.shape
    q_size, kv_size = block_mask.BLOCK_SIZE

    def mask_mod(b, h, q_idx, kv_idx):
        return blocks[0 if batch == 1 else b, 0 if heads == 1 else h, q_idx // q_size, kv_idx // kv_size]

    return mask_mod
