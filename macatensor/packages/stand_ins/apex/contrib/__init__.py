"""As in apex."""

from . import clip_grad

__all__ = ["clip_grad"]
