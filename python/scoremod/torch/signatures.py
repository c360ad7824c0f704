"""The types of score functions."""

from collections.abc import Callable

import torch

# score_mod(score, b, h, q_idx, kv_idx) and mask_mod(b, h, q_idx, kv_idx), of 0-dim tensors.
ScoreMod = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
MaskMod = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
