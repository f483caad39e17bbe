"""Modules other than torch that write checkpoints."""

WRITERS = {
    "torch.distributed.checkpoint": ("save", "async_save", "save_state_dict"),
    "safetensors.torch": ("save_file", "save_model"),
}
"""Modules whose functions write checkpoints, watched as soon as they are imported."""
