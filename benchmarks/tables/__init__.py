"""Mixed tables as people have them."""
