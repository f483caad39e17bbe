"""Builds a model without weights and runs one training step on fake tensors.

Only this part of the forecast needs torch: importing it imports torch.
"""
