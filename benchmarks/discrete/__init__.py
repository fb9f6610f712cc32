"""Gradients through discrete choices, and the models trained with them."""
