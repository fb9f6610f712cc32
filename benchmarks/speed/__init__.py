"""Time and memory of training steps and solvers."""
