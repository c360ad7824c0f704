"""Types of arguments that several public functions have. flex_attention's docstring says what each means."""

from collections.abc import Callable
from typing import Literal

import torch

# score_mod(score, b, h, q_idx, kv_idx) and mask_mod(b, h, q_idx, kv_idx), of 0-dim tensors.
ScoreMod = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
MaskMod = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
Lengths = torch.Tensor | tuple[torch.Tensor | None, torch.Tensor | None] | None
PageTable = torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None
MaxLength = int | tuple[int, int] | None
QueryStart = int | torch.Tensor | Literal["bottom_right"] | None
