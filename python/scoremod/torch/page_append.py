"""New keys and values of a step, written into the pages of a KV cache."""

from typing import NamedTuple

import torch

from scoremod.errors import InvalidArgumentError
from scoremod.float8_factors import needless_page_factor
from scoremod.torch.call import FLOAT8
from scoremod.torch.checked_integers import on_host
from scoremod.torch.float8 import factor_of_heads
from scoremod.torch.sequences import dense_int32

_library = torch.library.Library("scoremod", "FRAGMENT")
_library.define("fitting_slots(Tensor slots, Tensor sequence, SymInt pages, SymInt page_size) -> Tensor")


def append_to_pages(
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    page_table: torch.Tensor,
    lengths: torch.Tensor,
    offsets: torch.Tensor | None = None,
    *,
    descale_k: float | torch.Tensor | None = None,
    descale_v: float | torch.Tensor | None = None,
) -> None:
    """Writes new keys and values into a paged KV cache, in place.

    Parameters
    ----------
    k_pages, v_pages : Tensor [pages, KV heads, page size, dim]
        The cache, in any strides. It has no gradient.
    key, value : Tensor [tokens, KV heads, dim], or [batch, KV heads, sequence, dim]
        The new ones: one sequence after the other with `offsets`, or equally many for each sequence without.
    page_table : integer Tensor [batch, pages of a sequence]
        Position j of a sequence is in page page_table[b, j // page size]. No two sequences may write to one place.
    lengths : integer Tensor [batch]
        How many keys each sequence has with the new ones, which come last; flex_attention takes the same.
    offsets : integer Tensor [batch + 1], optional
        Sequence b has the new tokens from offsets[b] up to offsets[b + 1]: flex_attention's q_offsets. Tokens in no sequence are not written.
    descale_k, descale_v : float or float Tensor of one element or [KV heads], or float32 Tensor [pages, KV heads, page size, 1], optional
        Of FP8 pages, flex_attention's: new numbers of 16 or 32 bits are divided by them, and rounded. Magnitudes beyond the dtype's largest number
        saturate; NaN stays NaN. Of the last shape they are written, too: each new token gets a scale in each KV head, its largest magnitude divided by
        the dtype's largest number.

    Returns
    -------
    None
        The pages hold the new keys and values at the next read on the same stream.

    Raises
    ------
    InvalidArgumentError
        For tensors that don't fit, and in host memory for places that the cache has not. In device memory such tokens are not written. Nothing waits
        for a device.
    """
    written = fitting(k_pages, v_pages, key, value, 4 if offsets is None else 3, descale_k, descale_v)
    table, lengths = dense_int32("page_table", page_table, k_pages, 2, "[batch, pages of a sequence]"), dense_int32("lengths", lengths, k_pages, 1, "[batch]")
    batch, width = table.shape
    if lengths.shape[0] != batch:
        raise InvalidArgumentError(f"lengths: expected a length for each of page_table's {batch} rows, found shape {tuple(lengths.shape)}")
    if offsets is None:
        if key.shape[0] != batch:
            raise InvalidArgumentError(f"key: expected a batch for each of page_table's {batch} rows, found shape {tuple(key.shape)}")
        count = key.shape[2]
        offsets = torch.arange(batch + 1, dtype=torch.int32, device=key.device) * count
        written = [(pool, new.transpose(1, 2).flatten(0, 1)) for pool, new in written]
    else:
        offsets = dense_int32("offsets", offsets, k_pages, 1, "[batch + 1]")
        if offsets.shape[0] != batch + 1:
            raise InvalidArgumentError(f"offsets: expected {batch + 1} numbers, one more than page_table has rows, found {offsets.shape[0]}")
    tokens = written[0][1].shape[0]
    if tokens == 0 or width == 0:
        return
    places_of(table, lengths, offsets, tokens, k_pages).write(*written)


class Places(NamedTuple):
    """The places of a step's tokens in a cache; layers whose caches have as many pages share it.

    pages, slots: int64 [tokens], of each token's page and its position there. source: int64 [tokens], the token whose numbers are written there.
    any_written: bool [], whether any token has a place.
    """

    pages: torch.Tensor
    slots: torch.Tensor
    source: torch.Tensor
    any_written: torch.Tensor

    def write(self, *written):
        """Writes new numbers [tokens, KV heads, dim] into pages [pages, KV heads, page size, dim]. written: (pages, new numbers of their dtype)."""
        at = self.pages, self.slots
        with torch.no_grad():
            for pool, new in written:
                pool = pool.transpose(1, 2)
                if pool.dtype in FLOAT8:  # whose bytes alone are moved
                    pool, new = pool.view(torch.uint8), new.view(torch.uint8)
                pool.index_put_(at, torch.where(self.any_written, new[self.source], pool[at]))


def places_of(table, lengths, offsets, tokens, pool):
    """The Places of append_to_pages's tokens in a pool of pages, by int32 tensors of a batch with at least one token and page."""
    pages, page_size = pool.shape[0], pool.shape[2]
    slots, sequence = _slots(offsets, lengths, table, tokens, page_size)
    if on_host(slots):
        slots = torch.ops.scoremod.fitting_slots(slots, sequence, pages, page_size)
    is_written = (slots >= 0) & (slots < pages * page_size)
    # Tokens that are not written go where the first that is goes, with its numbers. Without any, numbers of the cache are written over themselves.
    source = torch.where(is_written, torch.arange(tokens, device=slots.device), is_written.int().argmax())
    any_written = is_written.any()
    slots = torch.where(any_written, slots[source], 0)
    return Places(slots // page_size, slots % page_size, source, any_written)


def _check_is_quantized(name, new, pool):
    if pool.dtype not in FLOAT8 or new.dtype in FLOAT8 or not new.is_floating_point():
        raise needless_page_factor(name, pool.dtype, new.dtype)


def quantized(name, new, pool, descale):
    """New numbers [tokens or batch, KV heads, ...] as FP8 pages store them, with their factor, which `name` names; as they are without one.

    Nothing waits for a device.
    """
    if descale is None:
        return new
    _check_is_quantized(name, new, pool)
    factor, largest = factor_of_heads(name, descale, pool.device, pool.shape[1]), torch.finfo(pool.dtype).max
    with torch.no_grad():
        return (new.float() / factor.reshape(-1, *[1] * (new.dim() - 2))).clamp(-largest, largest).to(pool.dtype)


def fitting(k_pages, v_pages, key, value, rank, descale_k=None, descale_v=None):
    """The pages with their new numbers, and scales of tokens with theirs, as Places.write() takes them.

    Raises InvalidArgumentError for new keys and values of `rank` dimensions that don't fit the pages.
    """
    _check_shapes(k_pages, v_pages, key, value, rank)
    written, scales = [], []
    for name, pool, new, descale in (("descale_k", k_pages, key, descale_k), ("descale_v", v_pages, value, descale_v)):
        if isinstance(descale, torch.Tensor) and descale.dim() == 4 and descale.numel() != 1:
            stored, of_tokens = _scaled_by_token(name, new, pool, descale)
            scales.append((descale, of_tokens))
        else:
            stored = quantized(name, new, pool, descale)
        written.append((pool, stored))
    _check_dtypes(k_pages, v_pages, *(new for _, new in written))
    return written + scales


def _scaled_by_token(name, new, pool, scales):
    """New numbers [tokens or batch, KV heads, ..., dim] as FP8 pages store them, and the scale of each token and KV head, [..., 1]."""
    _check_is_quantized(name, new, pool)
    expected = (*pool.shape[:3], 1)
    if scales.shape != expected or scales.dtype != torch.float32 or scales.device != pool.device:
        raise InvalidArgumentError(
            f"{name}: expected a scale of each position of the pages, float32 {expected} on {pool.device}, found {scales.dtype} {tuple(scales.shape)} on "
            f"{scales.device}"
        )
    largest = torch.finfo(pool.dtype).max
    with torch.no_grad():
        wide = new.float()
        most = wide.abs().amax(-1, keepdim=True).clamp(max=torch.finfo(torch.float32).max)
        factor = torch.where(most == 0, 1.0, (most / largest).clamp(min=torch.finfo(torch.float32).tiny))
        return (wide / factor).clamp(-largest, largest).to(pool.dtype), factor


def _check_shapes(k_pages, v_pages, key, value, rank):
    for name, pool, new in (("key", k_pages, key), ("value", v_pages, value)):
        if pool.dim() != 4 or pool.shape[:3] != k_pages.shape[:3]:
            raise InvalidArgumentError(
                f"{name[0]}_pages: expected [pages, KV heads, page size, dim], alike for keys and values but for dim, found shape {tuple(pool.shape)}"
            )
        if new.dim() != rank:
            what = "[tokens, KV heads, dim] with offsets" if rank == 3 else "[batch, KV heads, sequence, dim] without offsets"
            raise InvalidArgumentError(f"{name}: expected {what}, found shape {tuple(new.shape)}")
        if new.shape[1] != pool.shape[1] or new.shape[-1] != pool.shape[3] or new.shape[:-1] != key.shape[:-1]:
            raise InvalidArgumentError(
                f"{name}: expected {pool.shape[1]} heads and a head dim of {pool.shape[3]}, as the pages have, alike for key and value; found shape "
                f"{tuple(new.shape)}"
            )


def _check_dtypes(k_pages, v_pages, key, value):
    for name, pool, new in (("key", k_pages, key), ("value", v_pages, value)):
        if new.dtype != pool.dtype or new.device != pool.device:
            remedy = f"; give descale_{name[0]}" if pool.dtype in FLOAT8 and new.dtype not in FLOAT8 else ""
            raise InvalidArgumentError(f"{name}: expected {pool.dtype} on {pool.device}, as the pages are, found {new.dtype} on {new.device}{remedy}")


def _slots(offsets, lengths, table, tokens, page_size):
    """(page * page size + position of each token, its sequence): -1 for a token of no sequence, and -2 for one whose place no page has."""
    token = torch.arange(tokens, dtype=torch.int32, device=table.device)
    sequence = torch.searchsorted(offsets, token, right=True, out_int32=True) - 1
    inside = (sequence >= 0) & (sequence < table.shape[0])
    sequence = sequence.clamp(0, table.shape[0] - 1)
    place = (lengths[sequence] - offsets[sequence + 1] + token).long()
    fits = (place >= 0) & (place < table.shape[1] * page_size)
    page = table[sequence, (place // page_size).clamp(0, table.shape[1] - 1)].long()
    slot = torch.where(fits & (page >= 0), page * page_size + place % page_size, -2)
    return torch.where(inside, slot, -1), sequence


def _fitting_slots(slots, sequence, pages, page_size):
    """The slots, refused where one is no place of the cache."""
    wrong = ((slots == -2) | (slots >= pages * page_size)).nonzero()
    if wrong.numel():
        token = int(wrong[0])
        raise InvalidArgumentError(
            f"append_to_pages: expected a place in the cache for each new token, found none for token {token} of sequence {int(sequence[token])}: its length, "
            f"less what comes after the token, is below 0 or beyond its row of page_table, or the page there is none of 0 to {pages - 1}"
        )
    return slots.clone()


_library.impl("fitting_slots", _fitting_slots, "CPU")
torch.library.register_fake("scoremod::fitting_slots", lambda slots, *_: torch.empty_like(slots), lib=_library)
