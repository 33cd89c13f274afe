"""As in flash_attn."""
