"""A model without its weights, and one step of its training on tensors that take no memory.

Here alone the forecast needs torch: what imports it, imports torch.
"""
