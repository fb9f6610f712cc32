"""Set encoders: quality, gradients of large sets, memory."""
